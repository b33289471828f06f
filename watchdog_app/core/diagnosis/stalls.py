"""
Detect trainings that no longer make steps: a lock, a dead worker, a lost data source.

A false stall report costs more trust than a report that comes a minute late. A stall is therefore
reported once, and late. A training is not stalled if the delay has a known reason: another phase
(validation, checkpoint), a save, a pause, a debugger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.settings import StallSettings
from watchdog_app.core.model.tasks import is_stopped

_IDLE_STEPS = 20.0
_BUSY_STEPS = 100.0  # while the task computes: an unannounced validation, or a compilation
BUSY_CORES = 0.1  # a task that uses more is computing
_LONGEST = 3.0  # multiple of the longest gap so far, which was not a stall
_SAMPLE_GAP_S = 5.0  # after a longer gap between samples, an agent's reports may be unread


@dataclass(slots=True)
class _Progress:
    """Last observed step of a training, its time, and the CPU time used until then."""

    step: int | None
    phase: str | None
    since_mono_s: float
    cpu_s: float
    members: set[int]  # pids that the task had then or later
    longest_s: float = 0.0  # longest gap between two completed steps
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """A training that has made no step for much longer than a step takes."""

    task: Task
    agent: AgentState
    step: int
    step_s: float
    silent_s: float
    cores: float  # cores that the task used in that time


class StallDetector:
    """Track the trainings of a machine. Bounded by the number of agents."""

    def __init__(self) -> None:
        self._progress: dict[ProcessKey, _Progress] = {}
        self._last_mono_s: float | None = None

    def update(
        self,
        now: float,
        tasks: Sequence[Task],
        agents: Mapping[ProcessKey, Sequence[AgentState]],
        settings: StallSettings | None = None,
    ) -> list[Stall]:
        """
        Process one sample, and return the stalls that have just become certain.

        Args:
            now: monotonic seconds.
            tasks: tasks of this sample.
            agents: by task.
            settings: thresholds; None: the defaults.
        """
        settings = settings or StallSettings()
        blind_s = 0.0 if self._last_mono_s is None else now - self._last_mono_s
        self._last_mono_s = now
        if blind_s > _SAMPLE_GAP_S:
            for place in self._progress.values():
                place.since_mono_s += blind_s
        found: list[Stall] = []
        seen: set[ProcessKey] = set()
        for task in tasks:
            for agent in agents.get(task.key, ()):
                seen.add(agent.key)
                stall = self._check_agent(now, task, agent, settings)
                if stall is not None:
                    found.append(stall)
        for gone in self._progress.keys() - seen:
            del self._progress[gone]
        return found

    def member_pids(self, agent: ProcessKey) -> frozenset[int]:
        """Return the pids that the task of this agent has had since its last step."""
        place = self._progress.get(agent)
        return frozenset() if place is None else frozenset(place.members)

    def _check_agent(
        self, now: float, task: Task, agent: AgentState, settings: StallSettings
    ) -> Stall | None:
        place = self._progress.get(agent.key)
        excused = not agent.training or agent.saving or is_stopped(task)
        if place is None or excused or (agent.step, agent.phase) != (place.step, place.phase):
            longest = 0.0 if place is None else place.longest_s
            if place is not None and not excused and agent.step != place.step:
                longest = max(longest, now - place.since_mono_s)
            members = {member.key.pid for member in task.members}
            self._progress[agent.key] = _Progress(
                agent.step, agent.phase, now, task.cpu_s, members, longest
            )
            return None
        place.members.update(member.key.pid for member in task.members)
        if place.reported or agent.step is None or agent.step_s is None:
            return None
        if agent.phase not in (None, "train"):
            return None
        silent_s = now - place.since_mono_s
        cores = max(0.0, task.cpu_s - place.cpu_s) / silent_s if silent_s > 0 else 0.0
        least_s, steps = settings.idle_s, _IDLE_STEPS
        if cores > BUSY_CORES:
            least_s, steps = settings.busy_s, _BUSY_STEPS
        if silent_s <= max(least_s, steps * agent.step_s, _LONGEST * place.longest_s):
            return None
        place.reported = True
        return Stall(task, agent, agent.step, agent.step_s, silent_s, cores)
