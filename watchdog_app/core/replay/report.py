"""The result of a replay as text and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.model.decisions import Assessment, Decision, DecisionKind, Stage
from watchdog_app.core.replay.play import Played, stage_changes

_WORDS = {  # name of the action, and its mark in `explain`'s `plot`
    DecisionKind.NOTIFY: ("notification", "warned"),
    DecisionKind.CHECKPOINT: ("checkpoint", "saved"),
    DecisionKind.PAUSE: ("pause", "paused"),
    DecisionKind.RESUME: ("resume", "resumed"),
}


def as_lines(played: Played) -> list[str]:
    """The stages and actions of the replay with their times; the first line names the trace."""
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
    for moment, before in stage_changes(played):
        now = moment.assessment
        calm = now.stage < before and now.stage <= Stage.WATCH
        word = "calm" if calm else now.stage.name.lower()
        lines.append(f"{moment.t:9.1f} s  {word:<13} {now.why}{_forecast_text(now)}")
    if len(lines) == told:
        lines.append("           nothing that mattered")
    lines.append("")
    done = "What would have been done:" if played.decisions else "Nothing would have been done."
    lines.append(done)
    for act, again, last_s in _group_repeats(played.decisions):
        more = f" (and {again} more until {last_s:.1f} s)" if again else ""
        lines.append(f"{act.at_mono_s:9.1f} s  {_WORDS[act.kind][0]:<13} {act.reason}{more}")
    lines += _end_lines(played)
    return lines


def as_plot(played: Played) -> dict[str, Any]:
    """The level, the limit and the actions, in the form of `explain`'s `plot`."""
    trace, moments = played.trace, played.moments
    marks = [{"unix_s": act.at_mono_s, "kind": _WORDS[act.kind][1]} for act in played.decisions]
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


def as_dict(played: Played) -> dict[str, Any]:
    """The result as plain values, times in seconds."""
    trace, moments = played.trace, played.moments
    return {
        "trace": trace.name,
        "signal": trace.signal,
        "unit": trace.unit,
        "samples": len(moments),
        "limit": moments[-1].limit,
        "start_unix_s": trace.start_unix_s,  # null: unknown
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
            for m, _ in stage_changes(played)
        ],
        "decisions": [
            {"t": act.at_mono_s, "kind": act.kind.value, "reason": act.reason}
            for act in played.decisions
        ],
    }


def _times(assessment: Assessment) -> dict[str, float | None]:
    """The forecast as plain values; None: no forecast, or infinite."""
    found = assessment.forecast
    times = {name: getattr(found, name, math.inf) for name in ("eta_s", "low_s", "high_s")}
    return {name: value if math.isfinite(value) else None for name, value in times.items()}


def _forecast_text(assessment: Assessment) -> str:
    found = assessment.forecast
    if found is None:
        return ""
    low, high = format_duration(found.low_s), format_duration(found.high_s)
    return f"; full in {format_duration(found.eta_s)} ({low} to {high})"


def _group_repeats(decisions: Sequence[Decision]) -> Iterator[tuple[Decision, int, float]]:
    """The first of each run of equal actions, the number of repeats, and the time of the last."""
    for (_, _), same in groupby(decisions, key=lambda act: (act.kind, act.reason)):
        first, *rest = same
        yield first, len(rest), rest[-1].at_mono_s if rest else first.at_mono_s


def _end_lines(played: Played) -> list[str]:
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
            lead = format_duration(end - first.at_mono_s)
            asked = "was asked for" if kind is DecisionKind.CHECKPOINT else "was given"
            lines.append(f"             {lead} after the first {what} {asked}")
    return lines
