"""
One tick: from what was read to what shall be done. Pure; a replay drives the same object.

Time comes in with the snapshots alone. Memory is bounded: what is gone from
the readings is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watchdog_app.core.diagnosis.exits import should_notify
from watchdog_app.core.explain import advice
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
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy import anticipation, kept_state, lifecycle, stage
from watchdog_app.core.policy.danger import Danger, agents_by_task, still_holds
from watchdog_app.core.policy.device_incidents import DeviceIncidents, Switches
from watchdog_app.core.policy.exits import exit_notification
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.policy import Policy
from watchdog_app.core.policy.rules import allowed, unprotected
from watchdog_app.core.policy.stall_incidents import StallIncidents
from watchdog_app.core.policy.tracker import Tracker, outlooks

GAP_S = 30.0  # nothing is known of what happened in a longer gap, and it is no trend


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
    # Trainings that stand still: whose threads `stands` should be told of now, and what was seen.
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
        self._health = DeviceIncidents()
        self._stalls = StallIncidents()
        self._growth: dict[ProcessKey, MemoryGrowth] = {}  # what agents have seen growing
        self._card_faults: Mapping[ProcessKey, str] = {}
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
            assessment = stage.by_evidence(
                series.assess(reading, at_risk, now), reading, at_risk, self.settings.stages
            )
            expected = self._anticipation.expect(reading)
            surely = assessment.notify
            assessment = stage.by_expectation(assessment, expected)
            incident = lifecycle.opened(
                self._policy, reading, assessment, snapshot, self._ids(snapshot)
            )
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
        switches = Switches(self.settings, self._runtime_dir, self.protecting)
        stalls = self._stalls.look(
            snapshot,
            tasks,
            with_agent,
            policy=self._policy,
            switches=switches,
            new_id=self._ids(snapshot),
        )
        settle_s = self.settings.stages.settle_s
        closed, over = lifecycle.close(self._policy, dangers, everyone, snapshot, settle_s)
        health = self._health.look(
            snapshot,
            tasks,
            with_agent,
            series.usage,
            policy=self._policy,
            switches=switches,
            new_id=self._ids(snapshot),
        )
        self._card_faults = health.faults
        still_open = sorted(self._policy.incidents.values(), key=lambda each: each.opened_mono_s)
        return TickResult(
            assessments=assessments,
            decisions=(*decisions, *over, *health.decisions, *stalls.decisions),
            incidents=tuple(incident.public() for incident in still_open),
            closed=(*closed, *health.closed, *stalls.closed),
            tasks=outlooks(tasks, series.usage, readings, assessments, blamed),
            swap_in_bytes_per_s=series.swap.in_per_s,
            swap_out_bytes_per_s=series.swap.out_per_s,
            next_look_s=self._next_look(agents),
            card_faults=health.faults,
            stalled=stalls.wanted,
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
        about = None if incident is None else (incident.id, incident.resource, incident.peak)
        kind = ResourceKind.RAM if incident is None else incident.resource.kind
        switches = allowed(
            self.settings.actions, self.settings.rules, task, kind, self._runtime_dir
        )
        if not switches.notify or not should_notify(cause, agent):
            return ()
        ident = self._new_id(snapshot.unix_s)
        return (exit_notification(ident, task, agent, cause, snapshot=snapshot, incident=about),)

    def stands(self, task: Task, picture: ThreadDump) -> None:
        """
        Learn what the threads of a stalled task do: one of `TickResult.stalled`.

        Args:
            task: as it is now.
            picture: of its threads.
        """
        self._stalls.stands(
            task,
            picture,
            policy=self._policy,
            swap=self._series.swap,
            card_fault=self._card_faults.get(task.key),
        )
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
        mono_s, unix_s = self._clock or (0.0, 0.0)
        return kept_state.dump(self._policy, mono_s, unix_s)

    def load(self, value: Mapping[str, Any], mono_s: float, unix_s: float) -> None:
        """
        Restore the state that `dump` returned. Call it before the first tick with the current
        clocks. The state must be of the same boot.

        Raises:
            ValueError: the values are damaged, of another version, or older than an hour.
                Nothing was changed: the engine starts afresh.
        """
        self._policy = kept_state.load(value, mono_s)
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
            recent = self._series.rate(reading.key, stage.PACE_WINDOW_S)
        held = any(agent.saving for each in agents.values() for agent in each)
        incident.pace(assessment.slope_per_s, recent, self._passed_s, held)
        if surely or not reading.fatal:
            pause_s = self.settings.stages.pause_s
            assessment = stage.by_pace(assessment, reading, incident, pause_s)
        lifecycle.observe(incident, assessment, self._now())
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
