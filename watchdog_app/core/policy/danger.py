"""
One resource in danger: its tasks, what it costs to save them, and its stage.

The forecast gives the first stage (`core.forecast.stages`). `with_final_stage` returns the final
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.core.explain import advice
from watchdog_app.core.explain.advice import Filling
from watchdog_app.core.model.agent import AgentState, MemoryGrowth
from watchdog_app.core.model.decisions import (
    Assessment,
    Decision,
    DecisionKind,
    Evidence,
    Expected,
    Regime,
    SaveCost,
    Stage,
    Topic,
)
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind, ResourceSpec, Scope
from watchdog_app.core.model.settings import ActionSettings, Priority, Settings, StageSettings
from watchdog_app.core.model.tasks import is_suspended
from watchdog_app.core.policy.attribution import noise_bytes
from watchdog_app.core.policy.incidents import OpenIncident, time_left_s
from watchdog_app.core.policy.rules import NO_ACTIONS, allowed_actions, rule_priority
from watchdog_app.core.policy.schedule import CheckpointSchedule, save_s, step_s

_SAVE_ORDER = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
_CAREFUL = 0.8  # share of the time left at the current pace, because the pace may increase
_NEAR = 0.8  # share of the limit; below it even fast growth leaves time for better evidence
_TRAINS_STEPS = 20  # after these steps tracing, optimizer state and caches are allocated
_CHEAP = 0.1  # share of `save_floor_s`
AT_THE_LIMIT = 0.97
_NO_TIME_S = 0.6  # time for some samples and one step


@dataclass(frozen=True, slots=True)
class Tick:
    """Values that all decisions of one tick share."""

    mono_s: float
    unix_s: float
    settings: Settings
    own_uid: int  # user whose tasks may be paused
    runtime_dir: str | None
    protecting: bool  # False: sample and forecast only, decide nothing
    schedules: Mapping[ProcessKey, CheckpointSchedule]  # by agent
    paused: frozenset[ProcessKey]  # tasks that any incident has paused
    new_id: Callable[[], str]

    def permits(
        self, task: Task | None, kind: ResourceKind, *, when_off: bool = False
    ) -> ActionSettings:
        """
        Return the switches for a task under a kind of resource. All are off while protection is
        off.

        Args:
            task: the task; None: the machine.
            kind: kind of the resource.
            when_off: whether the configured switches count even while protection is off.
        """
        if not (self.protecting or when_off):
            return NO_ACTIONS
        actions, rules = self.settings.actions, self.settings.rules
        return allowed_actions(actions, rules, task, kind, self.runtime_dir)

    def decide(
        self,
        kind: DecisionKind,
        incident: OpenIncident,
        task: ProcessKey | None,
        reason: str,
        evidence: Evidence,
        *,
        deadline_s: float | None = None,
    ) -> Decision:
        """
        Build a decision for an incident.

        Args:
            kind: what to do.
            incident: cause of the decision.
            task: task that the decision concerns; None: the machine.
            reason: one clause for people.
            evidence: figures behind the decision.
            deadline_s: seconds to wait for the answer.
        """
        return Decision(
            id=self.new_id(),
            kind=kind,
            incident=incident.id,
            resource=incident.resource,
            stage=incident.shown_stage,
            task=task,
            at_mono_s=self.mono_s,
            at_unix_s=self.unix_s,
            reason=reason,
            evidence=evidence,
            deadline_s=deadline_s,
        )


@dataclass(frozen=True, slots=True)
class Danger:
    """One resource with an open incident, and the tasks under it."""

    tick: Tick
    reading: Reading
    assessment: Assessment
    incident: OpenIncident
    tasks: Mapping[ProcessKey, Task]  # tasks under this resource
    agents: Mapping[ProcessKey, Sequence[AgentState]]  # by task

    @property
    def spec(self) -> ResourceSpec:
        """Properties of this kind of resource."""
        return SPECS[self.reading.key.kind]

    @property
    def left_s(self) -> float:
        """Seconds to exhaustion while the training runs; a cautious estimate."""
        return _CAREFUL * time_left_s(self.reading, self.incident.pace_per_s)

    def permits(self, task: Task | None) -> ActionSettings:
        """Return the switches for this task under this resource."""
        return self.tick.permits(task, self.reading.key.kind)

    def is_stopped(self, task: Task) -> bool:
        """Whether the task is stopped, or was paused and will stop soon."""
        return is_suspended(task, task.key in self.tick.paused)

    def save_order(self, task: Task) -> int:
        """Return the task's position in the order of saves. Pauses use the reverse order."""
        return _SAVE_ORDER.index(
            rule_priority(self.tick.settings.rules, task, self.reading.key.kind)
        )

    def decide(
        self,
        kind: DecisionKind,
        task: Task | None,
        reason: str,
        more: Evidence | None = None,
        deadline_s: float | None = None,
    ) -> Decision:
        """
        Build a decision about this resource, with the figures behind it.

        Args:
            kind: what to do.
            task: task that the decision concerns; None: the machine.
            reason: one clause for people.
            more: further figures.
            deadline_s: seconds to wait for the answer.
        """
        key = None if task is None else task.key
        evidence = {**self._base_evidence(task), **(more or {})}
        return self.tick.decide(kind, self.incident, key, reason, evidence, deadline_s=deadline_s)

    def _base_evidence(self, task: Task | None) -> dict[str, float | int | str | None]:
        reading, assessment = self.reading, self.assessment
        forecast = assessment.forecast
        left = time_left_s(reading, self.incident.pace_per_s)
        found: dict[str, float | int | str | None] = {
            "used": reading.used,
            "limit": reading.limit,
            "unit": reading.unit,
            "fatal": int(reading.fatal),
            "throttles": int(reading.throttles),
            "label": reading.label,
            "regime": assessment.regime.value,
            "slope_per_s": assessment.slope_per_s,
            "eta_s": None if forecast is None else forecast.eta_s,
            # JSON has no infinity, so a time that may be infinite becomes unknown.
            "low_s": None if forecast is None else number_or_none(forecast.low_s),
            "high_s": None if forecast is None else number_or_none(forecast.high_s),
            "pace_per_s": self.incident.pace_per_s,
            "left_s": number_or_none(left),
            "others_share": self.incident.attribution.others,
            "unaccounted_share": self.incident.attribution.unaccounted,
        }
        if assessment.expected is not None:
            found["expected"] = assessment.expected
        if task is None:
            return found
        found["name"] = task.name
        found["rss_bytes"] = task.rss_bytes
        for contributor in self.incident.attribution.contributors:
            if contributor.task == task.key:
                found["share"] = contributor.share
                found["task_slope_bytes_per_s"] = contributor.slope_bytes_per_s
        for agent in self.agents.get(task.key, ())[:1]:
            found["save_s"] = save_s(agent)
            found["step_s"] = step_s(agent)
            saved = self.tick.schedules[agent.key].saved_mono_s
            found["rescue_age_s"] = None if saved is None else self.tick.mono_s - saved
        return found


