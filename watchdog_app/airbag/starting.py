"""
Keepers are processes of their own: a fresh interpreter, which is smaller than any fork of ours.

What a keeper has to know is in the record of its bag, so anybody can start one for a bag that has
lost its own: `adopt`.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

from watchdog_app.airbag.second import Restarts
from watchdog_app.base.linux.files import write_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.airbag.record import BagRecord
    from watchdog_app.airbag.rescuers import Watcher

READY = b"ready"
KEPT = "another keeper keeps it"
_SLOW = b"its keeper did not answer"
_READY_S = 20.0  # a machine that swaps takes its time
_MODULE = "watchdog_app.airbag.keep"


def begin(folder: str, bag: int, answer: int) -> None:
    """
    Start the keeper of a bag that is being made.

    Args:
        folder: for its record.
        bag: to read that record from, once the bag is entered; closed without a word: nothing came
            of it, and the keeper ends.
        answer: where the keeper writes READY, or why there is none.

    Raises:
        OSError: no process can be started.
    """
    os.waitpid(spawn("begin", folder, bag, answer), 0)  # it is nobody's child then


def adopt(folder: str, patience_s: float = _READY_S) -> bool:
    """
    Start a keeper for a bag that has none any more; False: there can be none.

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
    """What a keeper says that was started: READY, or why it does not keep the bag."""
    end = time.monotonic() + patience_s
    found = b""
    while not found:
        left_s = end - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            return _SLOW
        found = os.read(fd, 4096)
        if not found:
            return b"its keeper ended"
    return found


def spawn(role: str, folder: str, *fds: int) -> int:
    """
    A process in one of the roles of `keep`; its pid.

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


class Second:
    """
    The one that waits for our end; when it ends itself, another is started.

    Args:
        record: told its pid.
        watcher: whoever polls for us.
    """

    def __init__(self, record: BagRecord, watcher: Watcher) -> None:
        self._record = record
        self._watcher = watcher
        self._restarts = Restarts()

    def guarded_by(self, pid: int) -> None:
        """It is process `pid`."""
        self._record.second_pid = pid
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


def outside_of_bags() -> bool:
    """Leave the bag that this keeper was started in, where that is allowed; whether it is out."""
    from watchdog_app.airbag import groups

    if groups.bag_of(os.getpid()) is None:
        return True
    for controller, folder in (("memory", "memory"), ("freezer", "freezer"), ("", "")):
        path = groups.enclosing(controller)
        if path is None:
            continue
        with suppress(OSError):
            write_bytes(f"/sys/fs/cgroup/{folder}{path}/cgroup.procs", b"%d" % os.getpid())
    return groups.bag_of(os.getpid()) is None
