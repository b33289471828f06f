"""
Supervisors are processes of their own: a fresh interpreter, which is smaller than any fork of ours.

What a supervisor has to know is in the record of its guard, so anybody can start one for a
guard that has lost its own: `adopt`.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

from watchdog_app.base.linux.files import write_bytes
from watchdog_app.guard.standby import Restarts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.guard.record import GuardRecord
    from watchdog_app.guard.trainings import Watcher

READY = b"ready"
KEPT = "another supervisor keeps it"
_SLOW = b"its supervisor did not answer"
_READY_S = 20.0  # a machine that swaps takes its time
_MODULE = "watchdog_app.guard.process"


def begin(folder: str, guard: int, answer: int) -> None:
    """
    Start the supervisor of a guard that is being made.

    Args:
        folder: for its record.
        guard: to read that record from, once the guard is entered; closed without a word: nothing
            came of it, and the supervisor ends.
        answer: where the supervisor writes READY, or why there is none.

    Raises:
        OSError: no process can be started.
    """
    os.waitpid(spawn("begin", folder, guard, answer), 0)  # it is nobody's child then


def adopt(folder: str, patience_s: float = _READY_S) -> bool:
    """
    Start a supervisor for a guard that has none any more; False: there can be none.

    One that is not ready in time may still come, on a machine that is too busy.
    """
    try:
        read, write = os.pipe()
    except OSError:
        return False
    try:
        middle = spawn("adopt", folder, write)
        os.close(write)
        write = -1
        os.waitpid(middle, 0)
        return hear(read, patience_s) in (READY, KEPT.encode(), _SLOW)
    except OSError:
        return False
    finally:
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)


def hear(fd: int, patience_s: float = _READY_S) -> bytes:
    """What a supervisor says that was started: READY, or why it does not keep the guard."""
    end = time.monotonic() + patience_s
    found = b""
    while not found:
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            return _SLOW
        found = os.read(fd, 4096)
        if not found:
            return b"its supervisor ended"
    return found


def spawn(role: str, folder: str, *fds: int) -> int:
    """
    A process in one of the roles of `process`; its pid.

    Raises:
        OSError: no process can be started.
    """
    from watchdog_app.base.children import bare_argv_of

    if sys.platform == "win32":
        raise OSError("no memory groups")
    for fd in fds:
        os.set_inheritable(fd, True)
    words = [*bare_argv_of(_MODULE), role, folder, *(str(fd) for fd in fds)]
    return os.posix_spawn(words[0], words, os.environ)


class Standby:
    """
    The one that waits for our end; when it ends itself, another is started.

    Args:
        record: told its pid.
        watcher: whoever polls for us.
    """

    def __init__(self, record: GuardRecord, watcher: Watcher) -> None:
        self._record = record
        self._watcher = watcher
        self._restarts = Restarts()

    def guarded_by(self, pid: int) -> None:
        """It is process `pid`."""
        self._record.standby_pid = pid
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # it has ended already
            self._have_another()
            return

        def ended() -> None:
            self._watcher.forget(handle)
            os.close(handle)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            self._have_another()

        self._watcher.watch(handle, ended)

    def _have_another(self) -> None:
        if not self._restarts.may():
            return
        with suppress(OSError):
            handle = os.pidfd_open(os.getpid())
            try:
                pid = spawn("guard", self._record.folder, handle)
            finally:
                os.close(handle)
            self.guarded_by(pid)


def outside_of_guards() -> bool:
    """Leave the guard that this supervisor was started in; whether it is out."""
    from watchdog_app.guard import cgroup

    if cgroup.guard_of(os.getpid()) is None:
        return True
    for controller, folder in (("memory", "memory"), ("freezer", "freezer"), ("", "")):
        path = cgroup.enclosing(controller)
        if path is None:
            continue
        with suppress(OSError):
            write_bytes(f"/sys/fs/cgroup/{folder}{path}/cgroup.procs", b"%d" % os.getpid())
    return cgroup.guard_of(os.getpid()) is None
