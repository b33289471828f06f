"""A played trace in words and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.model.decisions import Assessment, DecisionKind, Stage
from watchdog_app.core.replay.play import Act, Played, stages

_DONE = {
    DecisionKind.NOTIFY: "notice",
    DecisionKind.CHECKPOINT: "checkpoint",
    DecisionKind.PAUSE: "pause",
    DecisionKind.RESUME: "resume",
}

_MARKS = {
    DecisionKind.NOTIFY: "warned",
    DecisionKind.CHECKPOINT: "saved",
    DecisionKind.PAUSE: "paused",
    DecisionKind.RESUME: "resumed",
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
        word = _stage(now)
        if now.stage < before and now.stage <= Stage.WATCH:
            word = "calm"
        lines.append(f"{moment.t:9.1f} s  {word:<11} {now.why}{_ahead(now)}")
    if len(lines) == told:
        lines.append("           nothing that mattered")
    lines.append("")
    lines.append("What would have been done:" if played.acts else "Nothing would have been done.")
    for act, again, last_s in _runs(played.acts):
        more = f" (and {again} more until {last_s:.1f} s)" if again else ""
        lines.append(f"{act.t:9.1f} s  {_DONE[act.kind]:<11} {act.reason}{more}")
    lines += _ending(played)
    return lines


def as_plot(played: Played) -> dict[str, Any]:
    """The level, the limit and what would have been done, in the form of `explain`'s `plot`."""
    trace, moments = played.trace, played.moments
    marks = [{"unix_s": act.t, "kind": _MARKS[act.kind]} for act in played.acts]
    if trace.ended_s is not None:
        marks.append({"unix_s": trace.ended_s, "kind": "death"})
    return {
        "begin_unix_s": moments[0].t,
        "end_unix_s": moments[-1].t,
        "name": trace.name,
        "unit": trace.unit,
        "points": [[m.t, m.used] for m in moments],
        "ceiling": {"limit": moments[-1].limit or None},
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
            for stage in (Stage.WARN, Stage.RESCUE, Stage.HOLD)
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
            {"t": act.t, "kind": act.kind.value, "reason": act.reason} for act in played.acts
        ],
    }


def _times(assessment: Assessment) -> dict[str, float | None]:
    found = assessment.forecast
    return {
        "eta_s": None if found is None else _finite(found.eta_s),
        "low_s": None if found is None else _finite(found.low_s),
        "high_s": None if found is None else _finite(found.high_s),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _stage(assessment: Assessment) -> str:
    return assessment.stage.name.lower()


def _ahead(assessment: Assessment) -> str:
    found = assessment.forecast
    if found is None:
        return ""
    low, high = format_duration(found.low_s), format_duration(found.high_s)
    return f"; full in {format_duration(found.eta_s)} ({low} to {high})"


def _runs(acts: Sequence[Act]) -> Iterator[tuple[Act, int, float]]:
    """The acts; of those that repeat at every look the first, how many follow, and until when."""
    for (_, _), same in groupby(acts, key=lambda act: (act.kind, act.reason)):
        first, *rest = same
        yield first, len(rest), rest[-1].t if rest else first.t


def _ending(played: Played) -> list[str]:
    end = played.trace.ended_s
    if end is None:
        return []
    how = "it was killed" if played.trace.killed else "it ended, most likely by a MemoryError"
    lines = ["", f"{end:9.1f} s  {how}"]
    for kind, what in ((DecisionKind.NOTIFY, "notice"), (DecisionKind.CHECKPOINT, "checkpoint")):
        first = next((act for act in played.acts if act.kind is kind), None)
        if first is None:
            lines.append(f"             without a {what}")
        else:
            lead = format_duration(end - first.t)
            asked = "was asked for" if kind is DecisionKind.CHECKPOINT else "was given"
            lines.append(f"             {lead} after the first {what} {asked}")
    return lines
