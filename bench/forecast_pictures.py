"""
Draw a series of each regime, and of other ceilings, with the forecasts made along the way.

    python bench/forecast_pictures.py FOLDER
"""

from __future__ import annotations

import math
import random
import sys

import matplotlib as mpl
from matplotlib.figure import Figure

from watchdog_app.core.outlook import CeilingKind
from watchdog_app.core.settings import Settings
from watchdog_app.traces.figure import draw_level
from watchdog_app.traces.play import Played, play
from watchdog_app.traces.trace import Trace

MIB = 1024.0**2
LIMIT = 1000 * MIB


def series(name, level, lasts=100.0, limit=LIMIT, unit="bytes", *, kind=CeilingKind.CGROUP, dt=0.1):
    """The series until it meets its limit, or for so many seconds."""
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
    ("accelerating", lambda t, d: mib(80 * math.exp(t / 32) + d.gauss(0, 1))),
    ("saturating", lambda t, d: mib(150 + 650 * (1 - math.exp(-t / 25)) + d.gauss(0, 1))),
    ("staircase", stairs),
    ("sawtooth", lambda t, _: mib(100 + 6.0 * t + (3 + t / 8) * 2.2 * (t % 8))),
    ("burst", bursts),
]


def warms(t, draw):
    return 40 + 38 * (1 - math.exp(-t / 60)) + draw.gauss(0, 0.15)


def overheats(t, draw):
    return 40 + 75 * (1 - math.exp(-t / 120)) + draw.gauss(0, 0.15)


CEILINGS = [
    ("GPU at 78 °C: warm, and stays so", warms, 90.0, "celsius", CeilingKind.TEMPERATURE, 300.0),
    ("GPU with a dead fan", overheats, 90.0, "celsius", CeilingKind.TEMPERATURE, 300.0),
    (
        "battery, share used",
        lambda t, d: 0.35 + t / 5400 + d.gauss(0, 5e-4),
        1.0,
        "ratio",
        CeilingKind.BATTERY,
        3600.0,
    ),
    (
        "disk of the checkpoints",
        lambda t, _: (60 + 4 * (t // 240) + 0.01 * t) * 1024 * MIB,
        120 * 1024 * MIB,
        "bytes",
        CeilingKind.DISK,
        3600.0,
    ),
]


def picture(played: list[Played], path: str) -> None:
    """Panels in two columns."""
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
    for name, level, limit, unit, kind, lasts in CEILINGS:
        one = play(series(name, level, lasts, limit, unit, kind=kind, dt=1.0), Settings())
        warned = [m.t for m in one.moments if m.assessment.notify][:1]
        print(f"{name}: warned at {warned}, end {one.trace.ended_s}")
        played.append(one)
    picture(played, f"{folder}/forecast-ceilings.png")


if __name__ == "__main__":
    main()
