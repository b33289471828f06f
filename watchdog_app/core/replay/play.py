"""
Replay a trace through the daemon's engine, and forecast from lines on standard input.

`answer_lines` answers each line at once. In: `{"t": s, "used": bytes, "limit": bytes}`. Out:
`{"eta_s", "low_s", "high_s", "alarm", "stage", "regime"}`; unknown and infinite times are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from watchdog_app.base.text.quantities import format_duration, number_or_none
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
_HZ_SLACK_S = 0.002
_NO_COSTS = SaveCost()


@dataclass(frozen=True, slots=True)
class Agent:
    """Assumed times of the agent in the replayed task."""

    save_s: float = 2.0
    step_s: float = 0.2


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

    def first(self, stage: Stage) -> Moment | None:
        """The first moment in a stage; None: the stage was not reached."""
        return next((m for m in self.moments if is_reached(m.assessment, stage)), None)


def is_reached(assessment: Assessment, stage: Stage) -> bool:
    """
    Whether the tier of a stage is open. A silent rescue does not count as a warning.

    Args:
        assessment: assessment of one sample.
        stage: WARN, SAVE or PAUSE.
    """
    if stage is Stage.WARN:
        return assessment.notify
    if stage is Stage.SAVE:
        return assessment.rescue
    return assessment.stage >= stage


def play(
    trace: Trace, settings: Settings, agent: Agent | None = Agent(), daemon_pace: bool = False
) -> Played:
    """
    Replay a trace.

    Args:
        trace: trace to replay; its unit need not be bytes.
        settings: settings of the daemon.
        agent: agent of the task; None: no agent.
        daemon_pace: skip samples that the daemon would not have taken.
    """
    engine = Engine(settings, own_uid=_UID)
    key = ResourceKey(trace.kind, "trace")
    moments: list[Moment] = []
    decisions: list[Decision] = []
    saving: list[tuple[float, Decision]] = []
    rescue: tuple[RescueRecord, float] | None = None
    due = float("-inf")
    for t, used, limit in trace.samples:
        if daemon_pace and t < due - _HZ_SLACK_S:
            continue
        for done_s, decision in [each for each in saving if each[0] <= t]:
            spent_s = 0.0 if agent is None else agent.save_s + agent.step_s
            rescue = (
                RescueRecord("(replay)", 0, 0, agent.save_s if agent else 0.0, done_s),
                done_s,
            )
            took = f"taken to be saved {format_duration(spent_s)} after it was asked to"
            engine.record(_outcome(decision, done_s, took))
        saving = [each for each in saving if each[0] > t]
        task = _task(trace, used)
        views = {} if agent is None else {_TASK: _agent_state(agent, t, bool(saving), rescue)}
        reading = Reading(key, trace.name, used, limit, True, (_TASK,))
        result = engine.tick(_snapshot(t, used, limit, task), (task,), (reading,), views)
        assessment = result.assessments[key]
        moments.append(Moment(t, used, limit, assessment))
        due = t + result.next_sample_s
        decisions += result.decisions
        for decision in result.decisions:
            if decision.kind is DecisionKind.CHECKPOINT and agent is not None:
                saving.append((t + agent.step_s + agent.save_s, decision))
            else:
                engine.record(_outcome(decision, t))
    return Played(trace, tuple(moments), tuple(decisions))


def stage_changes(played: Played) -> Iterator[tuple[Moment, Stage]]:
    """The moments at which the stage changed, each with the previous stage."""
    before = Stage.OK
    for moment in played.moments:
        if moment.assessment.stage is not before:
            yield moment, before
            before = moment.assessment.stage


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


def _agent_state(
    agent: Agent, t: float, saving: bool, rescue: tuple[RescueRecord, float] | None
) -> AgentState:
    return AgentState(
        _TASK,
        "keras",
        "",
        training=True,
        step_s=agent.step_s,
        save_s=agent.save_s,
        reported_mono_s=t,
        saving=saving,
        rescue=None if rescue is None else rescue[0],
        rescue_mono_s=None if rescue is None else rescue[1],
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
        alarm_stage: stage from which `alarm` is true.
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
            out.write(f'{said[:-2]}, "error": {json.dumps(str(error))}}}\n')
        else:
            last_s = t
            said = answer(watch.step(t, used, limit, costs), alarm_stage)
            out.write(said)
        out.flush()
    return bad


def answer(assessment: Assessment, alarm_stage: Stage) -> str:
    """
    The answer to one sample as a line of JSON.

    Args:
        assessment: assessment of the sample.
        alarm_stage: stage from which `alarm` is true.
    """
    forecast = assessment.forecast
    if forecast is None:
        eta = low = high = "null"
    else:
        eta, low, high = map(_seconds, (forecast.eta_s, forecast.low_s, forecast.high_s))
    alarm = "true" if is_reached(assessment, alarm_stage) else "false"
    return (
        f'{{"eta_s": {eta}, "low_s": {low}, "high_s": {high}, "alarm": {alarm}, '
        f'"stage": "{assessment.stage.name.lower()}", "regime": "{assessment.regime.value}"}}\n'
    )


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


def _seconds(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "null"
