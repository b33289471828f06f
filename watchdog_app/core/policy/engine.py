"""
Turn the readings of one sample into decisions. Pure: a replay uses the same object.

The snapshots are the only clock. Memory is bounded: the engine forgets tasks and resources that
disappear from the readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.diagnosis.device_health import DeviceProblems
from watchdog_app.core.diagnosis.evidence import should_notify
from watchdog_app.core.diagnosis.stalls import StallProblems
from watchdog_app.core.model.agent import AgentState, MemoryGrowth, ThreadDump
from watchdog_app.core.model.decisions import (
    NOBODY,
    Assessment,
    Attribution,
    Decision,
    DecisionKind,
    Incident,
    Observation,
    Outcome,
    Stage,
    TaskOutlook,
    Topic,
)
from watchdog_app.core.model.exits import Cause
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind, is_condition
from watchdog_app.core.model.runs import Past
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy import pausing
from watchdog_app.core.policy.anticipation import Thrashing, TrainingPhases
from watchdog_app.core.policy.danger import (
    Danger,
    Tick,
    agents_by_task,
    is_still_valid,
    update_advice,
    with_final_stage,
)
from watchdog_app.core.policy.incidents import Incidents, LastReport, OpenIncident, updated_pace
from watchdog_app.core.policy.past_runs import PastRuns
from watchdog_app.core.policy.reporting import (
    ReportCause,
    Reporting,
    exit_notification,
    with_notification,
)
from watchdog_app.core.policy.saving import Saving, UnsavedTrainings
from watchdog_app.core.policy.schedule import CheckpointSchedule
from watchdog_app.core.policy.tracker import Tracker, build_outlooks, without_stopped_growth

GAP_S = 30.0  # after a longer gap the old samples say nothing about the trend
_MOST_OPEN = 512  # most decisions without an outcome
_VERSION = 4  # version of the state that the next daemon restores
_RETURN_S = 30.0  # agents reconnect within some seconds; their saves are remembered until then
# Their reports stay on the screen when the daemon stops.
_DEVICE_FAULTS = (ResourceKind.GPU_HEALTH, ResourceKind.THROTTLING)
_STALE_S = 3600.0  # after an hour the saved state says nothing about the machine


@dataclass(frozen=True, slots=True)
class _SavedState:
    """State that the next daemon restores. Unanswered requests end with their connections."""

    version: int
    mono_s: float
    unix_s: float
    incidents: tuple[OpenIncident, ...]
    reports: dict[ReportCause, LastReport]
    saves: dict[ProcessKey, CheckpointSchedule]


@dataclass(frozen=True, slots=True)
class TickResult:
    """Result of one tick."""

    assessments: Mapping[ResourceKey, Assessment]
    decisions: tuple[Decision, ...]  # in the order in which to carry them out
    incidents: tuple[Incident, ...]  # open incidents, oldest first
    closed: tuple[Incident, ...]  # incidents that ended with this tick
    tasks: Mapping[ProcessKey, TaskOutlook]
    swap: SwapTraffic
    next_sample_s: float
    # Tasks that a GPU fault hit recently, and the fault: a possible reason for their exit.
    card_faults: Mapping[ProcessKey, str] = field(default_factory=dict)
    # Stalled tasks whose threads the caller should dump now (`Engine.add_thread_dump`).
    stalled: tuple[ProcessKey, ...] = ()
    # Growth that agents reported.
    growth: Mapping[ProcessKey, MemoryGrowth] = field(default_factory=dict)
    # Tasks that cause the growth of a resource.
    blamed: Mapping[ResourceKey, Attribution] = field(default_factory=dict)
    unsaved: frozenset[ProcessKey] = frozenset()  # tasks that train without an agent
    past: Mapping[ProcessKey, Past] = field(default_factory=dict)  # earlier runs of the tasks


class Engine:
    """
    The histories, forecasts, incidents and requests of one machine.

    Args:
        settings: assign to `settings` to replace them at any time; histories are kept.
        own_uid: user whose tasks watchdog may pause.
        runtime_dir: runtime folder of this daemon. Tasks that name another folder are left to that
            daemon. None: handle every task.
        offered: environments in which saving was offered; see `UnsavedTrainings`.
    """

    def __init__(
        self,
        settings: Settings,
        own_uid: int,
        runtime_dir: str | None = None,
        offered: set[str] | None = None,
    ) -> None:
        self._runtime_dir = runtime_dir
        self._own_uid = own_uid
        self.settings = settings
        self._tracker = Tracker(settings)
        self._phases = TrainingPhases()
        self._predictors = (self._phases, Thrashing())
        self.past = PastRuns()
        self._incidents = Incidents()
        self._reporting = Reporting()
        self._saving = Saving()
        self._open: dict[str, Decision] = {}  # decisions that have no outcome yet, oldest first
        self._devices, self._stalls = DeviceProblems(), StallProblems()
        self._growth: dict[ProcessKey, MemoryGrowth] = {}  # growth that agents reported
        self._unsaved = UnsavedTrainings(set() if offered is None else offered)
        self._clock = (0.0, 0.0)  # monotonic and Unix time of the last tick
        self._passed_s = 0.0  # seconds since the previous tick
        self._issued = 0
        self.wants_tick = False
        self.protecting = True  # False: sample and forecast only, decide nothing

    def tick(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        readings: Sequence[Reading],
        agents: Mapping[ProcessKey, AgentState],
    ) -> TickResult:
        """
        Process one sample of the machine and decide what to do.

        Args:
            snapshot: gives the time and the machine's counters.
            tasks: tasks of this snapshot.
            readings: every resource of this snapshot.
            agents: by the process that runs the agent. The agent belongs to the task that has this
                process as a member.
        """
        now = snapshot.mono_s
        self._passed_s = now - self._clock[0]
        self._clock = (now, snapshot.unix_s)
        self.wants_tick = False
        observation = Observation(
            snapshot, {task.key: task for task in tasks}, readings, agents_by_task(tasks, agents)
        )
        self._observe(observation, agents)
        tick = self._tick(snapshot)
        assessments: dict[ResourceKey, Assessment] = {}
        blamed: dict[ResourceKey, Attribution] = {}
        dangers: list[Danger] = []
        for reading in readings:
            key = reading.key
            assessment, blamed[key], danger = self._assess(tick, observation, reading)
            assessments[key] = without_stopped_growth(assessment, blamed[key], observation.tasks)
            dangers += [] if danger is None else [danger]
        filling = self._phases.filling() if dangers else {}
        for danger in dangers:
            update_advice(danger, snapshot.hardware, self._tracker.swap, filling, self._growth)
        decisions = self._decide(dangers)
        closed, over = self._close_incidents(dangers, observation)
        found, ended = self._update_problems(tick, observation)
        offers = [*self._offer_saving(tick, observation), *self.past.due_notifications(tick)]
        incidents = self._incidents.to_incidents()
        return TickResult(
            assessments=assessments,
            decisions=tuple(
                with_notification(each, observation, incidents)
                for each in (*decisions, *over, *found, *offers)
            ),
            incidents=tuple(incidents.values()),
            closed=(*closed, *ended),
            tasks=build_outlooks(tasks, self._tracker.usage, readings, assessments, blamed),
            swap=self._tracker.swap,
            next_sample_s=self._next_sample_s(agents),
            card_faults=self._devices.faults,
            stalled=tuple(self._stalls.wanted),
            growth=self._growth,
            blamed=blamed,
            unsaved=self._unsaved.trainings,
            past=self.past.of_tasks(),
        )

    def reset_trends(self) -> None:
        """
        Forget all trends; keep incidents and requests.

        Call it after the machine slept: the monotonic clock shows no gap, and the battery has
        drained.
        """
        self._tracker = Tracker(self.settings)

    def record(self, outcome: Outcome) -> None:
        """
        Record the outcome of a decision. Call it as soon as the outcome is known.

        A completed save makes the next decision due: the next save, or the pause that waited for
        it. `wants_tick` is then true, and the caller should tick as soon as possible.
        """
        # Never use wall-clock time: it continues for hours during a suspend, and people set it.
        now = self._clock[0] if outcome.at_mono_s is None else outcome.at_mono_s
        now = max(now, self._clock[0])
        decision = self._open.pop(outcome.decision, None)
        if decision is None:
            return
        if decision.evidence.get("topic") == Topic.UNSAVED.value:
            self._unsaved.record(decision, outcome.status)
            return
        incident, topic = self._incidents.get(decision.resource), None
        if decision.kind is DecisionKind.CHECKPOINT:
            topic = self._saving.record(decision, outcome, now, incident)
            self.wants_tick = True
        elif incident is not None and incident.id == decision.incident:
            topic = pausing.record_outcome(incident, decision, outcome, now)
        if topic is not None:
            self._reporting.queue.append((topic, decision, outcome.detail, outcome.evidence))

    is_still_valid = staticmethod(is_still_valid)  # checks a decision against a second measurement

    def task_ended(
        self, task: Task, agent: AgentState | None, cause: Cause, snapshot: Snapshot
    ) -> tuple[Decision, ...]:
        """
        Return the notification that a task has died, if it is news and notifications are allowed.

        Args:
            task: the task's last state.
            agent: the last state of its agent.
            cause: result of `core.diagnosis.causes.diagnose`.
            snapshot: gives the time.
        """
        tick, incident = self._tick(snapshot), self._incidents.find_by_task(task.key)
        kind = ResourceKind.RAM if incident is None else incident.resource.kind
        may_notify = tick.permits(task, kind, when_off=True).notify
        if not may_notify or not should_notify(cause, agent):
            return ()
        decision = exit_notification(tick, task, agent, cause, incident)
        agents = {} if agent is None else {task.key: (agent,)}
        observation = Observation(snapshot, {task.key: task}, (), agents)
        return (with_notification(decision, observation, self._incidents.to_incidents()),)

    def add_thread_dump(self, task: Task, dump: ThreadDump) -> None:
        """
        Add a thread dump of a stalled task, one of `TickResult.stalled`.

        Args:
            task: current state of the task.
            dump: dump of its threads.
        """
        card_fault = self._devices.faults.get(task.key)
        self._stalls.add_thread_dump(task, dump, card_fault)
        self.wants_tick = True  # the notification waits for the dump

    def add_memory_growth(self, task: ProcessKey, growth: MemoryGrowth) -> None:
        """
        Add the growth that an agent found in its task. It becomes advice of the task's incidents.

        Args:
            task: key of the task.
            growth: the agent's report.
        """
        self._growth[task] = growth

    def dump(self) -> dict[str, Any]:
        """Return the state for the next daemon as plain values: incidents, cool-downs, saves."""
        incidents = tuple(self._incidents.values())
        reports, saves = self._reporting.reports, self._saving.schedules
        kept = _SavedState(_VERSION, *self._clock, incidents, reports, saves)
        return codec.encode(kept)  # type: ignore[no-any-return]

    def load(self, value: Mapping[str, Any], mono_s: float, unix_s: float) -> None:
        """
        Restore the state that `dump` returned.

        Call it before the first tick, with the current clocks. The state must be of the same boot.

        Args:
            value: result of `dump`, through JSON.
            mono_s: monotonic clock now.
            unix_s: wall clock now.

        Raises:
            ValueError: the values are damaged, of another version, or older than an hour. The
                engine is unchanged and starts without the old state.
        """
        unusable = "the state of an earlier daemon cannot be used"
        try:
            kept: _SavedState = codec.decode(_SavedState, value)
        except ValueError as error:
            raise ValueError(f"{unusable}: {error}") from error
        # Use only the monotonic clock: somebody may have set the wall clock in between.
        age_s = mono_s - kept.mono_s
        if kept.version != _VERSION or not 0 <= age_s <= _STALE_S:
            raise ValueError(f"{unusable}: version {kept.version}, written {age_s:.0f} s ago")
        self._incidents = Incidents({each.resource: each for each in kept.incidents})
        self._reporting = Reporting(kept.reports)
        self._saving = Saving(kept.saves, agents_due_mono_s=mono_s + _RETURN_S)
        self._open = {}
        self._clock = (mono_s, unix_s)

    def repeat_warnings(self) -> None:
        """
        Report the warnings that are still true once more.

        Call it before the last `dump` of a daemon that removes its warnings from the screen.
        """
        for incident in self._incidents.values():
            last, is_fault = incident.last_report, incident.resource.kind in _DEVICE_FAULTS
            if last is not None and not is_fault:
                incident.last_report = replace(last, stage=Stage.OK)
        reports = self._reporting.reports
        reports |= {cause: replace(last, stage=Stage.OK) for cause, last in reports.items()}

    @property
    def paused_tasks(self) -> frozenset[ProcessKey]:
        """Tasks that watchdog paused and that are not resumed yet."""
        return frozenset(key for each in self._incidents.values() for key in each.paused)

    # Parts of one tick

    def _observe(self, observation: Observation, agents: Mapping[ProcessKey, AgentState]) -> None:
        """Add one sample to all histories; forget tasks and resources that disappeared."""
        if self._passed_s > GAP_S:
            self.reset_trends()
        if self.settings is not self._tracker.settings:
            self._tracker.configure(self.settings)
        self._tracker.update(observation)
        for ident, failed in self._saving.observe(agents, observation.snapshot.mono_s):
            decision = self._open.pop(ident, None)
            if decision is not None and failed:
                waited = format_duration(decision.deadline_s)
                reason = f"no answer for {waited}: no step has ended in that time"
                self._reporting.queue.append((Topic.RESCUE_FAILED, decision, reason, {}))
        for predictor in self._predictors:
            predictor.update(observation, self._tracker)
        self.past.update(observation, self._tracker)
        usage = self._tracker.usage
        self._unsaved.update(observation, {key: each.cpu_percent for key, each in usage.items()})
        self._growth = {key: each for key, each in self._growth.items() if key in observation.tasks}

    def _tick(self, snapshot: Snapshot) -> Tick:
        return Tick(
            snapshot.mono_s,
            snapshot.unix_s,
            self.settings,
            self._own_uid,
            self._runtime_dir,
            self.protecting,
            self._saving.schedules,
            self.paused_tasks,
            partial(self._new_id, snapshot.unix_s),
        )

    def _assess(
        self, tick: Tick, observation: Observation, reading: Reading
    ) -> tuple[Assessment, Attribution, Danger | None]:
        """Return the resource's assessment, the tasks that cause its growth, and its danger."""
        tasks = {key: observation.tasks[key] for key in reading.tasks if key in observation.tasks}
        agents = {key: observation.agents[key] for key in tasks if key in observation.agents}
        under = [agent for each in agents.values() for agent in each]
        forecast = self._tracker.assess(reading, under, early=self.past.asks_early(reading))
        forecast = self.past.with_past_eta(reading, forecast)
        foreseen = (predictor.predict(reading) for predictor in self._predictors)
        expected = next(filter(None, foreseen), None)
        incident = self._incidents.get(reading.key)
        pace_per_s = updated_pace(
            0.0 if incident is None else incident.pace_per_s,
            forecast.slope_per_s,
            self._tracker.pace_per_s(reading.key),
            self._passed_s,
            saving=any(agent.saving for agent in under),
        )
        stages = self.settings.stages
        assessment = with_final_stage(
            forecast, reading, under, stages, expected=expected, pace_per_s=pace_per_s
        )
        alarming = assessment.stage >= Stage.WARN or assessment.notify
        if incident is None and alarming:
            incident = self._incidents.open(
                reading.key, reading.label, observation.snapshot, tick.new_id
            )
        attribution = NOBODY
        if incident is not None or assessment.forecast is not None:
            attribution = self._tracker.attribute(reading, assessment, tasks)
        if incident is None:
            return assessment, attribution, None
        if alarming:
            incident.set_attribution(attribution, expected)
        incident.pace_per_s = pace_per_s
        incident.update(assessment, tick.mono_s)
        if expected is None and assessment.stage < Stage.PAUSE and assessment.notify:
            low_s = 0.0 if forecast.forecast is None else forecast.forecast.low_s
            quiet = self._phases.explains(reading, incident.attribution, tasks.values(), low_s)
            quiet = quiet or self.past.is_known_ground(reading, incident.attribution)
            assessment = replace(assessment, notify=not quiet)
        danger = Danger(tick, reading, assessment, incident, tasks, agents)
        return assessment, attribution, danger

    def _decide(self, dangers: Sequence[Danger]) -> list[Decision]:
        """Return all decisions of a tick, in the order in which to carry them out."""
        decisions: list[Decision] = []
        for danger in sorted(dangers, key=lambda danger: (-danger.assessment.stage, danger.left_s)):
            decisions += self._decide_resource(danger)
        decisions += self._reporting.outcome_notifications(dangers)
        for decision in decisions:
            self._open[decision.id] = decision
        while len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return decisions

    def _decide_resource(self, danger: Danger) -> Iterator[Decision]:
        """Yield the gentlest decisions first: resume, notify, save, pause."""
        yield from pausing.update_paused(danger)
        saves = list(self._saving.due(danger))
        pause = None
        pausing.expire_pauses(danger)
        target = pausing.pause_target(danger, pausing.tasks_being_paused(self._incidents.values()))
        if target is not None:
            first = pausing.unsaved_agent(danger, target)
            if first is None:
                pause = pausing.pause(danger, target)
            elif danger.tick.schedules[first.key].pending is None and not first.saving:
                why = "is saved once more before it is paused"
                saves.append(self._saving.request_save(danger, target, first, why, final=True))
        # The outcome of a pause gets a notification of its own.
        incident = danger.incident
        will_pause = target is not None or bool(incident.pausing or incident.unpausable)
        warning = self._reporting.warning(danger, will_pause)
        if warning is not None:
            yield warning
        yield from saves
        if pause is not None:
            yield pause

    def _close_incidents(
        self, dangers: Sequence[Danger], observation: Observation
    ) -> tuple[list[Incident], list[Decision]]:
        """
        Close the incidents of resources that stayed calm. Report it if the danger was reported.
        """
        closed: list[Incident] = []
        decisions: list[Decision] = []
        by_resource = {danger.reading.key: danger for danger in dangers}
        now = observation.snapshot.mono_s
        for key, incident in list(self._incidents.items()):
            danger = by_resource.get(key)
            if is_condition(key):
                continue
            if danger is not None:
                if not incident.is_over(now, self.settings.stages.settle_s):
                    continue
                over = self._reporting.resolved(danger)
                decisions += [] if over is None else [over]
            elif pausing.has_stopped_task(incident, observation.tasks, now):
                continue  # keep the incident while a task that it paused is still paused
            # Without a danger the resource itself has disappeared, with its group or its task.
            closed.append(incident.to_incident(observation.snapshot.unix_s))
            del self._incidents[key]
        return closed, decisions

    def _update_problems(
        self, tick: Tick, observation: Observation
    ) -> tuple[list[Decision], list[Incident]]:
        """
        Open, update and close the incidents of faults, slowdowns and stalls.

        Returns:
            The notifications that are due, and the incidents that have ended.
        """
        decisions: list[Decision] = []
        closed: list[Incident] = []
        incidents = self._incidents
        known = {key: each.to_incident() for key, each in incidents.items() if is_condition(key)}
        for problem in (
            *self._devices.observe(observation, known),
            *self._stalls.observe(observation, self.settings.stalls, known),
        ):
            incident = incidents.open(problem.key, problem.label, observation.snapshot, tick.new_id)
            if not problem.at_once:
                incident.update_from_problem(problem, tick.mono_s)
            task = problem.tasks[0].task if problem.tasks else None
            found = None if task is None else observation.tasks.get(task)
            notify = tick.permits(found, problem.key.kind, when_off=problem.when_off).notify
            if problem.stage is not Stage.OK:
                notify = notify and self._reporting.is_problem_due(incident, problem, tick)
            elif problem.at_once or incident.is_over(tick.mono_s, self.settings.stages.settle_s):
                notify = notify and problem.reason != "" and incident.last_report is not None
                closed.append(incident.to_incident(tick.unix_s))
                del incidents[problem.key]
            else:
                continue
            if notify:
                kind, evidence = DecisionKind.NOTIFY, problem.evidence
                decisions.append(tick.decide(kind, incident, task, problem.reason, evidence))
        return decisions, closed

    def _offer_saving(self, tick: Tick, observation: Observation) -> list[Decision]:
        """Return the offers to turn saving on that are due."""
        if not self.settings.hints.saving:
            return []
        found = list(self._unsaved.due_offers(tick, observation.tasks))
        self._open.update((each.id, each) for each in found)
        return found

    def _next_sample_s(self, agents: Mapping[ProcessKey, AgentState]) -> float:
        fast, slow = self.settings.watch.fast_interval_s, self.settings.watch.interval_s
        if (
            any(agent.saving for agent in agents.values())
            or any(schedule.pending is not None for schedule in self._saving.schedules.values())
            or self._reporting.queue
            or pausing.tasks_being_paused(self._incidents.values())
        ):
            return fast
        return min(slow, max(fast, self._tracker.next_sample_s))

    def _new_id(self, unix_s: float) -> str:
        # The time separates the ids of different daemons, the number the ids of one tick.
        self._issued += 1
        return f"{int(unix_s * 1000):x}-{self._issued}"
