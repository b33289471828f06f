"""
Stopping tasks and letting them go on: written down first, done in a thread, told when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.base.text.plain import clean
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import OutcomeStatus
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.daemon import pauses as pausing
from watchdog_app.daemon.checkpoints import Checkpoints
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.pause_store import PauseStore
from watchdog_app.daemon.pauses import Pause, Pauses
from watchdog_app.machine import process_control
from watchdog_app.machine.process_control.paused import Paused, Resumed

_RECORD_S = 1.0  # for a pause to be written down before its first signal

Ended = Callable[[OutcomeStatus, str, Mapping[str, Any]], None]


class Stops:
    """
    One task at a time is stopped or let go on by one hand.

    Args:
        tasks: those of the last look; the pause of one leaves the others running.
        kept: called when a pause or its end is to be known to the next daemon.
    """

    def __init__(
        self,
        *,
        boot: str,
        worker: Worker,
        checkpoints: Checkpoints,
        pauses: Pauses,
        pause_store: PauseStore,
        tasks: Callable[[], Sequence[Task]],
        kept: Callable[[], None],
        log: Log,
    ) -> None:
        self._boot = boot
        self._worker = worker
        self._checkpoints = checkpoints
        self._pauses = pauses
        self._pause_store = pause_store
        self._tasks = tasks
        self._kept = kept
        self._log = log
        self._moving: set[ProcessKey] = set()  # being paused or resumed right now

    def moves(self, task: ProcessKey) -> bool:
        """Whether it is being paused or resumed right now."""
        return task in self._moving

    def refuse_moving(self, task: ProcessKey, name: str) -> None:
        """
        Raises:
            RequestError: it is being paused or resumed right now.
        """
        if task in self._moving:
            raise RequestError(f"{name} is being paused or resumed right now; ask again.")

    def pause(self, task: Task, reason: str, ended: Ended) -> None:
        """Stop a task that is neither being paused nor resumed right now."""
        ident = pausing.ident(task.key, self._boot)
        keys = [member.key for member in task.members]
        others = {other.key for other in self._tasks()} - {task.key}
        family = process_control.family(keys, others=others)
        before = self._pauses.get(task.key)
        stored = pausing.intent(task, family, self._boot, reason, before)
        self._moving.add(task.key)
        if not self._pause_store.record_intent(ident, stored, _RECORD_S):
            self._log.warning(
                f"{clean(task.name)} is about to be paused, and that can be written down nowhere. "
                f"Should the daemon end, let it go on with: kill -CONT {task.key.pid}"
            )

        def finish(value: Any, error: Exception | None) -> None:
            self._moving.discard(task.key)
            paused: Paused | None = value
            if paused is None or not paused.keys:
                held = self._pauses.get(task.key)
                if held is None:
                    self._pause_store.forget(ident)
                else:
                    self._pause_store.record(held)
                if paused is None:
                    ended(OutcomeStatus.FAILED, str(error), {})
                elif held is not None:
                    ended(
                        OutcomeStatus.FAILED,
                        f"{clean(task.name)} is paused by watchdog already.",
                        {},
                    )
                else:
                    ended(
                        OutcomeStatus.FAILED,
                        f"{clean(task.name)} was stopped already, by somebody else: leave it to "
                        f"them, or let it go on with: kill -CONT {task.key.pid}",
                        {},
                    )
                return
            self._pauses.add(Pause(task.key, task.name, paused, reason))
            held = self._pauses.get(task.key)
            if held is not None:
                self._pause_store.record(held)
            count = len(paused.keys)
            ended(
                OutcomeStatus.DONE,
                f"{count} process{'es' if count > 1 else ''} stopped ({paused.method}). "
                f"Let it go on with: watchdog resume {task.key.pid}",
                {"method": paused.method, "processes": count},
            )
            self._kept()  # the engine has just learned whom to let go when there is room again
            self._checkpoints.stopped(task)

        self._worker.submit(lambda: process_control.pause(keys, others=others), finish)

    def resume(
        self, pause: Pause, ended: Ended, done: Callable[[Resumed | Exception], None] | None
    ) -> None:
        """Let a task go on that is neither being paused nor resumed right now."""
        self._moving.add(pause.task)

        def finish(value: Any, error: Exception | None) -> None:
            self._moving.discard(pause.task)
            if error is not None:
                ended(OutcomeStatus.FAILED, str(error), {})
            else:
                self._pauses.remove(pause.task)
                self._pause_store.forget(pausing.ident(pause.task, self._boot))
                count = len(value.keys)
                ended(OutcomeStatus.DONE, f"{count} of its processes run again.", {})
                self._kept()
            if done is not None:
                done(error if error is not None else value)

        self._worker.submit(lambda: process_control.resume(pause.paused), finish)
