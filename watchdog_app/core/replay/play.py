"""
Replay a trace through the daemon's engine, report the result, and forecast from lines of JSON.

`answer_lines` answers each line at once. In: `{"t": s, "used": bytes, "limit": bytes}`. Out:
`{"eta_s", "low_s", "high_s", "alarm", "stage", "regime"}`; unknown and infinite times are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TextIO

from watchdog_app.base.text.quantities import format_bytes, format_duration, number_or_none
from watchdog_app.core.forecast.stages import ResourceMonitor
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import (
    Assessment,
    Decision,
    DecisionKind,
    Outcome,
    OutcomeStatus,
    SaveCost,
    Stage,
)
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    Task,
    TaskKind,
)
from watchdog_app.core.model.resource import Reading, ResourceKey
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.replay.trace import Trace

_TASK = ProcessKey(1, 1)
_UID = 1000
_NO_COSTS = SaveCost()
USUAL_COSTS = SaveCost(save_s=2.0, step_s=0.2)  # assumed for the agent of a replayed task


@dataclass(frozen=True, slots=True)
class Moment:
    """One sample and its assessment."""

    t: float
    used: float
    limit: float
    assessment: Assessment


@dataclass(frozen=True, slots=True)
class Played:
    """A trace and the result of its replay."""

    trace: Trace
    moments: tuple[Moment, ...]
    decisions: tuple[Decision, ...]  # decisions that a daemon would have carried out


def play(trace: Trace, settings: Settings, costs: SaveCost | None = USUAL_COSTS) -> Played:
    """
    Replay a trace.

    Args:
        trace: trace to replay; its unit need not be bytes.
        settings: settings of the daemon.
        costs: assumed times of the task's agent; None: no agent.
    """
    engine = Engine(settings, own_uid=_UID)
    key = ResourceKey(trace.kind, "trace")
    moments: list[Moment] = []
    decisions: list[Decision] = []
    saving: list[tuple[float, Decision]] = []  # end and request of each save, the next end first
    saved_s: float | None = None
    for t, used, limit in trace.samples:
        while saving and saving[0][0] <= t:
            saved_s, decision = saving.pop(0)
            took = f"taken to be saved {format_duration(saved_s - decision.at_mono_s)}"
            engine.record(_outcome(decision, saved_s, f"{took} after it was asked to"))
        task = _task(trace, used)
        views = {} if costs is None else {_TASK: _agent_state(costs, t, bool(saving), saved_s)}
        reading = Reading(key, trace.name, used, limit, True, (_TASK,))
        result = engine.tick(_snapshot(t, used, limit, task), (task,), (reading,), views)
        moments.append(Moment(t, used, limit, result.assessments[key]))
        decisions += result.decisions
        for decision in result.decisions:
            if decision.kind is DecisionKind.CHECKPOINT and costs is not None:
                saving.append((t + (costs.step_s or 0.0) + (costs.save_s or 0.0), decision))
            else:
                engine.record(_outcome(decision, t))
    return Played(trace, tuple(moments), tuple(decisions))


def _outcome(decision: Decision, t: float, detail: str = "taken to be done") -> Outcome:
    # A pause cannot stop a trace: report it and continue the series.
    status = OutcomeStatus.SKIPPED if decision.kind is DecisionKind.PAUSE else OutcomeStatus.DONE
    return Outcome(decision.id, status, t, 0.0, detail, at_mono_s=t)


def _task(trace: Trace, used: float) -> Task:
    name = trace.task or trace.name
    path = trace.task_path or name
    info = ProcessInfo(_TASK, 0, _UID, None, None, (), None, TaskKind.SCRIPT, name, script=path)
    sample = ProcessSample(_TASK, 0, "R", max(0, int(used)), None, None, None, 0.0)
    return Task(_TASK, name, TaskKind.SCRIPT, _UID, (sample,), sample.rss_bytes, None, 0.0, info)


def _agent_state(costs: SaveCost, t: float, saving: bool, saved_s: float | None) -> AgentState:
    return AgentState(
        _TASK,
        "keras",
        "",
        training=True,
        step_s=costs.step_s,
        save_s=costs.save_s,
        reported_mono_s=t,
        saving=saving,
        rescue=None
        if saved_s is None
        else RescueRecord("(replay)", 0, 0, costs.save_s or 0.0, saved_s),
        rescue_mono_s=saved_s,
    )


def _snapshot(t: float, used: float, limit: float, task: Task) -> Snapshot:
    total = max(1, int(limit))
    host = HostMemory(total, max(0, total - int(used)), 0, 0, None, None, None, None, None)
    return Snapshot(t, t, host, task.members, infos={_TASK: task.info})


def answer_lines(
    lines: Iterable[str],
    out: TextIO,
    settings: Settings,
    alarm_stage: Stage = Stage.WARN,
    costs: SaveCost = _NO_COSTS,
) -> int:
    """
    Answer each line before reading the next.

    A line without a valid sample, or with a time that does not increase, changes nothing. Its
    answer repeats the previous one, with the reason under "error". A limit of null or 0 means no
    limit.

    Args:
        lines: lines with one JSON sample each.
        out: file for the answers, one per line.
        settings: settings; only `watch` and `stages` are used.
        alarm_stage: WARN: `alarm` is true during a warning; SAVE: while a checkpoint is due.
        costs: assumed times of a save.

    Returns:
        The number of lines without a valid sample.
    """
    watch = ResourceMonitor(settings.watch, settings.stages)
    bad, said, last_s = 0, answer(watch.assessment, alarm_stage), -math.inf
    for line in lines:
        if not line.strip():
            continue
        try:
            t, used, limit = _sample(line, last_s)
        except ValueError as error:
            bad += 1
            out.write(json.dumps({**said, "error": str(error)}) + "\n")
        else:
            last_s = t
            said = answer(watch.step(t, used, limit, costs), alarm_stage)
            out.write(json.dumps(said) + "\n")
        out.flush()
    return bad


def answer(assessment: Assessment, alarm_stage: Stage) -> dict[str, Any]:
    """
    The answer to one sample as a JSON object.

    Args:
        assessment: assessment of the sample.
        alarm_stage: WARN or SAVE. A silent checkpoint is no warning.
    """
    found = assessment.forecast
    times = {name: getattr(found, name, math.inf) for name in ("eta_s", "low_s", "high_s")}
    return {
        **{name: round(s, 3) if math.isfinite(s) else None for name, s in times.items()},
        "alarm": assessment.notify if alarm_stage is Stage.WARN else assessment.rescue,
        "stage": assessment.stage.name.lower(),
        "regime": assessment.regime.value,
    }


def _sample(line: str, last_s: float) -> tuple[float, float, float]:
    try:
        found: Any = json.loads(line)
        limit = 0.0 if found["limit"] is None else found["limit"]
        numbers = [number_or_none(each) for each in (found["t"], found["used"], limit)]
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        numbers = []
    known = [float(each) for each in numbers if each is not None]
    if len(known) < 3 or min(known[1:]) < 0:
        raise ValueError('a sample is {"t": seconds, "used": bytes, "limit": bytes}')
    t, used, limit = known
    if t <= last_s:
        raise ValueError(f"t is {t:g}, not after {last_s:g}")
    return t, used, limit


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
    for moment, before in _stage_changes(played):
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
        word = "notification" if act.kind is DecisionKind.NOTIFY else act.kind.value
        lines.append(f"{act.at_mono_s:9.1f} s  {word:<13} {act.reason}{more}")
    lines += _end_lines(played)
    return lines


def as_dict(played: Played) -> dict[str, Any]:
    """The warnings and actions as plain values, times in seconds."""
    trace = played.trace
    return {
        "trace": trace.name,
        "start_unix_s": trace.start_unix_s,  # null: unknown
        "ended_s": trace.ended_s,
        "decisions": [
            {"t": act.at_mono_s, "kind": act.kind.value, "reason": act.reason}
            for act in played.decisions
        ],
    }


def _stage_changes(played: Played) -> Iterator[tuple[Moment, Stage]]:
    """The moments at which the stage changed, each with the previous stage."""
    before = Stage.OK
    for moment in played.moments:
        if moment.assessment.stage is not before:
            yield moment, before
            before = moment.assessment.stage


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
    lines = ["", f"{end:9.1f} s  it was killed"]
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
