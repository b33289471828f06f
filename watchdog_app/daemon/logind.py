"""
Trainings are saved before the machine is shut down or sleeps.

logind announces both and waits for a lock, five seconds by default. A helper process holds that
lock, because a D-Bus library would double the memory of the daemon. It runs only while a training
has an agent, and only where logind runs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field

from watchdog_app.base import children
from watchdog_app.base.errors import RequestError
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import Task
from watchdog_app.daemon.checkpoints import RescueRequest
from watchdog_app.daemon.executor import Executor
from watchdog_app.daemon.last_seen import LastSeen
from watchdog_app.daemon.poller import READ, Poller

SHUTDOWN = "the machine is shut down"
_EVENTS = {b"shutdown": SHUTDOWN, b"sleep": "the machine goes to sleep"}
_SEATS = "/run/systemd/seats"  # a folder of logind's
_MARGIN_S = 0.3  # of the time that logind waits
_RETRY_S, _LONGEST_RETRY_S = 20.0, 3600.0  # polkit may refuse the lock, or start slowly


@dataclass(eq=False)
class Logind:
    """
    Asks all agents to save when logind announces a shutdown or a sleep.

    Args:
        poller: waits for the helper.
        executor: asks the agents.
        last_seen: learns that ends of tasks belong to a shutdown.
        tasks: the tasks of the last sample.
        note: writes an entry about the daemon to the journal.
    """

    poller: Poller
    executor: Executor
    last_seen: LastSeen
    tasks: Callable[[], Sequence[Task]] = field(kw_only=True)
    note: Callable[[str], object] = field(kw_only=True)
    _grace_s: float = field(default=0.0, init=False)
    _helper: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _next_start_mono_s: float = field(default=0.0, init=False)
    _retry_s: float = field(default=_RETRY_S, init=False)
    _asked: list[RescueRequest] = field(default_factory=list, init=False)

    def follow(self, now_mono_s: float, grace_s: float) -> None:
        """
        Start or end the helper: it runs while an agent is connected.

        Args:
            now_mono_s: running time.
            grace_s: the setting `agent.grace_s`.
        """
        self._grace_s = grace_s
        wanted = bool(self.executor.checkpoints.agents.connected()) and os.path.isdir(_SEATS)
        if not wanted:
            self.close()
        elif self._helper is None and now_mono_s >= self._next_start_mono_s:
            argv = children.module_argv("watchdog_app.daemon.logind_helper")
            pipe = subprocess.PIPE
            self._helper = subprocess.Popen(argv, stdin=pipe, stdout=pipe)
            self.poller.add(self._output, READ, self._receive)

    @property
    def _output(self) -> int:
        assert self._helper is not None  # noqa: S101 - callers have started it
        assert self._helper.stdout is not None  # noqa: S101
        return self._helper.stdout.fileno()

    def _receive(self, _: int) -> None:
        lines = os.read(self._output, 4096).splitlines()
        if not lines:  # it has failed
            self.close()
            self._next_start_mono_s = time.monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        else:
            self._retry_s = _RETRY_S
        for line in lines:
            words = line.split()
            if words[0] in _EVENTS:
                self._save_all(_EVENTS[words[0]], float(words[1]) - _MARGIN_S)
            else:
                self.last_seen.shutdown = False

    def _save_all(self, what: str, delay_s: float) -> None:
        """Ask all trainings to save; the lock is released when they have answered."""
        self.last_seen.shutdown = what == SHUTDOWN
        self.note(what)
        self._asked = []
        wait_s = max(0.0, min(self._grace_s, delay_s))
        for task in self.tasks():
            if not task.paused:
                with suppress(RequestError):
                    self._asked += self.executor.request_checkpoint(
                        task, f"logind: {what}", wait_s, self._answered
                    )
        if not self._asked:
            self._release()

    def _answered(self, _: RescueRequest) -> None:
        if all(each.status != "requested" for each in self._asked):
            self._release()

    def _release(self) -> None:
        helper = self._helper
        if helper is not None and helper.stdin is not None:
            with suppress(OSError):
                helper.stdin.write(b"release\n")
                helper.stdin.flush()

    def close(self) -> None:
        """End the helper, which gives the lock back."""
        helper = self._helper
        if helper is None:
            return
        self.poller.remove(self._output)
        self._helper = None
        helper.kill()
        helper.communicate()
