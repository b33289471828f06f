"""Trainings that no agent can save, and when to offer to change that. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Evidence,
    Observation,
    OutcomeStatus,
    Topic,
)
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.settings import BUSY_CORES
from watchdog_app.core.model.tasks import is_stopped
from watchdog_app.core.policy.danger import Tick
from watchdog_app.core.policy.incidents import OpenIncident

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
