"""
Detect trainings that no longer make steps: a lock, a dead worker, a lost data source.

A false stall report costs more trust than a report that comes a minute late. A stall is therefore
reported once, and late. A training is not stalled if the delay has a known reason: another phase
(validation, checkpoint), a save, a pause, a debugger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_duration, format_step
from watchdog_app.core.model.agent import AgentState, ThreadDump
from watchdog_app.core.model.decisions import (
    Contributor,
    Evidence,
    Incident,
    Observation,
    Problem,
    Stage,
    Topic,
)
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.settings import BUSY_CORES, StallSettings
from watchdog_app.core.model.tasks import is_stopped

# `stall_reasons` is imported only when a training stalls.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason

_IDLE_STEPS = 20.0
_BUSY_STEPS = 100.0  # while the task computes: an unannounced validation, or a compilation
_LONGEST = 3.0  # multiple of the longest gap so far, which was not a stall
_SAMPLE_GAP_S = 5.0  # after a longer time without its agent, reports may be unread

_DUMP_S = 6.0  # a stall notification waits this long for the thread dump
_AGAIN_S = 60.0  # dump again after this time, because the reason may have changed
_AWAY_S = 30.0  # a disconnected agent reconnects within some seconds
_MOST_ADVICE = 2


@dataclass(slots=True)
class _Training:
    """A training since its last step."""

    task: Contributor
    agent: AgentState | None  # at that step; None: stalled under an earlier daemon, no report yet
    since_mono_s: float
    seen_mono_s: float  # when its agent was last connected
    cpu_s: float = 0.0  # CPU time used until then
    pids: set[int] = field(default_factory=set)  # pids that the task had then or later
    longest_s: float = 0.0  # longest gap between two completed steps
    began: str = ""  # observation when the stall began; empty: not stalled
    found_mono_s: float | None = None  # None: this daemon has not found the stall itself
    cores: float = 0.0  # cores that the task used until then
    asked_mono_s: float = float("-inf")
    place: str | None = None  # current line of the training
    reasons: tuple[StallReason, ...] | None = None  # None: its threads have not been dumped
    advice: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The observation at the start, and the conclusion from the threads."""
        if self.reasons is None:
            return self.began
        likely = "Why is not known; its threads say nothing"
        if self.reasons:
            first = self.reasons[0]
            likely = f"Most likely {first.text} ({clean(first.reasons[0], 200)})"
        elif self.place is not None:
            likely = f"Why is not known; it is at {self.place}"
        return f"{self.began.partition('. ')[0]}. {likely}"


