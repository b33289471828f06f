"""
One tick: from what was read to what shall be done. Pure; a replay drives the same object.

Time comes in with the snapshots alone. Memory is bounded: what is gone from
the readings is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watchdog_app.base import codec
from watchdog_app.core.diagnosis.exits import should_notify
from watchdog_app.core.explain import advice
from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.agent import AgentState, MemoryGrowth, ThreadDump
from watchdog_app.core.model.decisions import (
    Assessment,
    Attribution,
    Decision,
    DecisionKind,
    Incident,
    Outcome,
    Stage,
    TaskOutlook,
)
from watchdog_app.core.model.exits import Cause
from watchdog_app.core.model.history import PastSample
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import (
    SPECS,
    Reading,
    ResourceKey,
    ResourceKind,
    is_condition,
)
from watchdog_app.core.model.settings import ActionSettings, Settings
from watchdog_app.core.policy import anticipation, pausing
from watchdog_app.core.policy.danger import (
    PACE_WINDOW_S,
    Danger,
    agents_by_task,
    by_evidence,
    by_expectation,
    by_pace,
    still_holds,
)
from watchdog_app.core.policy.incidents import (
    LastReport,
    OpenIncident,
    Problem,
    follow,
    follow_problem,
    opened,
)
from watchdog_app.core.policy.policy import Policy
from watchdog_app.core.policy.problems import DeviceProblems, Look, StallProblems
from watchdog_app.core.policy.reporting import Cause as ReportCause
from watchdog_app.core.policy.reporting import exit_notification
from watchdog_app.core.policy.rules import allowed, unprotected
from watchdog_app.core.policy.saving import CheckpointSchedule
from watchdog_app.core.policy.tracker import Tracker, outlooks

GAP_S = 30.0  # nothing is known of what happened in a longer gap, and it is no trend
_VERSION = 4  # of what is kept for the next daemon
_RETURN_S = 30.0  # agents connect anew within some seconds; till then their saves are remembered
_STALE_S = 3600.0  # the machine of an hour ago says nothing about this one


@dataclass(frozen=True, slots=True)
class _Kept:
    """What outlives the daemon. An unanswered request does not: its connection ends with us."""

    version: int
    mono_s: float
    unix_s: float
    incidents: tuple[OpenIncident, ...]
    reports: dict[ReportCause, LastReport]
    saves: dict[ProcessKey, CheckpointSchedule]


@dataclass(frozen=True, slots=True)
class TickResult:
    """What a tick made of its snapshot."""

    assessments: Mapping[ResourceKey, Assessment]
    decisions: tuple[Decision, ...]  # in the order in which to carry them out
    incidents: tuple[Incident, ...]  # open ones, oldest first
    closed: tuple[Incident, ...]  # those that ended with this tick
    tasks: Mapping[ProcessKey, TaskOutlook]
    swap_in_bytes_per_s: float | None
    swap_out_bytes_per_s: float | None
    next_look_s: float
    # Tasks that a card's fault has hit lately, and what it was: why they may end.
    card_faults: Mapping[ProcessKey, str] = field(default_factory=dict)
    # Stalled trainings: those whose threads are to be looked at now (`threads_seen`), and by task
    # what was seen.
    stalled: tuple[ProcessKey, ...] = ()
    stalled_threads: Mapping[ProcessKey, tuple[str, ...]] = field(default_factory=dict)
    growth: Mapping[ProcessKey, MemoryGrowth] = field(
        default_factory=dict
    )  # what agents saw growing


class Engine:
    """
    The series, forecasts, incidents and requests of one machine.

    Args:
        settings: may be replaced at any time by assigning to `settings`; histories are kept.
        own_uid: whose tasks may be paused.
        can_pause: whether this system can pause processes at all.
        runtime_dir: of this daemon; tasks that name another are left to that one. None: any.
    """

    def __init__(
        self,
        settings: Settings,
        own_uid: int,
        can_pause: bool = True,
        runtime_dir: str | None = None,
    ) -> None:
        self._runtime_dir = runtime_dir
        self._own_uid = own_uid
        self._can_pause = can_pause
        self._series = Tracker(settings)
        self._anticipation = anticipation.Anticipation()
        self._policy = Policy()
        self._devices = DeviceProblems()
        self._stalls = StallProblems()
        self._growth: dict[ProcessKey, MemoryGrowth] = {}  # what agents have seen growing
        self._clock: tuple[float, float] | None = None  # mono, unix of the last tick
        self._passed_s = 0.0  # since the tick before
        self._issued = 0
        self.wants_tick = False
        self.protecting = True  # False: watch and foresee, and decide nothing

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._series.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._series.settings = settings

    def tick(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        readings: Sequence[Reading],
        agents: Mapping[ProcessKey, AgentState],
    ) -> TickResult:
        """
        Take one look at the machine and say what it means and what to do.

        Args:
            snapshot: gives the time and the machine's counters.
            tasks: of this snapshot.
            readings: every resource of this snapshot.
            agents: by the process that holds the agent; it belongs to the task that has this
                process as a member.
        """
        now = snapshot.mono_s
        self._passed_s = 0.0 if self._clock is None else now - self._clock[0]
        self._clock = (now, snapshot.unix_s)
        self.wants_tick = False
        series = self._series
        if self._passed_s > GAP_S:
            series.reset_trends()
        with_agent = agents_by_task(tasks, agents)
        series.follow(snapshot, tasks, readings, with_agent)
        self._policy.observe_agents(agents, now)
        self._anticipation.forget({reading.key for reading in readings})
        seen = (series.usage, with_agent)
        self._anticipation.follow(now, snapshot.host, series.swap, tasks, seen)
        everyone = {task.key: task for task in tasks}
        assessments: dict[ResourceKey, Assessment] = {}
        blamed: dict[ResourceKey, Attribution] = {}
        dangers: list[Danger] = []
        for reading in readings:
            under = {key: everyone[key] for key in reading.tasks if key in everyone}
            at_risk = {key: with_agent[key] for key in under if key in with_agent}
            assessment = by_evidence(
                series.assess(reading, at_risk, now), reading, at_risk, self.settings.stages
            )
            expected = self._anticipation.expect(reading)
            surely = assessment.notify
            assessment = by_expectation(assessment, expected)
            incident = self._policy.incidents.get(reading.key)
            if incident is None and (assessment.stage >= Stage.WARN or assessment.notify):
                incident = self._opened(reading.key, reading.label, snapshot)
            if assessment.forecast is not None or incident is not None:
                blamed[reading.key] = series.attribute(reading, assessment, under)
            if incident is not None:
                if assessment.stage >= Stage.WARN or assessment.notify:
                    incident.blame(anticipation.blamed(blamed[reading.key], expected))
                assessment = self._follow_incident(incident, reading, assessment, at_risk, surely)
                if expected is None and assessment.stage < Stage.HOLD and assessment.notify:
                    quiet = self._anticipation.explains(
                        reading, incident.attribution, under.values()
                    )
                    assessment = replace(assessment, notify=not quiet)
                dangers.append(
                    self._danger(snapshot, reading, assessment, incident, (under, at_risk))
                )
            assessments[reading.key] = assessment
        self._growth = {key: each for key, each in self._growth.items() if key in everyone}
        self._advise(snapshot, dangers)
        decisions = self._policy.decide(dangers)
        closed, over = self._close(dangers, everyone, snapshot)
        cpu_percent = {key: each.cpu_percent for key, each in series.usage.items()}
        look = Look(snapshot, everyone, with_agent, cpu_percent, self.settings)
        problems = [
            *self._follow_problems(self._devices.observe(look, self._policy.incidents), look),
            *self._follow_problems(self._stalls.observe(look, self._policy.incidents), look),
        ]
        still_open = sorted(self._policy.incidents.values(), key=lambda each: each.opened_mono_s)
        incidents = {incident.id: incident.public() for incident in still_open}
        decided = (*decisions, *over, *(each for each, _ in problems if each is not None))
        return TickResult(
            assessments=assessments,
            decisions=tuple(_worded(each, everyone, with_agent, incidents) for each in decided),
            incidents=tuple(incidents.values()),
            closed=(*closed, *(each for _, each in problems if each is not None)),
            tasks=outlooks(tasks, series.usage, readings, assessments, blamed),
            swap_in_bytes_per_s=series.swap.in_per_s,
            swap_out_bytes_per_s=series.swap.out_per_s,
            next_look_s=self._next_look(agents),
            card_faults=self._devices.faults,
            stalled=tuple(self._stalls.wanted),
            stalled_threads=self._stalls.lines(),
            growth=self._growth,
        )

    def recall(self, past: Mapping[ResourceKey, Sequence[PastSample]]) -> None:
        """
        Take in what glances measured since the last tick; call it before the next.

        Args:
            past: by resource, oldest first, all later than the last tick.
        """
        self._series.recall(past)
        last = max((each[-1].mono_s for each in past.values() if each), default=None)
        if last is not None and self._clock is not None and last > self._clock[0]:
            # The machine was seen meanwhile: that is no gap.
            self._clock = (last, self._clock[1] + last - self._clock[0])

    def reset_trends(self) -> None:
        """
        Forget how everything moved; incidents and what was done stay.

        For a machine that slept: its clock shows no gap, and its battery has been drained.
        """
        self._series.reset_trends()

    def record(self, outcome: Outcome) -> None:
        """
        Learn what became of a decision; call it as soon as it is known.

        A save that is done makes the next decision due (the next save, or the pause that waited
        for it): `wants_tick` is true then, and the sooner the next tick comes, the better.
        """
        if self._clock is None:
            return
        # Never by wall times: in a suspend that clock runs on by hours, and people set it.
        now = self._clock[0] if outcome.at_mono_s is None else outcome.at_mono_s
        kind = self._policy.record(outcome, max(now, self._clock[0]))
        if kind is DecisionKind.CHECKPOINT:
            self.wants_tick = True

    @staticmethod
    def still_holds(decision: Decision, readings: Sequence[Reading]) -> bool:
        """Whether a decision holds in the light of a second measurement; `core.recheck`."""
        return still_holds(decision, readings)

    def death(
        self, task: Task, agent: AgentState | None, cause: Cause, snapshot: Snapshot
    ) -> tuple[Decision, ...]:
        """
        The notification that a task has died, where it is news and may be told.

        Args:
            task: as it was last seen.
            agent: the one that it held.
            cause: from `core.deaths.diagnose`.
            snapshot: for the time.
        """
        # That it stood still is no reason of a death, and who silences stalls does not mean deaths.
        open_ones = [
            each
            for each in self._policy.incidents.values()
            if each.resource.kind is not ResourceKind.STALLED
        ]
        incident = next((each for each in open_ones if each.blames(task.key)), None)
        kind = ResourceKind.RAM if incident is None else incident.resource.kind
        switches = allowed(
            self.settings.actions, self.settings.rules, task, kind, self._runtime_dir
        )
        if not switches.notify or not should_notify(cause, agent):
            return ()
        ident = self._new_id(snapshot.unix_s)
        decision = exit_notification(
            ident, task, agent, cause, snapshot=snapshot, incident=incident
        )
        about = None if incident is None else incident.public()
        return (replace(decision, notification=notification(decision, task, agent, about)),)

    def threads_seen(self, task: Task, dump: ThreadDump) -> None:
        """
        Learn what the threads of a stalled task do: one of `TickResult.stalled`.

        Args:
            task: as it is now.
            dump: of its threads.
        """
        card_fault = self._devices.faults.get(task.key)
        self._stalls.threads_seen(task, dump, self._series.swap, card_fault)
        self.wants_tick = True  # the notification has waited for it

    def grew(self, task: ProcessKey, growth: MemoryGrowth) -> None:
        """
        Learn what grows in a task: it becomes the advice of its incidents.

        Args:
            task: by its key.
            growth: as its agent reported it.
        """
        self._growth[task] = growth

    def report_again(self, incidents: Collection[str]) -> None:
        """
        Report these incidents again if they are still a danger: the notification was not
        delivered.
        """
        for incident in self._policy.incidents.values():
            if incident.id in incidents:
                self._policy.reporting.forget(incident)

    def dump(self) -> dict[str, Any]:
        """The state for the next daemon as plain values: incidents, cool-downs, saves."""
        policy, (mono_s, unix_s) = self._policy, self._clock or (0.0, 0.0)
        incidents, reports = tuple(policy.incidents.values()), policy.reporting.reports
        kept = _Kept(_VERSION, mono_s, unix_s, incidents, reports, policy.schedules)
        return codec.encode(kept)  # type: ignore[no-any-return]

    def load(self, value: Mapping[str, Any], mono_s: float, unix_s: float) -> None:
        """
        Restore the state that `dump` returned. Call it before the first tick with the current
        clocks. The state must be of the same boot.

        Raises:
            ValueError: the values are damaged, of another version, or older than an hour.
                Nothing was changed: the engine starts afresh.
        """
        try:
            kept = _decoded(value, mono_s)
        except ValueError as error:
            raise ValueError(f"the state of an earlier daemon cannot be used: {error}") from error
        self._policy = policy = Policy()
        policy.incidents = {each.resource: each for each in kept.incidents}
        policy.reporting.reports = kept.reports
        policy.schedules = kept.saves
        policy.agents_due_mono_s = mono_s + _RETURN_S
        self._clock = (mono_s, unix_s)

    @property
    def held(self) -> frozenset[ProcessKey]:
        """Tasks that watchdog paused and that were not resumed since."""
        return self._policy.held

    # One tick, in parts

    def _follow_incident(
        self,
        incident: OpenIncident,
        reading: Reading,
        assessment: Assessment,
        agents: Mapping[ProcessKey, list[AgentState]],
        surely: bool,
    ) -> Assessment:
        """Bring an incident up to date; the assessment with the stage that follows from both."""
        recent = None
        if not SPECS[reading.key.kind].in_steps:
            recent = self._series.rate(reading.key, PACE_WINDOW_S)
        held = any(agent.saving for each in agents.values() for agent in each)
        incident.pace(assessment.slope_per_s, recent, self._passed_s, held)
        if surely or not reading.fatal:
            pause_s = self.settings.stages.pause_s
            assessment = by_pace(assessment, reading, incident, pause_s)
        follow(incident, assessment, self._now())
        return assessment

    def _danger(
        self,
        snapshot: Snapshot,
        reading: Reading,
        assessment: Assessment,
        incident: OpenIncident,
        people: tuple[Mapping[ProcessKey, Task], Mapping[ProcessKey, list[AgentState]]],
    ) -> Danger:
        return Danger(
            mono_s=snapshot.mono_s,
            unix_s=snapshot.unix_s,
            settings=self.settings if self.protecting else unprotected(self.settings),
            own_uid=self._own_uid,
            runtime_dir=self._runtime_dir,
            can_pause=self._can_pause,
            reading=reading,
            assessment=assessment,
            incident=incident,
            tasks=people[0],
            agents=people[1],
            schedules=self._policy.schedules,
            new_id=self._ids(snapshot),
            held=self._policy.held,
        )

    def _opened(self, key: ResourceKey, label: str, snapshot: Snapshot) -> OpenIncident:
        return opened(self._policy.incidents, key, label, snapshot, self._ids(snapshot))

    def _follow_problems(
        self, problems: Iterable[Problem], look: Look
    ) -> Iterator[tuple[Decision | None, Incident | None]]:
        """Bring the incidents of these up to date: what is to be told, and what was closed."""
        now, incidents = look.snapshot.mono_s, self._policy.incidents
        stages, reporting = self.settings.stages, self._policy.reporting
        for problem in tuple(problems):
            incident = self._opened(problem.key, problem.label, look.snapshot)
            if not problem.at_once:
                follow_problem(incident, problem, now)
            task = problem.tasks[0].task if problem.tasks else None
            permits = self._permits(look.tasks.get(task) if task else None, problem.key.kind)
            told = (self.protecting or problem.when_off) and permits.notify
            closed = None
            if problem.stage is Stage.OK:
                if not problem.at_once and not incident.over(now, stages.settle_s):
                    continue
                told = told and problem.reason != "" and incident.last_report is not None
                closed = incident.public(look.snapshot.unix_s)
                del incidents[problem.key]
            else:
                told = told and reporting.problem(incident, problem, now, stages.cooldown_s)
            yield (
                self._notification(incident, problem, task, look.snapshot) if told else None,
                closed,
            )

    def _notification(
        self,
        incident: OpenIncident,
        problem: Problem,
        task: ProcessKey | None,
        snapshot: Snapshot,
    ) -> Decision:
        return Decision(
            id=self._new_id(snapshot.unix_s),
            kind=DecisionKind.NOTIFY,
            incident=incident.id,
            resource=incident.resource,
            stage=incident.stage,
            task=task,
            at_mono_s=snapshot.mono_s,
            at_unix_s=snapshot.unix_s,
            reason=problem.reason,
            evidence=problem.evidence,
        )

    def _permits(self, task: Task | None, kind: ResourceKind) -> ActionSettings:
        settings = self.settings
        return allowed(settings.actions, settings.rules, task, kind, self._runtime_dir)

    def _close(
        self, dangers: Sequence[Danger], tasks: Mapping[ProcessKey, Task], snapshot: Snapshot
    ) -> tuple[list[Incident], list[Decision]]:
        """Close incidents of resources after a calm; report it if the danger was reported."""
        closed: list[Incident] = []
        decisions: list[Decision] = []
        by_resource = {danger.reading.key: danger for danger in dangers}
        for key, incident in list(self._policy.incidents.items()):
            danger = by_resource.get(key)
            if is_condition(key):
                continue
            if danger is not None:
                if not incident.over(snapshot.mono_s, self.settings.stages.settle_s):
                    continue
                over = self._policy.reporting.over(danger)
                decisions += [] if over is None else [over]
            elif pausing.holds_somebody(incident, tasks, snapshot.mono_s):
                continue  # who is paused on its account must not be forgotten
            # Without a danger the resource itself is gone, its group or its task with it.
            closed.append(incident.public(snapshot.unix_s))
            del self._policy.incidents[key]
        return closed, decisions

    def _advise(self, snapshot: Snapshot, dangers: Sequence[Danger]) -> None:
        """What people can do about each danger."""
        watts_of = {gpu.id: gpu.power_limit_w for gpu in snapshot.hardware.gpus}
        filling = self._anticipation.filling() if dangers else {}
        for danger in dangers:
            incident, assessment = danger.incident, danger.assessment
            incident.know_trainings(danger.agents)
            if incident.advice and (
                assessment.stage < Stage.WARN
                or incident.training_is_over
                or incident.ended(danger.tasks)
            ):
                continue
            # Where it rests now, what counts is how it grew.
            rests = assessment.forecast is None
            incident.advice = advice.sentences(
                advice.Shortage(
                    danger.reading,
                    incident.attribution,
                    incident.regime if rests else assessment.regime,
                    assessment.slope_per_s,
                    danger.tasks,
                    danger.agents,
                    self._series.swap,
                    watts_of.get(danger.reading.device or ""),
                    filling,
                    self._growth,
                )
            )

    def _next_look(self, agents: Mapping[ProcessKey, AgentState]) -> float:
        fast, slow = self.settings.watch.fast_interval_s, self.settings.watch.interval_s
        if any(agent.saving for agent in agents.values()) or self._policy.waiting:
            return fast
        return min(slow, max(fast, self._series.next_look_s))

    def _ids(self, snapshot: Snapshot) -> Callable[[], str]:
        return lambda: self._new_id(snapshot.unix_s)

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock[0]

    def _new_id(self, unix_s: float) -> str:
        # The time keeps ids of different daemons apart, the number those of one tick.
        self._issued += 1
        return f"{int(unix_s * 1000):x}-{self._issued}"


def _worded(
    decision: Decision,
    tasks: Mapping[ProcessKey, Task],
    agents: Mapping[ProcessKey, Sequence[AgentState]],
    incidents: Mapping[str, Incident],
) -> Decision:
    """With its notification, if it asks for one."""
    if decision.kind is not DecisionKind.NOTIFY:
        return decision
    task = None if decision.task is None else tasks.get(decision.task)
    views = () if decision.task is None else agents.get(decision.task, ())
    agent = max(views, key=lambda each: (each.training, each.step or 0), default=None)
    about = incidents.get(decision.incident)
    return replace(decision, notification=notification(decision, task, agent, about))


def _decoded(value: Mapping[str, Any], mono_s: float) -> _Kept:
    kept: _Kept = codec.decode(_Kept, value)
    if kept.version != _VERSION:
        raise ValueError(f"version {kept.version!r}")
    # By the monotonic clock alone: the other one may have been set in between.
    age_s = mono_s - kept.mono_s
    if not 0 <= age_s <= _STALE_S:
        raise ValueError(f"written {age_s:.0f} s ago")
    return kept