def agents_by_task(
    tasks: Sequence[Task], agents: Mapping[ProcessKey, AgentState]
) -> dict[ProcessKey, list[AgentState]]:
    """
    Group agents by the task that has their process as a member.

    Args:
        tasks: tasks of one sample.
        agents: by process.
    """
    found: dict[ProcessKey, list[AgentState]] = {}
    if agents:
        for task in tasks:
            inside = [agents[member.key] for member in task.members if member.key in agents]
            if inside:
                found[task.key] = inside
    return found


def longest_save_cost(agents: Sequence[AgentState]) -> SaveCost:
    """Return the longest save and the longest step under a resource. None: not known."""
    training = [agent for agent in agents if agent.training]
    saves = [agent.save_s for agent in training if agent.save_s is not None]
    steps = [agent.step_s for agent in training if agent.step_s is not None]
    return SaveCost(max(saves, default=None), max(steps, default=None))


def update_advice(
    danger: Danger,
    hardware: Hardware,
    swap: SwapTraffic,
    filling: Mapping[ProcessKey, Filling],
    growth: Mapping[ProcessKey, MemoryGrowth],
) -> None:
    """
    Update the incident's advice for people.

    Args:
        danger: one resource.
        hardware: hardware of the same sample.
        swap: swap traffic of the machine.
        filling: announced growth in progress, by task.
        growth: growth that agents reported, by task.
    """
    incident, assessment = danger.incident, danger.assessment
    first = next((each.task for each in incident.attribution.contributors), None)
    if first is not None and first in danger.agents:
        incident.trained.add(first)
    # Keep the earlier advice once the main task has ended or no longer trains.
    over = first is not None and (
        first not in danger.tasks or first in incident.trained - danger.agents.keys()
    )
    if incident.advice and (over or assessment.stage < Stage.WARN):
        return
    watts_of = {gpu.id: gpu.power_limit_w for gpu in hardware.gpus}
    # If the resource no longer grows, the advice depends on how it grew before.
    rests = assessment.forecast is None
    incident.advice = advice.build_advice(
        advice.Shortage(
            danger.reading,
            incident.attribution,
            incident.regime if rests else assessment.regime,
            assessment.slope_per_s,
            danger.tasks,
            danger.agents,
            swap,
            watts_of.get(danger.reading.device or ""),
            filling,
            growth,
        )
    )


_RELIEVED = 1.25  # the danger is over if the headroom grew by this factor since the decision
_NOISE_OTHER = 0.01  # share of the limit; noise of resources that are not measured in bytes