class StallProblems:
    """Trainings that make no steps any more. Asks the daemon for dumps of their threads."""

    def __init__(self) -> None:
        self._trainings: dict[ResourceKey, _Training] = {}
        self.wanted: list[ProcessKey] = []  # tasks whose threads the daemon should dump now

    def observe(
        self,
        observation: Observation,
        settings: StallSettings,
        incidents: Mapping[ResourceKey, Incident],
    ) -> Iterator[Problem]:
        """
        Yield the stalls of this sample, and the stalls that ended.

        Args:
            observation: one sample of the machine.
            settings: thresholds of a stall.
            incidents: open incidents by key, including those of an earlier daemon.
        """
        now = observation.snapshot.mono_s
        self.wanted = []
        for key, incident in incidents.items():
            if key.kind is ResourceKind.STALLED and key not in self._trainings:
                # Without a task it ends at once.
                who = next(iter(incident.contributors), Contributor(ProcessKey(0, 0), ""))
                began, advice = incident.why or "no step", incident.advice
                self._trainings[key] = _Training(who, None, now, now, began=began, advice=advice)
        agents = {
            ResourceKey(ResourceKind.STALLED, f"{each.key.pid}:{each.key.start_time}"): (task, each)
            for task in observation.tasks.values()
            for each in observation.agents.get(task.key, ())
        }
        for key, (task, agent) in agents.items():
            if key not in self._trainings:
                self._trainings[key] = _begin(task, agent, now)
        for key, known in list(self._trainings.items()):
            end = None
            if key in agents:
                end = self._follow(key, *agents[key], now, settings)
            elif known.task.task not in observation.tasks or now - known.seen_mono_s > _AWAY_S:
                del self._trainings[key]
                end = ""
            if not known.began:
                continue
            if end is None and now - known.asked_mono_s >= _AGAIN_S:
                known.asked_mono_s = now
                self.wanted.append(known.task.task)
            yield _problem(key, known, now, end)

    def _follow(
        self, key: ResourceKey, task: Task, agent: AgentState, now: float, settings: StallSettings
    ) -> str | None:
        """Update a training. Return why its stall ended, "" if that needs no report, else None."""
        known = self._trainings[key]
        unseen_s, known.seen_mono_s = now - known.seen_mono_s, now
        if known.found_mono_s is None and unseen_s > _SAMPLE_GAP_S:
            known.since_mono_s += unseen_s
        known.pids.update(member.key.pid for member in task.members)
        if known.began and agent.reported_mono_s is None:
            return None  # the agent has just reconnected, and has not reported yet
        if known.agent is None:
            known.agent, known.since_mono_s, known.cpu_s = agent, now, task.cpu_s
        last = known.agent
        moved = (agent.step, agent.phase) != (last.step, last.phase)
        excused = not agent.training or agent.saving or is_stopped(task)
        if moved or not agent.training or (excused and not known.began):
            longest_s = known.longest_s
            if not excused and agent.step != last.step:
                longest_s = max(longest_s, now - known.since_mono_s)
            self._trainings[key] = _begin(task, agent, now, longest_s)
            return f"it makes steps again, and is at step {agent.step}" if agent.training else ""
        if not excused and known.found_mono_s is None:
            _detect(known, task, agent, now, settings)
        return None

    def add_thread_dump(self, task: Task, dump: ThreadDump, card_fault: str | None) -> None:
        """
        Add a new thread dump of a task.

        Args:
            task: a task of `wanted`.
            dump: dump of its threads.
            card_fault: fault of the task's GPU.
        """
        from watchdog_app.core.diagnosis.stall_reasons import (
            StallContext,
            stall_reasons,
            training_line,
        )

        present = {member.key.pid for member in task.members}
        for known in self._trainings.values():
            if known.task.task == task.key and known.began:
                lost = tuple(sorted(known.pids - present))
                context = StallContext(known.cores, card_fault, lost)
                known.place, known.reasons = training_line(dump), stall_reasons(dump, context)
                known.advice = tuple(each.remedy for each in known.reasons[:_MOST_ADVICE])


def _begin(task: Task, agent: AgentState, now: float, longest_s: float = 0.0) -> _Training:
    """Return a training that has just made a step."""
    pids = {member.key.pid for member in task.members}
    who = Contributor(task.key, task.name)
    return _Training(who, agent, now, now, task.cpu_s, pids, longest_s)


def _detect(
    known: _Training, task: Task, agent: AgentState, now: float, settings: StallSettings
) -> None:
    """Mark a training as stalled that has made no step for much longer than a step takes."""
    if agent.step is None or agent.step_s is None or agent.phase not in (None, "train"):
        return
    silent_s = now - known.since_mono_s
    cores = max(0.0, task.cpu_s - known.cpu_s) / silent_s if silent_s > 0 else 0.0
    least_s, steps = settings.idle_s, _IDLE_STEPS
    if cores > BUSY_CORES:
        least_s, steps = settings.busy_s, _BUSY_STEPS
    if silent_s > max(least_s, steps * agent.step_s, _LONGEST * known.longest_s):
        known.agent, known.found_mono_s, known.cores = agent, now, cores
        known.began = (
            f"no step since step {agent.step} for {format_duration(silent_s)}; "
            f"one takes {format_step(agent.step_s)}"
        )


def _problem(key: ResourceKey, known: _Training, now: float, end: str | None) -> Problem:
    """Return a stall, or its end with the reason."""
    name, tasks = known.task.name, (known.task,)
    label = f"{name} is stalled"
    if end is not None:
        over: Evidence = {"topic": Topic.RESOLVED.value, "label": name, "name": name}
        return Problem(key, label, Stage.OK, known.began, end, over, tasks=tasks, at_once=True)
    reason = f"{name} has made no step for {now - known.since_mono_s:.0f} s"
    if known.reasons:
        reason += f"; most likely {known.reasons[0].text}"
    dumped, found_mono_s = known.reasons is not None, known.found_mono_s
    return Problem(
        key,
        label,
        Stage.WARN,
        known.why,
        reason=reason,
        evidence={"topic": Topic.STALLED.value, "name": name},
        advice=known.advice,
        tasks=tasks,
        facts=frozenset((Topic.STALLED.value,)),
        ready=found_mono_s is not None and (dumped or now - found_mono_s >= _DUMP_S),
    )
