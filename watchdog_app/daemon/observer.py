"""Samples the machine and lets the engine assess it. Never raises: a failure becomes a fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from operator import is_
from typing import Any

from watchdog_app.base.errors import SensorError
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, Stage
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.readings import readings as readings_of
from watchdog_app.core.model.resource import Reading, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import KernelRegistry, group_processes
from watchdog_app.core.policy.engine import Engine
from watchdog_app.core.policy.past_runs import PastRuns
from watchdog_app.core.policy.rules import allowed_actions
from watchdog_app.daemon.agents import Agents
from watchdog_app.daemon.log import Faults, Log
from watchdog_app.daemon.status import AssessedSample
from watchdog_app.machine import process_control
from watchdog_app.machine.sensors.machine import Machine
from watchdog_app.machine.sensors.triggers import Triggers

_MOST_INTERRUPTION_S = 0.2  # in one sample; a longer interruption makes its values inconsistent
_MOST_FAILURES = 3  # in a row, after which a new engine is created

NO_LIMITS: Mapping[str, int] = {}

Measurement = tuple[Snapshot, tuple[Task, ...], tuple[Reading, ...]]


@dataclass(eq=False)
class Observer:
    """
    The machine's sensors, the triggers that wake the daemon, and the engine.

    Args:
        runtime_dir: ours. Tasks whose environment names another folder belong to another daemon.
    """

    settings: Settings
    machine: Machine
    agents: Agents
    faults: Faults
    runtime_dir: str
    triggers: Triggers = field(kw_only=True)
    latest: AssessedSample | None = field(default=None, init=False)  # the last one that succeeded
    ticks: int = field(default=0, init=False)
    # Environments in which saving was offered.
    offered: set[str] = field(default_factory=set, init=False)
    kernels: KernelRegistry = field(default_factory=KernelRegistry, init=False)
    _protecting: bool = field(default=True, init=False)
    _failures: int = field(default=0, init=False)
    _guard_limits: Mapping[str, int] = field(default_factory=dict, init=False)
    _grouped: tuple[Snapshot | None, tuple[Task, ...]] = field(default=(None, ()), init=False)

    def __post_init__(self) -> None:
        """Create the engine."""
        self._engine = self._new_engine()

    def tasks(self) -> Sequence[Task]:
        """The tasks of the latest sample."""
        return () if self.latest is None else self.latest.tasks

    def task(self, key: ProcessKey | None) -> Task | None:
        """A task of the latest sample; None: there is none with this key."""
        return next((task for task in self.tasks() if task.key == key), None)

    def readings(self) -> Sequence[Reading]:
        """The readings of the latest sample."""
        return () if self.latest is None else self.latest.readings

    def cgroup_of(self, key: ProcessKey) -> str | None:
        """Folder of a process's memory group in the latest sample; None: unknown."""
        info = None if self.latest is None else self.latest.snapshot.infos.get(key)
        return None if info is None else info.cgroup

    def sample(self, guard_limits: Mapping[str, int] = NO_LIMITS) -> AssessedSample | None:
        """
        One tick: sample, group, forecast, decide. None: the machine could not be read.

        Args:
            guard_limits: limits of guards in bytes, without the reserve, by folder of their group.
        """
        self._guard_limits = guard_limits
        views = {view.key: view for view in self.agents.views()}
        # Watch the file systems to which connected agents save rescues.
        self.machine.watch_disks(sorted({view.directory for view in views.values()}))
        parts = self._measure(views.values())
        if parts is None:
            return None
        snapshot, tasks, readings = parts
        try:
            result = self._engine.tick(snapshot, tasks, readings, views)
        except Exception as error:
            self._engine_failed(error)
            return None
        self._failures = 0
        self.faults.clear("engine")
        self.ticks += 1
        self.machine.watch_gpus(
            any(
                key.kind is ResourceKind.GPU_MEMORY and each.stage >= Stage.WATCH
                for key, each in result.assessments.items()
            )
        )
        with suppress(OSError, SensorError):
            self.triggers.update(snapshot.cgroups)
        self.faults.update_sensor_faults((*snapshot.faults, *self.triggers.faults))
        seen = {task.key: self.agents.view_of(task) for task in tasks}
        by_task = {key: view for key, view in seen.items() if view is not None}
        self.latest = AssessedSample(snapshot, tasks, readings, result, by_task)
        return self.latest

    def still_holds(
        self, decisions: Sequence[Decision]
    ) -> tuple[list[Decision], list[Decision], Mapping[ProcessKey, Task] | None]:
        """
        Measure again: return the decisions that hold, those that do not, and the tasks now.

        If the second measurement fails, all decisions hold: the first measurement is only a moment
        old.
        """
        parts = self._measure(self.agents.views())
        if parts is None:
            return list(decisions), [], None
        _, tasks, readings = parts

        def holds(decision: Decision) -> bool:
            valid = self.call_engine(lambda engine: engine.is_still_valid(decision, readings))
            return valid is not False

        true = list(filter(holds, decisions))
        false = [decision for decision in decisions if decision not in true]
        return true, false, {task.key: task for task in tasks}

    @property
    def past(self) -> PastRuns:
        """The runs in progress."""
        return self._engine.past

    @property
    def wants_tick(self) -> bool:
        """Whether an outcome has made the next decision due."""
        return self._engine.wants_tick

    def apply(self, settings: Settings) -> None:
        """Use other settings from now on; histories are kept."""
        self.settings = settings
        self._engine.settings = settings

    def may_notify(self, task: Task | None) -> bool:
        """Whether the configured rules allow notifications about the guard of a task."""
        actions, rules = self.settings.actions, self.settings.rules
        return allowed_actions(actions, rules, task, ResourceKind.GUARD).notify

    def set_protecting(self, on: bool) -> None:
        """Turn decisions on or off; watching continues."""
        self._protecting = on
        self._engine.protecting = on

    def load(self, state: Any, log: Log) -> None:
        """
        Restore the engine's state of an earlier daemon.

        Args:
            state: from `Engine.dump`; may also be damaged.
            log: receives the reason if the state cannot be used.
        """
        try:
            self._engine.load(state, time.monotonic(), time.time())
        except Exception as error:  # the data on disk may be damaged in any way
            self._engine = self._new_engine()
            log.info("the forecast starts again", reason=error)

    def call_engine(self, question: Callable[[Engine], Any]) -> Any:
        """Call a function with the engine and return its result; None if it fails."""
        try:
            return question(self._engine)
        except Exception as error:
            self._engine_failed(error)
            return None

    def process_state(self, key: ProcessKey) -> str | None:
        """The state letter of /proc/PID/stat, D before a stop takes effect; None: it has ended."""
        try:
            state = self.machine.read_process(key).state
        except SensorError:
            return None
        return "D" if state in "RS" and process_control.is_stopping(key) else state

    def close(self) -> None:
        """Close the sensors."""
        self.triggers.close()
        self.machine.close()

    def _new_engine(self) -> Engine:
        # The folder may have several paths: compare the resolved one.
        folder = os.path.realpath(self.runtime_dir)
        engine = Engine(self.settings, os.getuid(), folder, self.offered)
        engine.protecting = self._protecting
        return engine

    def _measure(self, views: Collection[AgentState]) -> Measurement | None:
        try:
            snapshot = self._read_machine()
            tasks = self.kernels.with_notebook_names(self._group_tasks(snapshot))
            tasks = mark_stopping(tasks, self._engine.paused_tasks, process_control.is_stopping)
            readings = readings_of(snapshot, tasks, views, self._guard_limits)
        except Exception as error:  # includes an unexpected failure of a sensor
            self.faults.put(
                "machine",
                f"The machine could not be read: {error}. Nothing is watched until it can.",
                "The daemon tries again at each look.",
            )
            return None
        self.faults.clear("machine")
        return snapshot, tasks, readings

    def _read_machine(self) -> Snapshot:
        """
        One sample of the machine.

        A value read after an interruption of the daemon would look like sudden growth. So an
        interrupted sample is repeated once.
        """
        began, spent_s = time.monotonic(), time.thread_time()
        snapshot = self.machine.sample(began, time.time())
        interrupted_s = (time.monotonic() - began) - (time.thread_time() - spent_s)
        if interrupted_s > _MOST_INTERRUPTION_S:
            return self.machine.sample(time.monotonic(), time.time())
        return snapshot

    def _group_tasks(self, snapshot: Snapshot) -> tuple[Task, ...]:
        """The tasks; those of the previous sample if no process has changed since."""
        before, tasks = self._grouped
        if before is not None and before.infos is snapshot.infos:
            same = len(before.processes) == len(snapshot.processes) and all(
                map(is_, before.processes, snapshot.processes)
            )
            if same:
                return tasks
        tasks = group_processes(snapshot.processes, snapshot.infos)
        self._grouped = (snapshot, tasks)
        return tasks

    def _engine_failed(self, error: Exception) -> None:
        self._failures += 1
        self.faults.put(
            "engine",
            f"The forecast failed: {error!r}. The daemon tries again at the next look.",
            "Please report this with the daemon's log.",
        )
        if self._failures >= _MOST_FAILURES:
            self._engine = self._new_engine()
            self._failures = 0


def mark_stopping(
    tasks: tuple[Task, ...], paused: Container[ProcessKey], stopping: Callable[[ProcessKey], bool]
) -> tuple[Task, ...]:
    """
    The tasks, with state D for paused ones whose processes have not stopped yet.

    A process that a guard has frozen (cgroup v2) reports state S, as if it ran again.

    Args:
        tasks: the tasks of the sample.
        paused: tasks that the engine has paused.
        stopping: whether a process has been sent SIGSTOP and has not stopped yet.
    """

    def mark(task: Task) -> Task:
        root, *others = task.members
        if task.key in paused and root.state in "RS" and stopping(task.key):
            return replace(task, members=(replace(root, state="D"), *others))
        return task

    return tuple(map(mark, tasks))
