"""
Measure the pages that forked workers still share with their family, within a time budget.

After a fork both processes count every page as resident, though each page exists once until one of
them writes to it. Then there are two copies, yet neither process has grown. An interpreter with
reference counts writes to all of its objects this way, without any allocation.

Only a walk of the page tables (/proc/PID/smaps_rollup) tells how many pages are still shared. It
costs about 6 us for each MB of 4 KiB pages and takes the lock of the process's memory map. So a
thread does it, outside the sampling loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.records import dataclass
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.machine import ProcessKey, ProcessSample

_TICK_BUDGET_S = 0.003  # for walks started in one sample; the last one may exceed it
_FIRST_WALK_AFTER_S = 1.0  # many processes do not live that long
_EVERY_S = 30.0
_COST_FACTOR = 1000.0  # a walk of 50 ms is repeated after 50 s: a thousandth of a core
# samples follow each other faster than this only near a limit, where each copy counts
_REST_S = 0.5
_EVERY_NEAR_S = 1.0
_COST_FACTOR_NEAR = 100.0  # for a whole family together: a hundredth of a core


class _Walk:
    """The result of the last page walk of one process."""

    __slots__ = ("cost_s", "shared_bytes", "since_mono_s", "surplus_bytes")

    def __init__(self, now_mono_s: float) -> None:
        self.since_mono_s = now_mono_s  # time of the walk, or of the first sample
        self.cost_s: float | None = None  # None: not measured yet
        self.shared_bytes: int | None = None  # shared with any process
        # Bytes counted beyond the process's part of its shared pages; None: the kernel does not
        # say.
        self.surplus_bytes: int | None = None

    def due_mono_s(self, relatives: int, *, at_rest: bool) -> float:
        """
        Return when the next walk may start.

        Args:
            relatives: number of processes in the family.
            at_rest: no resource is near a limit.
        """
        if self.cost_s is None:
            return self.since_mono_s + _FIRST_WALK_AFTER_S
        every_s = max(_EVERY_S, _COST_FACTOR * self.cost_s)
        if not at_rest:
            near_s = max(_EVERY_NEAR_S, _COST_FACTOR_NEAR * self.cost_s * relatives)
            every_s = min(every_s, near_s)
        return self.since_mono_s + every_s


@dataclass(eq=False)
class SharedPages:
    """
    Adds `cow_bytes` to the samples of forked processes.

    Args:
        proc: where the proc file system is mounted.
        find_program: identifies the program that a pid executes. It is equal in parent and child if
            the child has not called exec; None: unknown.
        clock: measures the budget, in seconds.
        background: runs the walks; by default own threads, for which it waits.
    """

    proc: str
    find_program: Callable[[int], Hashable | None]
    clock: Callable[[], float] = time.perf_counter
    background: Background = field(default_factory=Background)
    # Of forks and the heads of their families.
    _walks: dict[ProcessKey, _Walk] = field(default_factory=dict, init=False)
    _last_mono_s: float = field(default=float("-inf"), init=False)

    def add_cow_bytes(
        self, samples: Sequence[ProcessSample], now_mono_s: float
    ) -> tuple[ProcessSample, ...]:
        """
        Return the samples, with `cow_bytes` set for forks.

        Args:
            samples: of all watched processes.
            now_mono_s: monotonic time of the sample.
        """
        at_rest = now_mono_s - self._last_mono_s >= _REST_S
        self._last_mono_s = now_mono_s
        parents = self._find_parents(samples)
        families: dict[ProcessKey, list[ProcessSample]] = {}
        for sample in samples:
            if sample.key in parents:
                head = _family_head(sample, parents)
                families.setdefault(head.key, [head]).append(sample)
        self._walks = {
            member.key: self._walks.get(member.key) or _Walk(now_mono_s)
            for family in families.values()
            for member in family
        }
        spent_s = 0.0
        cow: dict[ProcessKey, int] = {}
        for family in families.values():
            for member in family:
                walk = self._walks[member.key]
                due_s = walk.due_mono_s(len(family), at_rest=at_rest)
                if now_mono_s >= due_s and spent_s < _TICK_BUDGET_S:
                    spent_s += self._measure(member, walk, now_mono_s)
            cow.update(self._divide_surplus(family, parents))
        return tuple(
            replace(sample, cow_bytes=min(_private_bytes(sample), cow[sample.key]))
            if sample.key in cow
            else sample
            for sample in samples
        )

    def _find_parents(self, samples: Sequence[ProcessSample]) -> dict[ProcessKey, ProcessSample]:
        """Map each fork to the process that it was forked from."""
        by_pid = {sample.key.pid: sample for sample in samples}
        parents = {}
        for sample in samples:
            parent = by_pid.get(sample.ppid)
            if parent is not None and parent is not sample:
                program = self.find_program(sample.key.pid)
                if program is not None and program == self.find_program(sample.ppid):
                    parents[sample.key] = parent
        return parents

    def _divide_surplus(
        self, family: Sequence[ProcessSample], parents: Mapping[ProcessKey, ProcessSample]
    ) -> Iterator[tuple[ProcessKey, int]]:
        """
        Compute what to subtract from each fork's size, so that the sum counts every page once.
        """
        walks = [self._walks[member.key] for member in family]
        surplus = [walk.surplus_bytes for walk in walks]
        whole = sum(part for part in surplus if part is not None)
        of_forks = sum(part for part in surplus[1:] if part is not None)
        for member, walk in zip(family[1:], walks[1:], strict=True):
            if walk.shared_bytes is None:
                # Not measured yet: a new fork shares all pages of its parent, and can never share
                # more than that.
                yield member.key, _private_bytes(parents[member.key])
            elif None in surplus:
                yield member.key, walk.shared_bytes
            else:
                # Do not use `shared_bytes` here: siblings can share pages that their parent has
                # since written to.
                part = walk.surplus_bytes or 0
                yield member.key, whole * part // of_forks if of_forks else 0

    def _measure(self, sample: ProcessSample, walk: _Walk, now_mono_s: float) -> float:
        """Store the result of a finished walk; return its seconds, or 0 while it still runs."""
        measured = self.background.ask(
            Question(sample.key.pid, "shares", sample.key), lambda: self._walk_pages(sample)
        )
        if measured is None:
            return 0.0  # asked again at the next sample
        private_bytes, data, cost_s = measured
        clean = process.status_bytes(data, b"Private_Clean")
        dirty = process.status_bytes(data, b"Private_Dirty")
        part = process.status_bytes(data, b"Pss_Anon")  # not before Linux 5.3
        if clean is not None and dirty is not None:
            # Private memory that is neither the process's own nor a file's is shared with its
            # family.
            walk.shared_bytes = max(0, private_bytes - clean - dirty)
            walk.surplus_bytes = None if part is None else max(0, private_bytes - part)
        walk.since_mono_s, walk.cost_s = now_mono_s, cost_s
        return cost_s

    def _walk_pages(self, sample: ProcessSample) -> tuple[int, bytes, float]:
        """
        Walk the pages, in a thread; return the size at that time, the file, and the seconds taken.
        """
        begun_s = self.clock()
        data = read_or_empty(f"{self.proc}/{sample.key.pid}/smaps_rollup", 4096)
        return _private_bytes(sample), data, self.clock() - begun_s


def _family_head(
    sample: ProcessSample, parents: Mapping[ProcessKey, ProcessSample]
) -> ProcessSample:
    """Follow a fork to the first process of its family, through forks of forks."""
    seen = {sample.key}
    while (parent := parents.get(sample.key)) is not None and parent.key not in seen:
        sample = parent
        seen.add(sample.key)
    return sample


def _private_bytes(sample: ProcessSample) -> int:
    return max(0, sample.rss_bytes - (sample.shared_bytes or 0))
