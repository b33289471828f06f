"""
From the stages of all resources to what shall be done: pure, and so replayable.

For each resource with an open incident, nearest end first, gentlest step first:
tell; ask the guilty tasks' agents to save, then those whom the kernel might
choose to kill in their stead; pause the guiltiest. A task that grew little
recently, or that is under another resource, is never paused. Where programs
that are not watched make the growth, trainings are saved and none is paused:
it would not help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Outcome,
    OutcomeStatus,
    Stage,
    Topic,
)
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind, Save, Scope
from watchdog_app.core.policy import pausing
from watchdog_app.core.policy.danger import AT_THE_LIMIT, TURNS, Danger
from watchdog_app.core.policy.incidents import OpenIncident, PausedTask
from watchdog_app.core.policy.reporting import PendingNotification, Reporting
from watchdog_app.core.policy.saving import CheckpointSchedule, deadline_s

# The kernel kills whoever holds most (mm/oom_kill.c, oom_badness). A task with at least this much
# of what the guilty will hold by then could be the one: sizes are estimates.
_COULD_BE_CHOSEN = 0.75


# One that goes on beyond its limit was no exact one: saving every step until the true end would
# hold the training up for minutes.
_OVERDUE_S = 20.0
_MOST_OPEN = 512
_PAUSE_ANSWER_S = 30.0


class Policy:
    """What was decided and is not over: incidents, requests, what people know."""

    def __init__(self) -> None:
        self.incidents: dict[ResourceKey, OpenIncident] = {}
        self.schedules: dict[ProcessKey, CheckpointSchedule] = {}
        self.reporting = Reporting()
        self._open: dict[str, Decision] = {}  # decisions without an outcome, oldest first
        self._agents: dict[str, ProcessKey] = {}  # whom an open checkpoint was asked of
        self.agents_due_mono_s: float | None = None  # until then agents may still come back

    @property
    def waiting(self) -> bool:
        """An outcome is awaited, or a notification waits for the next tick."""
        return bool(self._agents or self._busy() or self.reporting.waiting)

    @property
    def held(self) -> frozenset[ProcessKey]:
        """Tasks that were paused and not resumed since."""
        return frozenset(key for incident in self.incidents.values() for key in incident.holds)

    def observe_agents(self, agents: Mapping[ProcessKey, AgentState], now: float) -> None:
        """
        Take over what agents did by themselves; forget those that are gone.

        Args:
            agents: by process.
            now: monotonic seconds.
        """
        if self.agents_due_mono_s is None or now >= self.agents_due_mono_s:
            for key in [key for key in self.schedules if key not in agents]:
                self._forget(self.schedules.pop(key).pending)
        for key, agent in agents.items():
            schedule = self.schedules.setdefault(key, CheckpointSchedule())
            schedule.observe(agent, now)
            expired = schedule.expire(now)
            if expired is not None:
                self._unanswered(expired, tell=schedule.failures == 1)

    def decide(self, dangers: Sequence[Danger]) -> list[Decision]:
        """All decisions of a tick, in the order in which they are to be carried out."""
        decisions: list[Decision] = []
        by_incident = {danger.incident.id: danger for danger in dangers}
        for danger in sorted(dangers, key=lambda danger: (-danger.assessment.stage, danger.left_s)):
            decisions += self._one(danger)
        for waiting in self._waiting():
            home = by_incident.get(waiting.incident)
            if home is not None:
                decisions += _outcome_notification(home, waiting)
        for decision in decisions:
            self._open[decision.id] = decision
        while len(self._open) > _MOST_OPEN:
            self._forget(next(iter(self._open)))
        return decisions

    def record(self, outcome: Outcome, now: float) -> DecisionKind | None:
        """
        Learn what became of a decision: its kind; None when it is not known any more.

        Args:
            outcome: of the decision.
            now: monotonic seconds.
        """
        decision = self._open.pop(outcome.decision, None)
        agent = self._agents.pop(outcome.decision, None)
        if decision is None:
            return None
        if decision.kind is DecisionKind.CHECKPOINT and agent is not None:
            self._record_save(decision, outcome, agent, now)
        incident = self.incidents.get(decision.resource)
        if incident is not None and incident.id == decision.incident:
            if decision.kind is DecisionKind.PAUSE:
                self._record_pause(incident, decision, outcome, now)
            elif decision.kind is DecisionKind.RESUME:
                self._record_resume(incident, decision, outcome, now)
        return decision.kind

    # One resource

    def _one(self, danger: Danger) -> Iterator[Decision]:
        yield from pausing.watch_holds(danger)
        saves = list(self._saves(danger))
        pause, waits = None, False
        self._give_up_on_pauses(danger)
        target = pausing.pause_target(danger, self._busy())
        if target is not None:
            waits = True
            first = pausing.unsaved(danger, target)
            if first is None:
                pause = pausing.pause(danger, target)
            elif first[1].pending is None and not first[0].saving:
                why = "is saved once more before it is paused"
                saves.append(self._ask(danger, target, first[0], why, final=True))
        # What becomes of a pause is a notification of its own.
        incident = danger.incident
        will_pause = waits or bool(incident.pausing or incident.unpausable)
        warning = self.reporting.warning(danger, will_pause)
        if warning is not None:
            yield warning
        yield from self.reporting.saves(danger)
        yield from saves
        if pause is not None:
            yield pause

    def _give_up_on_pauses(self, danger: Danger) -> None:
        """Drop pauses without an outcome: a pause takes a fraction of a second."""
        incident = danger.incident
        asked = incident.paused_mono_s
        if incident.pausing and (asked is None or danger.mono_s - asked > _PAUSE_ANSWER_S):
            incident.pausing.clear()

    def _saves(self, danger: Danger) -> Iterator[Decision]:
        spec = danger.spec
        if not danger.wants_saves or spec.save is Save.NOBODY:
            return
        if spec.scope is Scope.HEAT and not danger.reading.fatal:
            return  # what only slows down loses nothing
        since = danger.incident.opened_mono_s
        last = danger.assessment.stage >= Stage.HOLD and not spec.least_left_s
        worth = self._worth_saving(danger)
        for task, why in sorted(worth, key=lambda each: TURNS.index(danger.turn(each[0]))):
            if danger.stands(task) or not danger.permits(task).checkpoint:
                continue
            for agent in danger.agents.get(task.key, ()):
                schedule = self.schedules[agent.key]
                if agent.training and schedule.due(
                    agent,
                    danger.mono_s,
                    since_mono_s=since,
                    left_s=_left_s(danger),
                    last=last,
                    reach_s=danger.reach_s,
                    stalled=_stalled(danger),
                ):
                    yield self._ask(danger, task, agent, why)

    def _worth_saving(self, danger: Danger) -> Iterator[tuple[Task, str]]:
        """The tasks that grow first, then those that the kernel could kill instead."""
        attribution = danger.incident.attribution
        if danger.spec.save is Save.EVERYBODY:
            for key in danger.agents:
                yield danger.tasks[key], "goes down with it"
            return
        chosen: set[ProcessKey] = set()
        if not attribution.foreign:
            for culprit in attribution.actionable:
                task = danger.tasks.get(culprit.task)
                if task is not None and not danger.stands(task):
                    chosen.add(culprit.task)
                    yield task, f"makes {culprit.share:.0%} of the growth"
            if attribution.culprits and not chosen:
                return  # whoever made it grow has ended or is paused: the danger is over
        with_agent = [danger.tasks[key] for key in danger.agents if key in danger.tasks]
        ends = danger.reading.fatal or danger.reading.throttles
        if not chosen and len(with_agent) == 1 and ends:
            # Too little growth to name anybody, and only one that has anything to lose.
            chosen.add(with_agent[0].key)
            yield with_agent[0], "is the only training under it"
        if not (danger.strict and ends):
            return
        # On a full card it hits whoever asks for memory next, of whatever size.
        anybody = danger.reading.key.kind is ResourceKind.GPU_MEMORY
        bar = 0.0 if not chosen or attribution.foreign or anybody else _bar(danger)
        for task in sorted(with_agent, key=_largest_process, reverse=True):
            if task.key not in chosen and _largest_process(task) >= bar:
                yield task, "could be killed with it"

    def _ask(
        self, danger: Danger, task: Task, agent: AgentState, why: str, final: bool = False
    ) -> Decision:
        schedule = self.schedules[agent.key]
        saved = schedule.saved_mono_s
        decision = danger.decide(
            DecisionKind.CHECKPOINT,
            task,
            f"{danger.assessment.why}; {task.name} {why}",
            {
                "agent_pid": agent.key.pid,
                "at_stake_s": None if saved is None else danger.mono_s - saved,
                "then": "continue",
            },
            deadline_s=deadline_s(agent),
        )
        schedule.ask(decision.id, danger.mono_s, agent, final)
        self._agents[decision.id] = agent.key
        return decision

    # Outcomes

    def _record_save(
        self, decision: Decision, outcome: Outcome, agent: ProcessKey, now: float
    ) -> None:
        schedule = self.schedules.get(agent)
        if schedule is None or schedule.pending != decision.id:
            return
        incident = self.incidents.get(decision.resource)
        if outcome.status is OutcomeStatus.DONE:
            first = schedule.saved_mono_s is None or schedule.saved_mono_s < (
                incident.opened_mono_s if incident else now
            )
            schedule.saved(now)
            if first:
                self._queue(Topic.RESCUED, decision, outcome)
        elif outcome.status is OutcomeStatus.SKIPPED:
            schedule.skipped()
        else:
            schedule.failed(now)
            if schedule.failures == 1:
                self._queue(Topic.RESCUE_FAILED, decision, outcome)

    def _record_pause(
        self, incident: OpenIncident, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        task = incident.pausing.pop(decision.id, None)
        if task is None:
            return
        if outcome.status is OutcomeStatus.DONE:
            evidence = decision.evidence
            room = float(evidence["limit"] or 0) - float(evidence["used"] or 0)
            incident.holds[task] = PausedTask(now, max(0.0, room), incident.pace_per_s)
            incident.pace_per_s = 0.0  # that was its pace: what still grows shows anew
            self._queue(Topic.PAUSED, decision, outcome)
        elif outcome.status is OutcomeStatus.FAILED:
            incident.unpausable.add(task)
            self._queue(Topic.PAUSE_FAILED, decision, outcome)
        else:
            incident.paused_mono_s = None  # nothing happened: there is nothing to wait for

    def _record_resume(
        self, incident: OpenIncident, decision: Decision, outcome: Outcome, now: float
    ) -> None:
        hold = incident.holds.get(decision.task) if decision.task is not None else None
        if hold is None or hold.resuming != decision.id:
            return
        if outcome.status is OutcomeStatus.DONE and decision.task is not None:
            del incident.holds[decision.task]
            incident.last_report = None  # "running again" says that it is over, too
            self._queue(Topic.RESUMED, decision, outcome)
        else:
            pausing.resume_failed(hold, now)

    def _unanswered(self, decision_id: str, tell: bool) -> None:
        decision = self._open.get(decision_id)
        self._forget(decision_id)
        if decision is not None and tell:
            waited = format_duration(decision.deadline_s)
            self.reporting.waiting.append(
                PendingNotification(
                    Topic.RESCUE_FAILED,
                    decision.incident,
                    decision.task,
                    f"no answer for {waited}: no step has ended in that time",
                    {},
                )
            )

    def _queue(self, topic: Topic, decision: Decision, outcome: Outcome) -> None:
        self.reporting.waiting.append(
            PendingNotification(
                topic, decision.incident, decision.task, outcome.detail, outcome.evidence
            )
        )

    def _waiting(self) -> Iterator[PendingNotification]:
        while self.reporting.waiting:
            yield self.reporting.waiting.popleft()

    def _busy(self) -> frozenset[ProcessKey]:
        return frozenset(
            key for incident in self.incidents.values() for key in incident.pausing.values()
        )

    def _forget(self, decision_id: str | None) -> None:
        if decision_id is not None:
            self._open.pop(decision_id, None)
            self._agents.pop(decision_id, None)


def _left_s(danger: Danger) -> float:
    """Time to the end, for those who save."""
    reading = danger.reading
    if not (reading.fatal or reading.throttles):
        return float("inf")  # beyond it there is time: nothing dies at its edge
    spec = danger.spec
    if spec.save is Save.EVERYBODY and not spec.least_left_s and reading.used >= reading.limit:
        return _OVERDUE_S
    return max(spec.least_left_s, danger.left_s)


def _stalled(danger: Danger) -> bool:
    """Whether the programs under the limit are stalled, or are about to be."""
    reading = danger.reading
    return reading.stalled or (reading.throttles and reading.used >= AT_THE_LIMIT * reading.limit)


def _outcome_notification(danger: Danger, waiting: PendingNotification) -> Iterator[Decision]:
    task = danger.tasks.get(waiting.task) if waiting.task is not None else None
    if not danger.permits(task).notify or (waiting.task is not None and task is None):
        return
    if waiting.topic is Topic.RESCUED and danger.incident.last_report is None:
        return  # a silent save, on the eager tier: nobody was worried, nobody needs to know
    if waiting.topic is Topic.RESCUE_FAILED and task is not None and danger.stands(task):
        return  # a paused task cannot answer, and is in no danger
    yield danger.decide(
        DecisionKind.NOTIFY,
        task,
        waiting.reason,
        {**waiting.evidence, "topic": waiting.topic.value},
    )


def _bar(danger: Danger) -> float:
    """The size from which a bystander could be the one that the kernel kills."""
    headroom = max(0.0, danger.reading.limit - danger.reading.used)
    sizes = (
        _largest_process(danger.tasks[culprit.task]) + culprit.share * headroom
        for culprit in danger.incident.attribution.actionable
        if culprit.task in danger.tasks
    )
    return _COULD_BE_CHOSEN * max(sizes, default=0.0)


def _largest_process(task: Task) -> float:
    return max(member.rss_bytes + (member.swap_bytes or 0) for member in task.members)
