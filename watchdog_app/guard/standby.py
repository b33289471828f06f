"""
The standby: a process that only waits for the supervisor's end, and the supervisor for its.

Whichever ends first is started anew by the other; where that fails, the guard's limits become the
kernel's own again: somebody may be killed then, and nobody is held for ever.

It imports next to nothing, and so holds next to nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

NOT_BEGUN = 3  # exit code of a supervisor that was never ready: whoever wanted it has been told
_MOST_RESTARTS, _WITHIN_S = 5, 60.0


class Restarts:
    """How often something was started anew lately."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def may(self) -> bool:
        """Once more, and it is counted."""
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _WITHIN_S]
        self._at.append(now)
        return len(self._at) <= _MOST_RESTARTS


def guard(
    folder: str, supervisor: int | None, handle: int, keep: Callable[[str, int], NoReturn]
) -> NoReturn:
    """
    Be the standby, to the end of the guard.

    Args:
        folder: of the guard's record.
        supervisor: its pid where it is our child; None: it is not.
        handle: a pidfd of the supervisor.
        keep: what a new supervisor does, with the folder and our pid.
    """
    code = 1
    try:
        name_process("watchdog-standby")
        restarts = Restarts()
        while True:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll()
            os.close(handle)
            if supervisor is not None:
                _, status = os.waitpid(supervisor, 0)
                if os.waitstatus_to_exitcode(status) == NOT_BEGUN:
                    break
            if _over(folder):
                break
            if not restarts.may():
                _release(folder)
                break
            try:
                supervisor = _fork(folder, keep)
                handle = os.pidfd_open(supervisor)
            except OSError:
                _release(folder)
                break
        code = 0
    finally:
        os._exit(code)


def _fork(folder: str, keep: Callable[[str, int], NoReturn]) -> int:
    mine = os.getpid()
    pid = os.fork()
    if pid == 0:
        keep(folder, mine)
    return pid


def _over(folder: str) -> bool:
    """A supervisor that comes to the end of its guard takes the record away."""
    from watchdog_app.guard import record as records

    found = records.read(folder)
    return found is None or not found.group or not os.path.isdir(found.group)


def _release(folder: str) -> None:
    from watchdog_app.guard import cgroup
    from watchdog_app.guard import record as records

    found = records.read(folder)
    if found is not None and found.group:
        cgroup.existing(found).release()


def name_process(name: str) -> None:
    """As tools that list processes show it; prctl(2) PR_SET_NAME."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name[:15])
    except OSError:
        pass


def leave_everything(*keep: int) -> None:
    """Hold no terminal, no folder and no open file but these, and hear no terminal's signals."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    begin = 3
    for fd in sorted(keep):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout = sys.stderr = None
