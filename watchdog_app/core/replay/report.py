"""
A played trace in words, as plain values and drawn.

Drawing into a file needs matplotlib, which is an extra: pip install 'watchdog-app[plot]'.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from watchdog_app.base.errors import UsageError, WatchdogError
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.model.decisions import Assessment, DecisionKind, Stage
from watchdog_app.core.replay.play import Moment, Played, PlayedDecision, reached, stages

SUFFIXES = (".png", ".svg")
_BARS = {  # colour, and height as a share of the limit
    Stage.SAVE: ("#edae49", 0.06),
    Stage.WARN: ("#d1495b", 0.03),
    Stage.PAUSE: ("#542344", 0.015),
}
_LONGEST_S = 120.0  # forecasts further ahead are left out of the lower picture
_FANS = 6  # forecasts drawn into the upper picture
_WORDS = {  # what was done, and the mark of `explain`'s `plot`
    DecisionKind.NOTIFY: ("notification", "warned"),
    DecisionKind.CHECKPOINT: ("checkpoint", "saved"),
    DecisionKind.PAUSE: ("pause", "paused"),
    DecisionKind.RESUME: ("resume", "resumed"),
}


def as_lines(played: Played) -> list[str]:
    """What would have been seen and done, and when; the first line names the trace."""
    trace, moments = played.trace, played.moments
    span = moments[-1].t - moments[0].t
    limit = moments[-1].limit
    top = format_bytes(limit) if trace.unit == "bytes" else f"{limit:.4g} {trace.unit}"
    counted = f"{len(moments)} sample" + ("" if len(moments) == 1 else "s")
    lines = [f"{trace.name}: {counted} over {format_duration(span)}, limit {top}"]
    if trace.cut:
        lines.append("The file ends in the middle; this is what was written down before.")
    lines.append("")
    told = len(lines)
    for moment, before in stages(played):
        now = moment.assessment
        calm = now.stage < before and now.stage <= Stage.WATCH
        word = "calm" if calm else now.stage.name.lower()
        lines.append(f"{moment.t:9.1f} s  {word:<13} {now.why}{_ahead(now)}")
    if len(lines) == told:
        lines.append("           nothing that mattered")
    lines.append("")
    done = "What would have been done:" if played.decisions else "Nothing would have been done."
    lines.append(done)
    for act, again, last_s in _runs(played.decisions):
        more = f" (and {again} more until {last_s:.1f} s)" if again else ""
        lines.append(f"{act.t:9.1f} s  {_WORDS[act.kind][0]:<13} {act.reason}{more}")
    lines += _ending(played)
    return lines


def as_plot(played: Played) -> dict[str, Any]:
    """The level, the limit and what would have been done, in the form of `explain`'s `plot`."""
    trace, moments = played.trace, played.moments
    marks = [{"unix_s": act.t, "kind": _WORDS[act.kind][1]} for act in played.decisions]
    if trace.ended_s is not None:
        marks.append({"unix_s": trace.ended_s, "kind": "death"})
    return {
        "begin_unix_s": moments[0].t,
        "end_unix_s": moments[-1].t,
        "name": trace.name,
        "unit": trace.unit,
        "points": [[m.t, m.used] for m in moments],
        "resource": {"limit": moments[-1].limit or None},
        "marks": marks,
    }


def urgency(played: Played) -> tuple[float, ...]:
    """Greater for the trace whose stage rose higher; of two alike, the nearer end, the level."""
    highest = max(m.assessment.stage for m in played.moments)
    ends = [m.assessment.forecast.low_s for m in played.moments if m.assessment.forecast]
    level = max(m.used / m.limit if m.limit > 0 else 0.0 for m in played.moments)
    return float(highest), -min(ends, default=math.inf), level


