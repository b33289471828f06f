"""
What forked workers still share with their parent: measured now and then, within a budget.

After a fork both processes count every page as resident, though there is one
of each until somebody writes. Only a walk of the page tables tells how many
are left (/proc/PID/smaps_rollup): about 6 us for each MB of 4 KiB pages, and
it takes the lock of the process's memory map.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace

from watchdog_app.core.records import ProcessKey, ProcessSample
from watchdog_app.errors import SensorError
from watchdog_app.sensors import procfs
from watchdog_app.sensors.files import read_bytes

_TICK_BUDGET_S = 0.003  # begun within a tick; the last one may take longer
_EVERY_S = 30.0
_COST_FACTOR = 1000.0  # a walk of 50 ms is repeated after 50 s: a thousandth of a core
_REST_S = 0.5  # ticks that follow faster are those near a ceiling: no time for this then


class _Fork:
    __slots__ = ("due_mono_s", "shared_bytes")

    def __init__(self, now_mono_s: float) -> None:
        self.shared_bytes: int | None = None  # None: not measured yet
        self.due_mono_s = now_mono_s + 1.0  # many live shorter than that


class Forks:
    """Completes samples of forked processes by `cow_bytes`."""

    def __init__(
        self,
        proc: str,
        program_of: Callable[[int], Hashable | None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            proc: where the proc file system is mounted.
            program_of: what a pid executes: equal in parent and child when no exec lies between;
                None: not known.
            clock: to keep the budget.
        """
        self._proc = proc
        self._program_of = program_of
        self._clock = clock
        self._forks: dict[ProcessKey, _Fork] = {}
        self._last_mono_s: float | None = None

    def complete(
        self, samples: Sequence[ProcessSample], now_mono_s: float
    ) -> tuple[ProcessSample, ...]:
        """The samples, those of forks with what they share with their parent."""
        by_pid = {sample.key.pid: sample for sample in samples}
        forked = {}
        for sample in samples:
            parent = by_pid.get(sample.ppid)
            if parent is not None and parent is not sample:
                program = self._program_of(sample.key.pid)
                if program is not None and program == self._program_of(sample.ppid):
                    forked[sample.key] = parent
        if not forked:
            self._forks.clear()
            self._last_mono_s = now_mono_s
            return tuple(samples)
        for key in self._forks.keys() - forked.keys():
            del self._forks[key]
        at_rest = self._last_mono_s is None or now_mono_s - self._last_mono_s >= _REST_S
        self._last_mono_s = now_mono_s
        deadline_s = self._clock() + (_TICK_BUDGET_S if at_rest else 0.0)
        completed = []
        for sample in samples:
            parent = forked.get(sample.key)
            if parent is None:
                completed.append(sample)
                continue
            fork = self._forks.setdefault(sample.key, _Fork(now_mono_s))
            if now_mono_s >= fork.due_mono_s and self._clock() < deadline_s:
                self._measure(sample, fork, now_mono_s)
            private = _private(sample)
            # A newborn shares all that its parent has; it can never share more than it has.
            shared = _private(parent) if fork.shared_bytes is None else fork.shared_bytes
            completed.append(replace(sample, cow_bytes=min(private, shared)))
        return tuple(completed)

    def _measure(self, sample: ProcessSample, fork: _Fork, now_mono_s: float) -> None:
        begun_s = self._clock()
        own = None
        with suppress(SensorError):
            own = procfs.parse_private(
                read_bytes(f"{self._proc}/{sample.key.pid}/smaps_rollup", 4096)
            )
        if own is not None:
            # What is neither its own nor of a file is shared with whom it was forked from.
            fork.shared_bytes = max(0, _private(sample) - own)
        cost_s = self._clock() - begun_s
        fork.due_mono_s = now_mono_s + max(_EVERY_S, _COST_FACTOR * cost_s)


def _private(sample: ProcessSample) -> int:
    return max(0, sample.rss_bytes - (sample.shared_bytes or 0))
