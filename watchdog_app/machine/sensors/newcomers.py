"""
Whether a Python has begun, without listing all processes.

The kernel tells the pid that it gave out last; whoever began since then has one of those in
between. Each is asked for its executable, and again while it is young: a shell becomes Python by
exec.

Source: proc(5), /proc/loadavg.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, read_record
from watchdog_app.machine.sensors.command_line import is_interpreter

_FOLLOWED_S = 10.0  # it is asked three times by glances as far apart as they can be
_AGAIN_S = 0.5
_NEVER_S = float("-inf")
_MOST = 256  # pids given out between two glances; beyond that a listing is cheaper


class Newcomers:
    """
    Processes that began lately.

    Args:
        proc: where the proc file system is mounted. The pid that was given out last is known for
            our own pid namespace alone: of another /proc nothing is known.
        own_uid: whose processes count; 0: everybody's.
        own_pid: not a newcomer.
        watched: whether a pid is of a process that is watched already.
    """

    def __init__(
        self,
        proc: str,
        own_uid: int,
        own_pid: int,
        watched: Callable[[int], bool] = lambda pid: False,  # noqa: ARG005
    ) -> None:
        self._proc = proc
        self._own_uid = own_uid
        self._own_pid = own_pid
        self._watched = watched
        self._loadavg = KeptFile("/proc/loadavg") if tells_pids(proc) else None
        self._last_pid: int | None = None  # when we looked last
        self._listed_pid: int | None = None  # when all were listed
        self._fresh: dict[int, tuple[float, float]] = {}  # since when, and asked when
        self._last_words = b"\0"  # the end of that file, when we looked last
        self._family: int | None = None  # the watched process whose thread began last
        self.found = False  # a Python, since the last listing
        self.stayed = False  # somebody else, for longer than a moment, since then
        self.became: set[int] = set()  # pids of processes that turned out to be Python since then

    def begun(self) -> bool | None:
        """Whether any process or thread has begun since the last listing; None: not known."""
        last = self._read()
        if last is None:
            return None
        return self._listed_pid is None or last != self._listed_pid

    def listed(self) -> None:
        """All processes are about to be listed."""
        self._last_pid = self._listed_pid = self._read()
        self.found = self.stayed = False
        self.became.clear()

    def look(self, now_mono_s: float) -> bool:
        """Whether a Python has begun since the last listing, or may have."""
        # Written out for what happens at rest, each few seconds: every call that it makes finds
        # the caches of a busy machine cold, and costs 6 us then.
        words = b""
        if self._loadavg is not None:
            try:  # `suppress` would be two more of them
                words = self._loadavg.read(128)
            except SensorError:
                pass
        if not self._fresh and not self.found and words.endswith(self._last_words):
            return False  # mostly nobody has begun
        last, before = process.parse_last_pid(words), self._last_pid
        self._last_pid = last
        self._last_words = b" %d\n" % last if last is not None else b"\0"
        if last is None or last != before:
            if last is None or before is None or not 0 < last - before <= _MOST:
                self.found = True  # also when the pids have begun anew from the lowest
                return True
            for pid in range(before + 1, last + 1):
                # Mostly threads and commands of a moment. To ask who has ended for its program
                # takes twice as long, for the exception alone.
                if os.access(f"{self._proc}/{pid}", os.F_OK):
                    self._fresh[pid] = (now_mono_s, _NEVER_S)
        if self._fresh:
            self._ask(now_mono_s)
        return self.found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._loadavg is not None:
            self._loadavg.close()

    def _read(self) -> int | None:
        if self._loadavg is not None:
            with suppress(SensorError):
                return process.parse_last_pid(self._loadavg.read(128))
        return None

    def _ask(self, now_mono_s: float) -> None:
        for pid, (since_mono_s, asked_mono_s) in list(self._fresh.items()):
            if now_mono_s - since_mono_s > _FOLLOWED_S or pid == self._own_pid:
                del self._fresh[pid]
                self.stayed = self.stayed or pid != self._own_pid
                continue
            if now_mono_s - asked_mono_s < _AGAIN_S:
                continue
            if self._is_of_family(pid):
                del self._fresh[pid]
                continue
            try:
                exe = os.readlink(f"{self._proc}/{pid}/exe")
            except PermissionError:  # another user's, or not yet ours: sudo and cron begin as root
                self._fresh[pid] = (since_mono_s, now_mono_s)
                continue
            except OSError:  # it has ended, or is a thread of the kernel's
                del self._fresh[pid]
                continue
            self._fresh[pid] = (since_mono_s, now_mono_s)
            if is_interpreter(exe.removesuffix(" (deleted)")):
                del self._fresh[pid]
                grown = self.counts(pid)
                if grown is not None:
                    self.found = True
                    self.became.add(grown)

    def _is_of_family(self, pid: int) -> bool:
        """
        Whether it is one more thread of the watched process that began one last.

        Some programs begin threads all the time; one question for each instead of four.
        """
        family = self._family
        return (
            family is not None
            and self._watched(family)
            and os.path.exists(f"{self._proc}/{family}/task/{pid}")
        )

    def counts(self, pid: int) -> int | None:
        """
        The process of this pid, where it is to be watched from now on; else None.

        Of a thread where its process is not watched yet: one that became Python long after it
        began, and begins to work.
        """
        with suppress(SensorError, OSError):
            if self._own_uid and os.stat(f"{self._proc}/{pid}").st_uid != self._own_uid:
                return None
            status = read_record(f"{self._proc}/{pid}/status", 1024)
            words = process.status_words(status, b"Tgid")
            leader = process.whole(words[0]) if words else None
            if leader is not None and leader != self._own_pid:
                if not self._watched(leader):
                    return leader
                self._family = leader
        return None


def tells_pids(proc: str) -> bool:
    """
    Whether the pid that was given out last is told, and is one of the pids that are listed.

    lxcfs lays a file of its own over it, with a pid of the machine outside the container.
    """
    if proc != "/proc":
        return False
    with suppress(OSError):
        return os.stat("/proc/loadavg").st_dev == os.stat("/proc/self").st_dev
    return False
