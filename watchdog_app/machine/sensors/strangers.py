"""
What the processes of a memory group hold that are not watched: no more than that can they grow by.

A group grows by more than its programs: files in RAM, the kernel's own memory, pages that forked
workers stop sharing. Only who looks at all of its processes may say that one of them did it.

Source: kernel, Documentation/admin-guide/cgroup-v2.rst (cgroup.procs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.cgroups import Group
from watchdog_app.base.linux.files import read_bytes
from watchdog_app.core.model.machine import CgroupMemory

_FULL = 0.5  # of the limit: below it nobody asks who fills the group
_EVERY_S = 2.0
_COST_FACTOR = 1000.0  # a look of 10 ms is repeated after 10 s: a thousandth of a core
_MOST_FOLDERS = 64
_MOST_PROCESSES = 1000


class Strangers:
    """Completes groups that fill up by `strangers_bytes`."""

    def __init__(self, proc: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[str, tuple[float, int | None]] = {}  # when it is due again, and what

    def complete(
        self, groups: Sequence[CgroupMemory], watched: Collection[int], now_mono_s: float
    ) -> tuple[CgroupMemory, ...]:
        """
        The groups, those that fill up with what the others in them hold.

        Args:
            groups: the limited ones.
            watched: pids of the processes that are watched.
            now_mono_s: time of this look.
        """
        full = {group.path for group in groups if _fills(group)}
        for gone in self._known.keys() - full:
            del self._known[gone]
        completed = []
        for group in groups:
            if group.path in full:
                due_s, held = self._known.get(group.path, (now_mono_s, None))
                if now_mono_s >= due_s:
                    begun_s = self._clock()
                    held = self._held(group.path, frozenset(watched))
                    cost_s = self._clock() - begun_s
                    due_s = now_mono_s + max(_EVERY_S, _COST_FACTOR * cost_s)
                    self._known[group.path] = (due_s, held)
                completed.append(replace(group, strangers_bytes=held))
            else:
                completed.append(group)
        return tuple(completed)

    def _held(self, path: str, watched: Collection[int]) -> int | None:
        """RAM of those in a group and below it that are not watched; None: not all can be seen."""
        held = seen = 0
        try:
            for pid in Group(path).pids(_MOST_FOLDERS):
                seen += 1
                # 0: a process of another pid namespace, of which nothing can be read.
                if seen > _MOST_PROCESSES or pid == 0:
                    return None
                if pid not in watched:
                    held += self._resident(pid)
        except SensorError:
            return None
        return held

    def _resident(self, pid: int) -> int:
        try:
            return process.Statm(read_bytes(f"{self._proc}/{pid}/statm", 256)).resident_bytes
        except (Gone, ValueError):
            return 0  # it has ended


def _fills(group: CgroupMemory) -> bool:
    limit = group.limit_bytes if group.limit_bytes is not None else group.high_bytes
    return limit is not None and group.unreclaimable_bytes >= _FULL * limit
