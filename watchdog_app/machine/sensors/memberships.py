"""
Which memory groups processes are in, read beside the loop.

A read of /proc/PID/cgroup waits for the cgroup_mutex. While memory is short, PID 1 may hold
that lock for minutes as it moves a process: the loop must not wait for it. Nothing tells that a
process was moved, so all are asked again and again.

Source: kernel, kernel/cgroup/cgroup.c (proc_cgroup_show, cgroup_procs_write).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import Fault

SOURCE = "processes.groups"
_EVERY_S = 1.0
_STUCK_S = 1.0  # a read that takes longer is waiting for a lock
_MOST_ROUNDS = 4  # as many threads as `Background` has
_LIMIT_BYTES = 1 << 14


class _Round:
    """One read of all that were asked for, in a thread; `found` fills up as it goes on."""

    def __init__(self, proc: str, number: int, pids: Collection[int], now_mono_s: float) -> None:
        self.question = Question(0, "groups", number)
        self.found: dict[int, bytes] = {}
        self.at: int | None = None  # whose file is being read
        self.begun_mono_s = now_mono_s
        self.ends = False  # after the one that is being read: others go on without it
        self._proc = proc
        self._pids = tuple(pids)

    def run(self) -> bool:
        for pid in self._pids:
            if self.ends:
                break
            self.at = pid
            try:
                self.found[pid] = _read(f"{self._proc}/{pid}/cgroup")
            except OSError:  # it has ended, or may not be read
                self.found[pid] = b""
        self.at = None
        return True


class Memberships:
    """
    The contents of /proc/PID/cgroup, as they were last read.

    Args:
        proc: where the proc file system is mounted.
        patience_s: how long a read is waited for; None: until it is done.
    """

    def __init__(self, proc: str, patience_s: float | None = None) -> None:
        self._proc = proc
        # One thread that stays: to begin one each second would cost more than the reading.
        self._background = Background(patience_s, linger_s=None)
        self._rounds: list[_Round] = []
        self._number = 0
        self._due_mono_s = float("-inf")
        self._known: set[int] = set()
        self.fault: Fault | None = None

    def read(self, pids: Iterable[int], now_mono_s: float) -> dict[int, bytes]:
        """
        What has been read since the last call, by pid; all pids are asked once a second.

        A pid that was never asked is asked at once. One whose read waits for a lock is left out
        until that read is over; the others are asked without it.
        """
        wanted = set(pids)
        self._known &= wanted
        found: dict[int, bytes] = {}
        self._collect(found, now_mono_s)
        due = now_mono_s >= self._due_mono_s
        asked = wanted if due else wanted - self._known
        asked = asked - {each.at for each in self._rounds if each.at is not None}
        busy = any(not each.ends for each in self._rounds)
        if asked and not busy and len(self._rounds) < _MOST_ROUNDS:
            if due:
                self._due_mono_s = now_mono_s + _EVERY_S
            self._known |= asked
            self._number += 1
            self._rounds.append(_Round(self._proc, self._number, sorted(asked), now_mono_s))
            self._collect(found, now_mono_s)
        self._background.over()
        stuck = sum(each.ends for each in self._rounds)
        self.fault = _fault(stuck) if stuck else None
        return {pid: data for pid, data in found.items() if data and pid in wanted}

    def close(self) -> None:
        """End the thread, once it waits for no lock."""
        self._background.close()

    def review(self) -> None:
        """The next `read` asks all of them, however short the last one is ago."""
        self._due_mono_s = float("-inf")

    def _collect(self, found: dict[int, bytes], now_mono_s: float) -> None:
        for each in list(self._rounds):
            done = self._background.ask(each.question, each.run)
            for pid in list(each.found):
                found[pid] = each.found.pop(pid)
            if done:
                self._rounds.remove(each)
            elif now_mono_s - each.begun_mono_s >= _STUCK_S and not each.ends:
                each.ends = True
                self._due_mono_s = now_mono_s


def _read(path: str) -> bytes:
    """May wait: only in a thread."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LIMIT_BYTES)
    finally:
        os.close(fd)


def _fault(count: int) -> Fault:
    return Fault(
        SOURCE,
        f"The memory groups of {'a process' if count == 1 else 'some processes'} cannot be read: "
        "the kernel keeps them locked. A move to another group is not seen until it answers.",
        "Nothing to do: this happens while memory is short, and ends with it.",
    )
