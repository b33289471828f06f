"""
Find processes that may be Python: check new and young ones often, all others in turn.

The kernel shows the pid that it gave out last. So every process that started since the previous
sample has a pid in between. A shell becomes Python by exec, mostly within its first seconds, so
watchdog checks young processes at each sample, at most every 0.5 s. It lists all processes only
once a minute, since a list of 5,000 costs 8 ms.

Source: proc(5), /proc/loadavg.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Container
from contextlib import suppress
from typing import NamedTuple

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, parse_number, read_or_empty
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.sensors.command_line import is_interpreter
from watchdog_app.machine.sensors.identity import has_python_argv

_SOURCE = "processes"
_LIST_EVERY_S = 60.0
_YOUNG_S = 10.0
_YOUNG_EVERY_S = 0.5
_ROUND_S = 20.0  # all other processes are checked within this time, unless there are too many
_MAX_OTHERS = 64  # processes checked at one sample: 0.3 ms
_MAX_NEW = 256  # pids given out between two samples; a full list is cheaper than more of them


class Changes(NamedTuple):
    """The result of one scan."""

    existing: frozenset[int] | None  # every process; None: this scan did not list them
    recheck: list[int]  # known processes that the caller must check now


class Discovery:
    """
    Finds candidate processes. `new_pids` queues new ones, oldest first, until the caller takes
    them.

    Args:
        proc: where the proc file system is mounted. The last pid is known only for our own pid
            namespace, so any other /proc is listed at each scan.
        watched: pids that need no check.
        background: runs the reads that can block.
    """

    def __init__(
        self, proc: str, watched: Container[int] = (), background: Background | None = None
    ) -> None:
        self._proc = proc
        self._watched = watched
        self._background = background or Background()
        self._loadavg = KeptFile("/proc/loadavg") if has_last_pid(proc) else None
        self._last_pid: int | None = None
        # pids given out before the latest scan, whose process did not exist yet
        self._unseen: list[int] = []
        self._known = array("i")  # pids of the last listing, lowest first
        self._next_index = 0  # index in `_known` of the process to check next
        self._young: dict[int, float] = {}  # by pid: since when, in monotonic seconds
        self._listed_mono_s = float("-inf")
        self._young_mono_s = self._others_mono_s = float("-inf")
        self.new_pids: deque[int] = deque()
        self.fault: Fault | None = None

    def scan(self, now_mono_s: float) -> Changes:
        """
        Find processes that started since the last scan, and known ones that are due for a check.
        """
        begun = self._find_new(now_mono_s)
        running = None
        if begun is None or now_mono_s - self._listed_mono_s >= _LIST_EVERY_S:
            running, new = self._list_processes(now_mono_s)
            # At the start every process counts as new; only the ones with the highest pids may be
            # young.
            self._young.update(dict.fromkeys(new[-_MAX_NEW:], now_mono_s))
            begun = [*(begun or ()), *new]
        self.new_pids.extend(begun)
        return Changes(running, self._due_young(now_mono_s) + self._next_others(now_mono_s))

    def is_python(self, pid: int) -> bool:
        """Return whether a process is Python; False also while the answer is not known yet."""
        try:
            exe = os.readlink(f"{self._proc}/{pid}/exe")
            return is_interpreter(exe.removesuffix(" (deleted)"))
        except PermissionError:
            question = Question(pid, "program")
            return self._background.ask(question, lambda: has_python_argv(self._proc, pid)) or False
        except OSError:
            return False

    def forget(self, pid: int) -> None:
        """Stop checking a pid that has ended or is watched from now on."""
        self._young.pop(pid, None)

    def close(self) -> None:
        """Close the file descriptor."""
        if self._loadavg is not None:
            self._loadavg.close()

    def _find_new(self, now_mono_s: float) -> list[int] | None:
        """List processes that started since the last scan or started a thread; None: unknown."""
        last, before = None, self._last_pid
        if self._loadavg is not None:
            with suppress(SensorError):
                last = process.parse_last_pid(self._loadavg.read(128))
        self._last_pid = last
        # A lower pid than before: the kernel has wrapped around and started at the lowest pid
        # again.
        if last is None or before is None or not 0 <= last - before <= _MAX_NEW:
            return None
        found: dict[int, None] = {}
        unseen, self._unseen = self._unseen, []
        for pid in (*unseen, *range(before + 1, last + 1)):
            leader = self._process_of_thread(pid)
            if leader is None:
                if pid > before:  # the kernel gives out a pid a moment before its process exists
                    self._unseen.append(pid)
                continue
            if leader in self._watched:
                continue
            found[leader] = None
            if leader == pid:  # a process that only started a thread is not young
                self._young[pid] = now_mono_s
        return list(found)

    def _process_of_thread(self, pid: int) -> int | None:
        """Return the process of a pid, which may be a thread's; None: the pid does not exist."""
        status = read_or_empty(f"{self._proc}/{pid}/status", 1024)
        words = process.status_words(status, b"Tgid")
        return parse_number(words[0]) if words else None

    def _list_processes(self, now_mono_s: float) -> tuple[frozenset[int] | None, list[int]]:
        """List all processes and those not known before; None: /proc cannot be listed."""
        try:
            listed = list_pids(self._proc)
        except OSError as error:
            self.fault = Fault(
                _SOURCE,
                f"Processes are not watched: {self._proc} cannot be listed ({error.strerror}). "
                "The machine's memory is still watched.",
                "Mount the proc file system there.",
            )
            return None, []
        self.fault = None
        running = frozenset(listed)
        new = running.difference(self._known, self._young)
        self._known = listed
        self._listed_mono_s = now_mono_s
        self._young = {pid: since for pid, since in self._young.items() if pid in running}
        return running, sorted(pid for pid in new if pid not in self._watched)

    def _due_young(self, now_mono_s: float) -> list[int]:
        """
        List the young processes to check now; each is checked a last time when it stops being
        young.
        """
        if now_mono_s - self._young_mono_s < _YOUNG_EVERY_S:
            return []
        self._young_mono_s = now_mono_s
        asked = [pid for pid, since in self._young.items() if since < now_mono_s][-_MAX_NEW:]
        for pid in asked:
            if now_mono_s - self._young[pid] >= _YOUNG_S:
                del self._young[pid]
        return asked

    def _next_others(self, now_mono_s: float) -> list[int]:
        """List the other processes that are due, in turn."""
        elapsed_s = min(_ROUND_S, now_mono_s - self._others_mono_s)
        self._others_mono_s = now_mono_s
        count = min(_MAX_OTHERS, 1 + int(len(self._known) * elapsed_s / _ROUND_S))
        turn = self._known[self._next_index : self._next_index + count]
        self._next_index = (
            self._next_index + count if self._next_index + count < len(self._known) else 0
        )
        return [pid for pid in turn if pid not in self._watched and pid not in self._young]


def has_last_pid(proc: str) -> bool:
    """
    Return whether /proc/loadavg shows the last pid of the namespace that `proc` lists.

    lxcfs mounts its own file over /proc/loadavg, with a pid of the host outside the container.
    """
    if proc != "/proc":
        return False
    with suppress(OSError):
        return os.stat("/proc/loadavg").st_dev == os.stat("/proc/self").st_dev
    return False


def list_pids(proc: str) -> array[int]:
    """
    List all processes, lowest pid first.

    The names are read one at a time. A list of 5,000 strings would leave a hole of its size in our
    heap.

    Raises:
        OSError: the folder cannot be listed.
    """
    with os.scandir(proc) as entries:
        names = (each.name for each in entries)
        found = array("i", (int(name) for name in names if name.isascii() and name.isdigit()))
    # The kernel lists pids in order; another file system (a copy, an emulation) may not.
    return array("i", sorted(found))
