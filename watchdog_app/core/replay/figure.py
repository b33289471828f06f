"""A played trace drawn with matplotlib, which is an extra: pip install 'watchdog-app[plot]'."""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import UsageError, WatchdogError
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.replay.play import Played, reached

SUFFIXES = (".png", ".svg")
_COLOURS = {Stage.WARN: "#d1495b", Stage.RESCUE: "#edae49", Stage.HOLD: "#542344"}
_LONGEST_S = 120.0  # forecasts further ahead are left out of the lower picture
_FANS = 6  # forecasts drawn into the upper picture


def save(played: Played, path: str) -> None:
    """
    Draw into a PNG or SVG file: the level with forecasts drawn in, and the predicted time.

    Raises:
        UsageError: another kind of file.
        WatchdogError: matplotlib is not installed, or the file cannot be written.
    """
    if not path.lower().endswith(SUFFIXES):
        raise UsageError(f"A plot is written as .png or .svg; {path} is neither.")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WatchdogError(
            "Plots need matplotlib, which is not installed. The replay itself works without.\n"
            "Install it with: pip install 'watchdog-app[plot]'"
        ) from error
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    level, ahead = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    draw_level(level, played)
    draw_ahead(ahead, played)
    level.set_title(played.trace.name.replace("$", r"\$"))
    ahead.set_xlabel("seconds")
    try:
        figure.savefig(path, dpi=100)
    except OSError as error:
        raise WatchdogError(f"The plot could not be written to {path}: {error}") from error


def draw_level(axes: Any, played: Played, fans: int = _FANS) -> None:
    """The level, the limit, the open stages, and some forecasts as fans."""
    moments, trace = played.moments, played.trace
    scale, unit = (1 / 2**20, "MiB") if trace.unit == "bytes" else (1.0, trace.unit)
    times = [m.t for m in moments]
    axes.plot(times, [m.used * scale for m in moments], color="#30638e", lw=1.3)
    axes.plot(times, [m.limit * scale for m in moments], color="black", lw=0.8, ls="--")
    top = max(m.limit for m in moments) * scale
    for stage in (Stage.RESCUE, Stage.WARN, Stage.HOLD):
        open_ = [reached(m.assessment, stage) for m in moments]
        if any(open_):
            height = 0.06 if stage is Stage.RESCUE else 0.03 if stage is Stage.WARN else 0.015
            axes.fill_between(
                times,
                0,
                height * top,
                where=open_,
                step="post",
                color=_COLOURS[stage],
                label=stage.name.lower(),
                lw=0,
            )
    shown_s = max(_LONGEST_S, times[-1] - times[0])
    known = [m for m in moments if m.assessment.forecast is not None]
    for m in known[:: max(1, len(known) // fans)] if fans else []:
        forecast = m.assessment.forecast
        if forecast is None or forecast.low_s > shown_s:
            continue
        low, high = m.t + forecast.low_s, m.t + min(forecast.high_s, 3 * shown_s)
        axes.fill(
            [m.t, low, high],
            [m.used * scale, m.limit * scale, m.limit * scale],
            color="#00798c",
            alpha=0.18,
            lw=0,
        )
        axes.plot(
            [m.t, m.t + forecast.eta_s],
            [m.used * scale, m.limit * scale],
            color="#00798c",
            lw=0.8,
            ls=":",
        )
    if trace.ended_s is not None:
        axes.axvline(trace.ended_s, color="#d1495b", lw=1)
    span = max(1e-9, times[-1] - times[0])
    axes.set_xlim(times[0], times[-1] + 0.15 * span)
    axes.set_ylim(0, 1.06 * top)
    axes.set_ylabel(unit)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0.93), fontsize=8, frameon=False)


def draw_ahead(axes: Any, played: Played) -> None:
    """Predicted seconds to exhaustion with their interval, and the true ones."""
    nan = float("nan")
    times = [m.t for m in played.moments]
    found = [m.assessment.forecast for m in played.moments]
    near = [f if f is not None and f.eta_s <= _LONGEST_S else None for f in found]
    axes.fill_between(
        times,
        [nan if f is None else f.low_s for f in near],
        [nan if f is None else min(f.high_s, 2 * _LONGEST_S) for f in near],
        color="#00798c",
        alpha=0.25,
        lw=0,
    )
    axes.plot(times, [nan if f is None else f.eta_s for f in near], color="#00798c", lw=1)
    end = played.trace.ended_s
    if end is not None:
        axes.plot(times, [max(0.0, end - t) for t in times], color="black", lw=0.8, ls="--")
    axes.set_ylim(0, _LONGEST_S if end is None else min(_LONGEST_S, 1.2 * (end - times[0]) + 1))
    axes.set_ylabel("s to the limit")
