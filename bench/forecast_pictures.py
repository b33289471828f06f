"""
Plot a series of each regime, and of other resources, with the forecasts made at each time.

    python bench/forecast_pictures.py FOLDER
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.replay.play import Moment, Played, play
from watchdog_app.core.replay.trace import Trace

_BARS = {  # colour, and height as a fraction of the limit
    Stage.SAVE: ("#edae49", 0.06),
    Stage.WARN: ("#d1495b", 0.03),
    Stage.PAUSE: ("#542344", 0.015),
}
_LONGEST_S = 120.0
MIB = 1024.0**2
LIMIT = 1000 * MIB


def series(
    name, level, lasts=100.0, limit=LIMIT, unit="bytes", *, kind=ResourceKind.CGROUP, dt=0.1
):
    """Return the series until it reaches its limit, or for `lasts` seconds."""
    draw, samples, end = random.Random(name), [], None
    t = 0.0
    while t < lasts:
        used = level(t, draw)
        if used >= limit:
            end = t
            break
        samples.append((round(t, 3), used, limit))
        t += dt
    return Trace(name, samples, unit=unit, ended_s=end, kind=kind)


def mib(value):
    return value * MIB


def stairs(t, _):
    at = t % 9
    return mib(150 + 110 * (t // 9) + (110 * at / 2 if at < 2 else 110))


def bursts(t, draw):
    at = t % 20
    return mib(350 + draw.gauss(0, 2) + (min(400, at * 250) if at < 2.5 else 0))


REGIMES = [
    ("linear", lambda t, d: mib(200 + max(0, t - 20) * 11 + d.gauss(0, 2))),
    ("ever steeper", lambda t, d: mib(80 * math.exp(t / 32) + d.gauss(0, 1))),
    ("ever flatter", lambda t, d: mib(150 + 650 * (1 - math.exp(-t / 25)) + d.gauss(0, 1))),
    ("staircase", stairs),
    ("sawtooth", lambda t, _: mib(100 + 6.0 * t + (3 + t / 8) * 2.2 * (t % 8))),
    ("burst", bursts),
]


def whole(level):
    """Round the level, as a sensor of whole degrees does."""
    return lambda t, draw: float(round(level(t, draw)))


def heats(asymptote, tau_s, begin=40.0):
    """Return a first-order lag towards `asymptote`, in whole degrees."""
    return whole(
        lambda t, d: begin + (asymptote - begin) * (1 - math.exp(-t / tau_s)) + d.gauss(0, 0.3)
    )


def failing_fan(t, draw):
    warm = 74.0 + draw.gauss(0, 0.3)
    return float(round(warm + (60 * (1 - math.exp(-(t - 200) / 90)) if t > 200 else 0)))


def drained(t, draw):
    """Charge used, in whole percent; training starts after 20 minutes."""
    return round(0.35 + t / 14400 + max(0.0, t - 1200) / 4800 + draw.gauss(0, 5e-4), 2)


def checkpoints(t, _):
    return (60 + 4 * (t // 240) + 0.01 * t) * 1024 * MIB


def logs(t, draw):
    return (30 + 25 * (t % 1800) / 1800 + draw.gauss(0, 0.2)) * 1024 * MIB


HEAT, DISK = ResourceKind.TEMPERATURE, ResourceKind.DISK
CEILINGS = [
    ("heats to 87 °C, limit 90 °C, whole degrees", heats(87, 60), 90.0, "celsius", HEAT, 600.0),
    ("heats to 87 °C more slowly", heats(87, 120), 90.0, "celsius", HEAT, 900.0),
    ("heats to 102 °C, limit 90 °C", heats(102, 90), 90.0, "celsius", HEAT, 600.0),
    ("a fan fails at 200 s", failing_fan, 90.0, "celsius", HEAT, 600.0),
    ("battery drained by a training", drained, 1.0, "ratio", ResourceKind.BATTERY, 3600.0),
    ("disk of the checkpoints", checkpoints, 120 * 1024 * MIB, "bytes", DISK, 3600.0),
    ("logs that are rotated", logs, 60 * 1024 * MIB, "bytes", DISK, 7200.0),
]


def row(one):
    """Return a table row on the first notification about a resource."""
    told = [m for m in one.moments if m.assessment.notify]
    end = one.trace.ended_s
    shown = [m for m in one.moments if m.assessment.forecast is not None]
    if not told:
        return f"| {one.trace.name} | none | {'-' if not shown else len(shown)} | - | - |"
    found = told[0].assessment.forecast
    left = "never" if end is None else f"{end - told[0].t:.0f} s"
    said = "-" if found is None else f"{found.eta_s:.0f} s ({found.low_s:.0f}-{found.high_s:.0f})"
    return f"| {one.trace.name} | {told[0].t:.0f} s | {len(shown)} | {said} | {left} |"


def _is_reached(moment: Moment, stage: Stage) -> bool:
    """Return whether the tier of a stage is open. A silent rescue is not a warning."""
    tiers = {Stage.WARN: moment.assessment.notify, Stage.SAVE: moment.assessment.rescue}
    return tiers.get(stage, moment.assessment.stage >= stage)


def draw_level(axes: Any, played: Played, fans: int) -> None:
    """
    Plot the level, the limit, the reached stages, and some forecasts as fans.

    Args:
        axes: matplotlib axes.
        played: result of `play`.
        fans: maximum number of forecasts to draw.
    """
    moments, trace = played.moments, played.trace
    scale, unit = (1 / 2**20, "MiB") if trace.unit == "bytes" else (1.0, trace.unit)
    times = [m.t for m in moments]
    axes.plot(times, [m.used * scale for m in moments], color="#30638e", lw=1.3)
    axes.plot(times, [m.limit * scale for m in moments], color="black", lw=0.8, ls="--")
    top = max(m.limit for m in moments) * scale
    for stage, (color, height) in _BARS.items():
        open_ = [_is_reached(m, stage) for m in moments]
        if any(open_):
            axes.fill_between(
                times,
                0,
                height * top,
                where=open_,
                step="post",
                color=color,
                label=stage.name.lower(),
                lw=0,
            )
    _draw_fans(axes, moments, scale, fans)
    if trace.ended_s is not None:
        axes.axvline(trace.ended_s, color="#d1495b", lw=1)
    span = max(1e-9, times[-1] - times[0])
    axes.set_xlim(times[0], times[-1] + 0.15 * span)
    axes.set_ylim(0, 1.06 * top)
    axes.set_ylabel(unit)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0.93), fontsize=8, frameon=False)


def _draw_fans(axes: Any, moments: Sequence[Moment], scale: float, fans: int) -> None:
    """Plot some forecasts: median and interval from the level to the limit."""
    shown_s = max(_LONGEST_S, moments[-1].t - moments[0].t)
    known = [(m, found) for m in moments if (found := m.assessment.forecast) is not None]
    for m, found in known[:: max(1, len(known) // fans)]:
        if found.low_s > shown_s:
            continue
        used, limit = m.used * scale, m.limit * scale
        low, high = m.t + found.low_s, m.t + min(found.high_s, 3 * shown_s)
        axes.fill([m.t, low, high], [used, limit, limit], color="#00798c", alpha=0.18, lw=0)
        axes.plot([m.t, m.t + found.eta_s], [used, limit], color="#00798c", lw=0.8, ls=":")


def picture(played: list[Played], path: str) -> None:
    """Draw the panels in two columns."""
    rows = (len(played) + 1) // 2
    figure = Figure(figsize=(10, 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False)
    for axes, one in zip(panels.flat, played, strict=False):
        draw_level(axes, one, fans=7)
        axes.set_title(one.trace.name, fontsize=10)
    figure.savefig(path, dpi=80)


def main():
    mpl.use("Agg")
    folder = sys.argv[1]
    picture(
        [play(series(name, level), Settings()) for name, level in REGIMES],
        f"{folder}/forecast-regimes.png",
    )
    played = []
    print(
        "| series | notice | looks with a forecast | foretold then | true |\n|---|---|---|---|---|"
    )
    for name, level, limit, unit, kind, lasts in CEILINGS:
        played.append(play(series(name, level, lasts, limit, unit, kind=kind, dt=1.0), Settings()))
        print(row(played[-1]))
    picture(played, f"{folder}/forecast-ceilings.png")


if __name__ == "__main__":
    main()