def as_dict(played: Played) -> dict[str, Any]:
    """The same as plain values, times in seconds."""
    trace, moments = played.trace, played.moments
    return {
        "trace": trace.name,
        "signal": trace.signal,
        "unit": trace.unit,
        "samples": len(moments),
        "limit": moments[-1].limit,
        "start_unix_s": trace.start_unix_s,  # null where the trace does not tell
        "ended_s": trace.ended_s,
        "first": {
            stage.name.lower(): None if (m := played.first(stage)) is None else m.t
            for stage in (Stage.WARN, Stage.SAVE, Stage.PAUSE)
        },
        "stages": [
            {
                "t": m.t,
                "stage": m.assessment.stage.name.lower(),
                "notify": m.assessment.notify,
                "rescue": m.assessment.rescue,
                "regime": m.assessment.regime.value,
                "used": m.used,
                **_times(m.assessment),
                "why": m.assessment.why,
            }
            for m, _ in stages(played)
        ],
        "decisions": [
            {"t": act.t, "kind": act.kind.value, "reason": act.reason} for act in played.decisions
        ],
    }


def _times(assessment: Assessment) -> dict[str, float | None]:
    """The forecast as plain values; null where there is none, or no end."""
    found = assessment.forecast
    times = {name: getattr(found, name, math.inf) for name in ("eta_s", "low_s", "high_s")}
    return {name: value if math.isfinite(value) else None for name, value in times.items()}


def _ahead(assessment: Assessment) -> str:
    found = assessment.forecast
    if found is None:
        return ""
    low, high = format_duration(found.low_s), format_duration(found.high_s)
    return f"; full in {format_duration(found.eta_s)} ({low} to {high})"


def _runs(decisions: Sequence[PlayedDecision]) -> Iterator[tuple[PlayedDecision, int, float]]:
    """The acts; of those that repeat at every look the first, how many follow, and until when."""
    for (_, _), same in groupby(decisions, key=lambda act: (act.kind, act.reason)):
        first, *rest = same
        yield first, len(rest), rest[-1].t if rest else first.t


def _ending(played: Played) -> list[str]:
    end = played.trace.ended_s
    if end is None:
        return []
    how = "it was killed" if played.trace.killed else "it ended, most likely by a MemoryError"
    lines = ["", f"{end:9.1f} s  {how}"]
    for kind, what in (
        (DecisionKind.NOTIFY, "notification"),
        (DecisionKind.CHECKPOINT, "checkpoint"),
    ):
        first = next((act for act in played.decisions if act.kind is kind), None)
        if first is None:
            lines.append(f"             without a {what}")
        else:
            lead = format_duration(end - first.t)
            asked = "was asked for" if kind is DecisionKind.CHECKPOINT else "was given"
            lines.append(f"             {lead} after the first {what} {asked}")
    return lines


def save(played: Played, path: str) -> None:
    """
    Draw into a PNG or SVG file: the level with forecasts drawn in, and the predicted time.

    Args:
        played: from `play`.
        path: ends in .png or .svg.

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
    """
    The level, the limit, the open stages, and some forecasts as fans.

    Args:
        axes: of matplotlib.
        played: from `play`.
        fans: how many forecasts are drawn.
    """
    moments, trace = played.moments, played.trace
    scale, unit = (1 / 2**20, "MiB") if trace.unit == "bytes" else (1.0, trace.unit)
    times = [m.t for m in moments]
    axes.plot(times, [m.used * scale for m in moments], color="#30638e", lw=1.3)
    axes.plot(times, [m.limit * scale for m in moments], color="black", lw=0.8, ls="--")
    top = max(m.limit for m in moments) * scale
    for stage, (color, height) in _BARS.items():
        open_ = [reached(m.assessment, stage) for m in moments]
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
    if fans:
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
    """Some forecasts: median and interval from the level to the limit."""
    shown_s = max(_LONGEST_S, moments[-1].t - moments[0].t)
    known = [(m, found) for m in moments if (found := m.assessment.forecast) is not None]
    for m, found in known[:: max(1, len(known) // fans)]:
        if found.low_s > shown_s:
            continue
        used, limit = m.used * scale, m.limit * scale
        low, high = m.t + found.low_s, m.t + min(found.high_s, 3 * shown_s)
        axes.fill([m.t, low, high], [used, limit, limit], color="#00798c", alpha=0.18, lw=0)
        axes.plot([m.t, m.t + found.eta_s], [used, limit], color="#00798c", lw=0.8, ls=":")


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
