"""
Which processes may be Python: those that began, the young, and some of the others in turn.

The kernel tells the pid that it gave out last: whoever began since the sample before has one of
those in between. A shell becomes Python by exec, mostly within its first seconds: the young are
asked at each sample. All processes are listed once a minute, since a list of 5,000 costs 8 ms.

Source: proc(5), /proc/loadavg.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Container
from contextlib import suppress
from typing import NamedTuple

from watchdog_app.base.errors import Denied, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import KeptFile, read_link, read_or_empty
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.sensors.command_line import is_interpreter
from watchdog_app.machine.sensors.identity import has_python_argv

_SOURCE = "processes"
_LIST_EVERY_S = 60.0
_YOUNG_S = 10.0
_YOUNG_EVERY_S = 0.5
_ROUND_S = 20.0  # all others are asked within this time, as far as there are not too many
_MAX_OTHERS = 64  # asked at one sample: 0.3 ms
_MAX_NEW = 256  # pids given out between two samples; for more a list is cheaper


class Changes(NamedTuple):
    """What a look has found."""

    existing: frozenset[int] | None  # every process; None: they were not listed
    recheck: list[int]  # known processes that are to be asked now


class Discovery:
    """
    Finds candidates. `new_pids` holds new ones, the oldest first, until the caller takes them.

    Args:
        proc: where the proc file system is mounted. The last pid is known for our own pid
            namespace only: another /proc is listed at each look.
        watched: pids that need not be asked.
        background: where reads that can block are done.
    """

    def __init__(
        self, proc: str, watched: Container[int] = (), background: Background | None = None
    ) -> None:
        self._proc = proc
        self._watched = watched
        self._background = background or Background()
        self._loadavg = KeptFile("/proc/loadavg") if has_last_pid(proc) else None
        self._last_pid: int | None = None
        self._unseen: list[int] = []  # given out before the latest look, but not there then
        self._known = array("i")  # at the last listing, the lowest first
        self._next_index = 0  # in it: who is asked next
        self._young: dict[int, float] = {}  # since when
        self._listed_mono_s = float("-inf")
        self._young_mono_s = self._others_mono_s = float("-inf")
        self.new_pids: deque[int] = deque()
        self.fault: Fault | None = None

    def scan(self, now_mono_s: float) -> Changes:
        """Who began since the last look, and who is to be asked again."""
        begun = self._find_new(now_mono_s)
        there = None
        if begun is None or now_mono_s - self._listed_mono_s >= _LIST_EVERY_S:
            there, new = self._list_processes(now_mono_s)
            # Of all that are there at the start the last ones may be young.
            self._young.update(dict.fromkeys(new[-_MAX_NEW:], now_mono_s))
            begun = [*(begun or ()), *new]
        self.new_pids.extend(begun)
        return Changes(there, self._due_young(now_mono_s) + self._next_others(now_mono_s))

    def is_python(self, pid: int) -> bool:
        """
        Whether a process is Python; False also where that is not known yet: it is asked again.
        """
        try:
            return is_interpreter(read_link(f"{self._proc}/{pid}/exe").removesuffix(" (deleted)"))
        except Denied:
            question = Question(pid, "program")
            return self._background.ask(question, lambda: has_python_argv(self._proc, pid)) or False
        except SensorError:
            return False

    def forget(self, pid: int) -> None:
        """Stop checking a pid that has ended or is watched from now on."""
        self._young.pop(pid, None)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._loadavg is not None:
            self._loadavg.close()

    def _find_new(self, now_mono_s: float) -> list[int] | None:
        """Processes that began since the last look, or began a thread; None: not known."""
        last, before = None, self._last_pid
        if self._loadavg is not None:
            with suppress(SensorError):
                last = process.parse_last_pid(self._loadavg.read(128))
        self._last_pid = last
        # Below the one before: pids have begun anew from the lowest.
        if last is None or before is None or not 0 <= last - before <= _MAX_NEW:
            return None
        found: dict[int, None] = {}
        unseen, self._unseen = self._unseen, []
        for pid in (*unseen, *range(before + 1, last + 1)):
            leader = self._process_of_thread(pid)
            if leader is None:
                if pid > before:  # the kernel gives out a pid a moment before its process is there
                    self._unseen.append(pid)
                continue
            if leader in self._watched:
                continue
            found[leader] = None
            if leader == pid:  # it makes no process young that it begins threads
                self._young[pid] = now_mono_s
        return list(found)

    def _process_of_thread(self, pid: int) -> int | None:
        """The process that a pid, perhaps of a thread, belongs to; None: it is not there."""
        status = read_or_empty(f"{self._proc}/{pid}/status", 1024)
        words = process.status_words(status, b"Tgid")
        return process.parse_number(words[0]) if words else None

    def _list_processes(self, now_mono_s: float) -> tuple[frozenset[int] | None, list[int]]:
        """All processes, and those of them that were not known; None: they cannot be listed."""
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
        there = frozenset(listed)
        new = there.difference(self._known, self._young)
        self._known = listed
        self._listed_mono_s = now_mono_s
        self._young = {pid: since for pid, since in self._young.items() if pid in there}
        return there, sorted(pid for pid in new if pid not in self._watched)

    def _due_young(self, now_mono_s: float) -> list[int]:
        """The young that are to be asked; the last time when they are young no more."""
        if now_mono_s - self._young_mono_s < _YOUNG_EVERY_S:
            return []
        self._young_mono_s = now_mono_s
        asked = [pid for pid, since in self._young.items() if since < now_mono_s][-_MAX_NEW:]
        for pid in asked:
            if now_mono_s - self._young[pid] >= _YOUNG_S:
                del self._young[pid]
        return asked

    def _next_others(self, now_mono_s: float) -> list[int]:
        """As many of the others as are due, one after the other."""
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
    Whether the pid that was given out last is told, and is one of the pids that are listed.

    lxcfs lays a file of its own over it, with a pid of the machine outside the container.
    """
    if proc != "/proc":
        return False
    with suppress(OSError):
        return os.stat("/proc/loadavg").st_dev == os.stat("/proc/self").st_dev
    return False


def list_pids(proc: str) -> array[int]:
    """
    All processes that are there, the lowest first.

    Read one by one: a list of 5,000 names would stay in our memory as a hole of its size.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(proc) as entries:
        names = (each.name for each in entries)
        found = array("i", (int(name) for name in names if name.isascii() and name.isdigit()))
    # The kernel lists them so; another file system (a copy, an emulation) need not.
    return array("i", sorted(found))