def is_still_valid(decision: Decision, readings: Sequence[Reading]) -> bool:
    """
    Whether a decision is still right after a new measurement.

    A save, a pause or a warning is dropped if its resource disappeared or has clearly more
    headroom. A resume is dropped if there is less headroom. Reports of past events always stay
    valid.

    Args:
        decision: made some milliseconds ago.
        readings: measured since.
    """
    topic = decision.evidence.get("topic")
    if decision.kind is DecisionKind.NOTIFY and topic != Topic.WARNING.value:
        return True
    reading = next((each for each in readings if each.key == decision.resource), None)
    used, limit = decision.evidence.get("used"), decision.evidence.get("limit")
    if reading is None or not isinstance(used, int | float) or not isinstance(limit, int | float):
        return False
    # A limit can drop below the used amount. The headroom is then 0, never negative.
    then, now = max(0.0, limit - used), max(0.0, reading.limit - reading.used)
    slack = noise_bytes(limit) if reading.unit == "bytes" else _NOISE_OTHER * limit
    if decision.kind is DecisionKind.RESUME:
        return now >= then / _RELIEVED - slack
    return now <= then * _RELIEVED + slack


def with_final_stage(
    assessment: Assessment,
    reading: Reading,
    agents: Sequence[AgentState],
    stages: StageSettings,
    *,
    expected: Expected | None = None,
    pace_per_s: float = 0.0,
) -> Assessment:
    """
    Return the assessment with its final stage, which depends on more than the trend.

    Checked in this order: a very cheap save, a stall at the limit, a need that no trend shows, the
    pace of the training.

    Args:
        assessment: assessment by the forecast alone.
        reading: reading of the resource.
        agents: agents under the resource.
        stages: settings.
        expected: a predicted need.
        pace_per_s: how fast the resource fills while no save delays the training.
    """
    spec, ends = SPECS[reading.key.kind], reading.fatal or reading.throttles
    if spec.scope is Scope.TIME:  # a planned end: notify once, as the agent saves before it
        return replace(assessment, stage=min(assessment.stage, Stage.WARN), rescue=False)
    # A program reserves address space in large steps, and may then stay at the limit without harm.
    standing = reading.key.kind is ResourceKind.RLIMIT_AS and assessment.forecast is None
    if standing and assessment.regime is Regime.UNKNOWN and expected is None:
        stage = min(assessment.stage, Stage.WATCH)
        return replace(assessment, stage=stage, notify=False, rescue=False)
    stage, why = assessment.stage, assessment.why
    notify, rescue = assessment.notify, assessment.rescue
    if not rescue and ends and _cheap_save_is_due(assessment, agents, stages):
        stage, rescue = max(stage, Stage.SAVE), True
    if reading.stalled:
        # A stalled resource no longer grows, so no trend shows the danger. The next event is a kill
        # by a service that reacts to memory pressure. While there is swap, full RAM alone only gets
        # a warning.
        stage = max(stage, Stage.SAVE if ends else Stage.WARN)
        notify, rescue = notify or assessment.ratio >= _NEAR, rescue or ends
        words = "its programs stall" if reading.throttles else "next to nothing is left"
        why = f"{why}; {words}"
    certain = notify
    if expected is not None:
        stage, why = max(stage, expected.stage), f"{expected.why}; {why}"
        notify, rescue = True, rescue or expected.stage >= Stage.SAVE
    if standing or not reading.fatal:
        # Pauses are only for growth that kills. Without fatal exhaustion, the worst case is a slow
        # machine.
        stage = min(stage, Stage.SAVE)
    elif certain and _is_at_the_end(reading, pace_per_s, max(stages.pause_s, spec.pause_s)):
        stage = Stage.PAUSE
    announced = None if expected is None else expected.why
    return replace(
        assessment, stage=stage, why=why, notify=notify, rescue=rescue, expected=announced
    )


def _cheap_save_is_due(
    assessment: Assessment, agents: Sequence[AgentState], stages: StageSettings
) -> bool:
    """
    Whether a doubtful forecast justifies a save that takes only tenths of a second.

    The forecast does not know which task grows, so the growth must last before it counts. A task
    that trains has finished its imports, so its imports cannot be the growth.
    """
    forecast = assessment.forecast
    if forecast is None or assessment.ratio < _NEAR:
        return False
    return any(
        agent.training
        and (agent.step or 0) >= _TRAINS_STEPS
        and agent.step_s is not None
        and agent.save_s is not None
        and agent.save_s <= _CHEAP * stages.save_floor_s
        and forecast.eta_s
        < max(stages.save_floor_s, (agent.save_s + agent.step_s) * stages.save_safety_factor)
        for agent in agents
    )


def _is_at_the_end(reading: Reading, pace_per_s: float, pause_s: float) -> bool:
    """
    Whether the resource is about to run out at the pace of the training.

    Saves slow down the growth that the trend sees. A training that is saved after every step can
    grow at a tenth of its real pace. The trend then says ten seconds, but the next three steps kill
    the training.
    """
    near = reading.limit > 0 and reading.used >= AT_THE_LIMIT * reading.limit
    return time_left_s(reading, pace_per_s) <= (pause_s if near else min(pause_s, _NO_TIME_S))
