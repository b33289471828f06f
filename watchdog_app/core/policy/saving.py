"""
Decide which agents must save because of a danger, and record the outcomes.

The tasks that grow save first, then the tasks that the kernel might kill instead. If unwatched
programs cause the growth, trainings are saved but not paused. Also decides when to offer saves for
trainings that no agent can save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from watchdog_app.base.records import dataclass
from watchdog_app.base.text import quantities
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Evidence,
    Observation,
    Outcome,
    OutcomeStatus,
    Stage,
    Topic,
)
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import ResourceKey, ResourceKind, Save
from watchdog_app.core.model.settings import BUSY_CORES
from watchdog_app.core.model.tasks import is_stopped
from watchdog_app.core.policy.danger import AT_THE_LIMIT, Danger, Tick
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.schedule import CheckpointSchedule, deadline_s

# The kernel kills the process with the most memory (mm/oom_kill.c, oom_badness). A task with this
# share of the fastest growing task's final size could be the victim, because sizes are estimates.
_COULD_BE_CHOSEN = 0.75
# A resource that passes its limit had an inexact limit. A save after each step until the real end
# would delay the training for minutes.
_OVERDUE_S = 20.0
# A training on a GPU keeps the CPU this busy as well: Python starts each operation.
_BUSY_PERCENT = 100 * BUSY_CORES
_OFFER_AFTER_S = 120.0
_OFFER_AGAIN_S = 6 * 3600.0  # after an offer that could not be shown
_TRAINS_AFTER_S = 60.0  # an import, a test and a short cell are over by then
_CELL_GAP_S = 10.0  # a longer pause is a person between two cells
_IDLE_S = 60.0  # a longer pause ends a training; loading data and validation are shorter
# Programs that compute with a framework for long and do not train: servers and test runners.
_OTHER_PROGRAMS = frozenset(
    ("gradio", "gunicorn", "hypercorn", "litserve", "pytest", "ray", "streamlit", "tensorboard",
     "torchserve", "unittest", "uvicorn", "vllm")
)  # fmt: skip


@dataclass(slots=True)
class Saving:
    """The save requests to all agents."""

    schedules: dict[ProcessKey, CheckpointSchedule] = field(default_factory=dict)  # by agent
    agents_due_mono_s: float | None = None  # until then agents may still reconnect

    def observe(
        self, agents: Mapping[ProcessKey, AgentState], now: float
    ) -> Iterator[tuple[str, bool]]:
        """
        Record saves that agents made without a request; forget agents that have gone.

        Args:
            agents: by process.
            now: monotonic seconds.

        Returns:
            Decisions that will get no answer, and whether to report that.
        """
        if self.agents_due_mono_s is None or now >= self.agents_due_mono_s:
            for key in [key for key in self.schedules if key not in agents]:
                pending = self.schedules.pop(key).pending
                if pending is not None:
                    yield pending, False
        for key, agent in agents.items():
            schedule = self.schedules.setdefault(key, CheckpointSchedule())
            schedule.observe(agent, now)
            expired = schedule.expire(now)
            if expired is not None:
                yield expired, schedule.failures == 1

    def due(self, danger: Danger) -> Iterator[Decision]:
        """Yield the save requests that are due because of this danger."""
        spec, assessment = danger.spec, danger.assessment
        # A save is cheap, so weak evidence suffices.
        wanted = assessment.rescue or assessment.stage >= Stage.SAVE
        if not wanted or spec.save is Save.NOBODY:
            return
        reading = danger.reading
        at_the_limit = reading.used >= AT_THE_LIMIT * reading.limit
        stalled = reading.stalled or (reading.throttles and at_the_limit)
        worth = _worth_saving(danger)
        for task, why in sorted(worth, key=lambda each: danger.save_order(each[0])):
            if danger.is_stopped(task) or not danger.permits(task).checkpoint:
                continue
            for agent in danger.agents.get(task.key, ()):
                if agent.training and self.schedules[agent.key].is_due(
                    agent,
                    danger.tick.mono_s,
                    since_mono_s=danger.incident.opened_mono_s,
                    left_s=_save_time_left_s(danger),
                    last=assessment.stage >= Stage.PAUSE and not spec.least_left_s,
                    reach_s=danger.tick.settings.watch.fast_interval_s,
                    stalled=stalled,
                ):
                    yield self.request_save(danger, task, agent, why)

    def request_save(
        self, danger: Danger, task: Task, agent: AgentState, why: str, final: bool = False
    ) -> Decision:
        """
        Return the request to an agent to save now.

        Args:
            danger: the reason.
            task: task to save.
            agent: an agent in the task.
            why: why this task is saved, as a clause after its name.
            final: whether the task is paused right after the save.
        """
        schedule = self.schedules[agent.key]
        saved = schedule.saved_mono_s
        more: Evidence = {
            "agent_pid": agent.key.pid,
            "at_stake_s": None if saved is None else danger.tick.mono_s - saved,
            "then": "continue",
        }
        reason = f"{danger.assessment.why}; {task.name} {why}"
        kind, answer_s = DecisionKind.CHECKPOINT, deadline_s(agent)
        decision = danger.decide(kind, task, reason, more, deadline_s=answer_s)
        schedule.mark_requested(decision.id, danger.tick.mono_s, agent, final)
        return decision

    def record(
        self, decision: Decision, outcome: Outcome, now: float, incident: OpenIncident | None
    ) -> Topic | None:
        """
        Record the outcome of a request, and return the topic to report.

        Args:
            decision: the request.
            outcome: its outcome.
            now: monotonic seconds.
            incident: open incident of the same resource.
        """
        pending = (each for each in self.schedules.values() if each.pending == decision.id)
        schedule = next(pending, None)
        if schedule is None:
            return None
        if outcome.status is OutcomeStatus.DONE:
            before, since = schedule.saved_mono_s, incident.opened_mono_s if incident else now
            schedule.mark_saved(now)
            return Topic.RESCUED if before is None or before < since else None
        if outcome.status is OutcomeStatus.SKIPPED:
            schedule.mark_skipped()
            return None
        schedule.mark_failed(now)
        return Topic.RESCUE_FAILED if schedule.failures == 1 else None


def _worth_saving(danger: Danger) -> Iterator[tuple[Task, str]]:
    """Yield the tasks that grow, then the tasks that the kernel could kill instead."""
    attribution = danger.incident.attribution
    if danger.spec.save is Save.EVERYBODY:
        for key in danger.agents:
            yield danger.tasks[key], "goes down with it"
        return
    chosen: set[ProcessKey] = set()
    if not attribution.mostly_unwatched:
        for contributor in attribution.actionable:
            task = danger.tasks.get(contributor.task)
            if task is not None and not danger.is_stopped(task):
                chosen.add(contributor.task)
                yield task, quantities.growth(contributor.slope_bytes_per_s, contributor.share)
        if attribution.contributors and not chosen:
            # the tasks that caused the growth have ended or are paused, so the danger is over
            return
    with_agent = [danger.tasks[key] for key in danger.agents]
    ends = danger.reading.fatal or danger.reading.throttles
    if not chosen and len(with_agent) == 1 and ends:
        # The growth is too small to name a task, and only one task has work to lose.
        chosen.add(with_agent[0].key)
        yield with_agent[0], "is the only training under it"
    if not (danger.assessment.is_certain and ends):
        return
    # If a GPU is full, the next allocation fails, whatever the size of its task.
    anybody = danger.reading.key.kind is ResourceKind.GPU_MEMORY
    bar = (
        0.0 if not chosen or attribution.mostly_unwatched or anybody else _min_victim_bytes(danger)
    )
    for task in sorted(with_agent, key=_largest_process, reverse=True):
        if task.key not in chosen and _largest_process(task) >= bar:
            yield task, "could be killed with it"


def _save_time_left_s(danger: Danger) -> float:
    """Return the time that remains for saves."""
    reading = danger.reading
    if not (reading.fatal or reading.throttles):
        # the resource can exceed this limit without killing a process, so time remains
        return float("inf")
    spec = danger.spec
    if spec.save is Save.EVERYBODY and not spec.least_left_s and reading.used >= reading.limit:
        return _OVERDUE_S
    return max(spec.least_left_s, danger.left_s)


def _min_victim_bytes(danger: Danger) -> float:
    """Return the size from which the kernel could kill another task instead."""
    headroom = max(0.0, danger.reading.limit - danger.reading.used)
    sizes = (
        _largest_process(danger.tasks[contributor.task]) + contributor.share * headroom
        for contributor in danger.incident.attribution.actionable
        if contributor.task in danger.tasks
    )
    return _COULD_BE_CHOSEN * max(sizes, default=0.0)


def _largest_process(task: Task) -> float:
    return max(member.rss_bytes + (member.swap_bytes or 0) for member in task.members)


@dataclass(slots=True)
class _Work:
    """Uninterrupted work of one task, monotonic times."""

    since_mono_s: float
    last_mono_s: float

    @property
    def is_training(self) -> bool:
        return self.busy_s >= _TRAINS_AFTER_S

    @property
    def busy_s(self) -> float:
        return self.last_mono_s - self.since_mono_s


class UnsavedTrainings:
    """
    Finds tasks that seem to train without an agent.

    Only an agent knows whether a task trains. Without one it seems to train if it has loaded a
    framework and has been busy for a minute without a pause; an import alone is no training. A
    task that had an agent is never one: its agent knows best.

    Args:
        offered: folders of the environments in which an offer was shown. This object adds to it;
            the caller keeps it for ever, so that no offer is repeated.
    """

    def __init__(self, offered: set[str]) -> None:
        self._offered = offered
        self._retry_mono_s: dict[str, float] = {}  # by environment: when an offer may be made
        self._work: dict[ProcessKey, _Work] = {}
        self._with_agent: set[ProcessKey] = set()

    def update(
        self, observation: Observation, cpu_percent: Mapping[ProcessKey, float | None]
    ) -> None:
        """
        Add one sample.

        Args:
            observation: the sample.
            cpu_percent: use of each task in percent of one core; None: not known yet.
        """
        now, tasks = observation.snapshot.mono_s, observation.tasks
        self._with_agent = {key for key in self._with_agent if key in tasks}
        self._with_agent.update(observation.agents)
        self._work = {key: each for key, each in self._work.items() if key in tasks}
        for key, task in tasks.items():
            if key in self._with_agent or not _could_train(task):
                self._work.pop(key, None)
                continue
            work, percent = self._work.get(key), cpu_percent.get(key)
            always_s = _busy_since_start_s(task, observation.snapshot.unix_s)
            busy = always_s > 0.0 if percent is None else percent >= _BUSY_PERCENT
            if work is None and busy:
                self._work[key] = _Work(now - always_s, now)
            elif work is not None and (busy or is_stopped(task)):
                work.last_mono_s = now
            elif work is not None:
                most_s = _IDLE_S if work.is_training else _CELL_GAP_S
                if now - work.last_mono_s > most_s:
                    del self._work[key]

    @property
    def trainings(self) -> frozenset[ProcessKey]:
        """The tasks that train without an agent now."""
        return frozenset(key for key, work in self._work.items() if work.is_training)

    def due_offers(self, tick: Tick, tasks: Mapping[ProcessKey, Task]) -> Iterator[Decision]:
        """
        Yield notifications about the first training in each environment that was never offered.

        Args:
            tick: time and settings.
            tasks: tasks of this sample.
        """
        for key, work in self._work.items():
            task, now = tasks[key], tick.mono_s
            python = task.info.python
            if python is None or python in self._offered or work.busy_s < _OFFER_AFTER_S:
                continue
            if task.uid != tick.own_uid or not tick.permits(task, ResourceKind.RAM).notify:
                continue
            if now >= self._retry_mono_s.get(python, now):
                self._retry_mono_s[python] = now + _OFFER_AGAIN_S
                nothing = OpenIncident("", ResourceKey(ResourceKind.RAM), "", tick.unix_s, now)
                evidence: Evidence = {"topic": Topic.UNSAVED.value, "python": python}
                reason = "it has no agent: if it trains, it cannot be saved"
                yield tick.decide(DecisionKind.NOTIFY, nothing, key, reason, evidence)

    def record(self, decision: Decision, status: OutcomeStatus) -> None:
        """
        Record what became of an offer. One that was shown is never made again.

        Args:
            decision: from `due_offers`.
            status: its outcome.
        """
        python = decision.evidence.get("python")
        if status is OutcomeStatus.DONE and isinstance(python, str):
            self._offered.add(python)


def _could_train(task: Task) -> bool:
    # Where the agent's hook waits, it finds trainings: what it has not found is another program.
    other = task.kind is TaskKind.SERVER or task.name in _OTHER_PROGRAMS
    return task.framework is not None and not task.agent_waits and not other


def _busy_since_start_s(task: Task, now_unix_s: float) -> float:
    """Return the age of a task that was busy all its life, as of a script that trains; else 0."""
    age_s = now_unix_s - (task.info.started_unix_s or now_unix_s)
    return age_s if task.cpu_s >= age_s * _BUSY_PERCENT / 100 else 0.0
