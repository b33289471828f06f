"""Kernels that Jupyter restarts: snoozes and records move from the old process to the new one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.decisions import Decision, Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.tasks import KernelRegistry, Restart
from watchdog_app.history.entries import TaskRef
from watchdog_app.history.journal import Entry

T = TypeVar("T")

_MOST_REMEMBERED = 100
# Jupyter's restarter checks every 3 s and restarts at once; a loaded machine takes longer.
_RESTART_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class _KernelEnd:
    """The end of a kernel."""

    task: Task
    notified: Decision | None  # None: people were not notified
    mono_s: float


Notified = tuple[Decision, Task]  # a notification, and the old task as last seen


@dataclass(frozen=True, slots=True)
class KernelRestart:
    """A kernel that continues in another process."""

    before: ProcessKey
    now: ProcessKey
    entry: Entry  # for the journal
    notified: Notified | None  # None: people are not notified


class Restarts:
    """
    Follows kernels by their ids.

    Args:
        kernels: maps the tasks of each sample to kernels and finds restarts.
    """

    def __init__(self, kernels: KernelRegistry) -> None:
        self._kernels = kernels
        self._ends: dict[ProcessKey, _KernelEnd] = {}
        # kernels whose end is not known yet
        self._restarts: dict[ProcessKey, tuple[Restart, float]] = {}

    def task_ended(
        self, task: Task | None, notified: Decision | None, mono_s: float | None = None
    ) -> Notified | None:
        """
        Record the end of a task.

        Args:
            task: the task; None: no sample contained it.
            notified: the notification about the end; None: people were not notified.
            mono_s: time of the end; None: now.

        Returns:
            The notification of a restart that was seen before the end was known, if there is one.
        """
        if task is None or task.info.kernel_id is None:
            return None  # only kernels are restarted under the same name
        end = _KernelEnd(task, notified, time.monotonic() if mono_s is None else mono_s)
        restarted = self._restarts.pop(task.key, None)
        if restarted is not None:  # the restart came while the diagnosis waited
            return _restart_notification(*restarted, end)
        _remember(self._ends, task.key, end)
        return None

    def update(self, tasks: Sequence[Task]) -> list[KernelRestart]:
        """The restarts that a new sample shows."""
        found = []
        for restart in self._kernels.update(tasks):
            end = self._ends.pop(restart.before, None)
            notified = None
            if end is None:
                _remember(self._restarts, restart.before, (restart, time.monotonic()))
            else:
                notified = _restart_notification(restart, time.monotonic(), end)
            entry = _restart_entry(restart, end, time.time())
            found.append(KernelRestart(restart.before, restart.now.key, entry, notified))
        return found


def _restart_notification(restart: Restart, seen_mono_s: float, end: _KernelEnd) -> Notified | None:
    """The notification that a kernel runs again after a reported end."""
    after_s = max(0.0, seen_mono_s - end.mono_s)
    if end.notified is None or after_s > _RESTART_WITHIN_S:
        return None
    before, process = end.notified, f"process {restart.now.key.pid}"
    decision = replace(
        before,
        id=f"{before.id}-restarted",
        at_mono_s=before.at_mono_s + after_s,
        at_unix_s=before.at_unix_s + after_s,
        reason=f"restarted as {process} {format_duration(after_s)} after it died: {before.reason}",
        evidence={**before.evidence, "topic": Topic.RESTARTED.value},
    )
    return replace(decision, notification=notification(decision, end.task)), end.task


def _remember(known: dict[ProcessKey, T], key: ProcessKey, value: T) -> None:
    while len(known) >= _MOST_REMEMBERED:
        del known[next(iter(known))]
    known[key] = value


def _restart_entry(restart: Restart, end: _KernelEnd | None, unix_s: float) -> Entry:
    task, before = restart.now, restart.before
    text = (
        f"The kernel of {clean(task.name)} was restarted: process {before.pid} became "
        f"{task.key.pid}. Its variables are gone."
    )
    if end is not None and end.notified is not None:
        text += " It had died, see before."
    data = {
        "pid": task.key.pid,
        "before": before.pid,
        "name": task.name,
        "kernel_id": restart.kernel_id,
        "text": text,
    }
    return Entry(unix_s, "restart", data, task.key.pid, task.name, TaskRef.of(task).path)
