"""
What a process with TensorFlow holds of its tensors on a CPU: a simulation of its best-fit pool.

With oneDNN (the default on x86) TensorFlow takes memory for tensors from regions that it never
gives back. Each region is twice as large as the one before. A block is the best fit, and is split
only where the rest is as large as the request; free neighbours are joined. So a process grows to
its worst moment, gaps included, and stays there. A page counts once it was written.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from watchdog_app.estimate.tf_graph import Event

# Holes that the pool is left with, since no two steps have the same order: a part of what the steps
# take. TensorFlow's own count of live bytes beside the process, four steps of `fit`.
_RACES_SHARE = 0.15
_STEP_KEYS = 10_000_000
_STATE_KEY = -_STEP_KEYS
_SMALL = 4096  # below, another allocator serves
_ROUND = 256
_FIRST_REGION = 2 * 1024 * 1024
_LEFT_OVER = 128 * 1024 * 1024  # that much is cut off in any case
_CELL = 64 * 1024  # how finely it is kept what was written


class _Pool:
    """A pool of regions; `resident` only grows."""

    def __init__(self) -> None:
        self.live = 0  # bytes in use, as they were asked for
        self.live_peak = 0
        self.resident = 0
        self._small = 0
        self._small_peak = 0
        self._next_region = _FIRST_REGION
        self._regions: list[tuple[int, bytearray]] = []  # where it begins, what was written
        self._at = 0  # where the next region begins
        self._free = _FreeBlocks()
        self._blocks: dict[int, tuple[int, int, int]] = {}  # key -> asked, placed (0: small), where

    def allocate(self, key: int, size: int) -> None:
        """A block that is written to in full."""
        self.live += size
        self.live_peak = max(self.live_peak, self.live)
        if size < _SMALL:
            self._small += size
            grown = max(0, self._small - self._small_peak)
            self._small_peak += grown
            self.resident += grown
            self._blocks[key] = (size, 0, 0)
            return
        need = (size + _ROUND - 1) // _ROUND * _ROUND
        where, length = self._free.pop_best_fit(need) or self._add_region(need)
        if length >= 2 * need or length - need >= _LEFT_OVER:
            self._free.add(where + need, length - need)
            length = need
        self._blocks[key] = (size, length, where)
        self._write(where, need)

    def free(self, key: int) -> None:
        """A block that is not needed any more; one that is not known is none of ours."""
        size, placed, where = self._blocks.pop(key, (0, 0, 0))
        self.live -= size
        if not placed:
            self._small -= size
            return
        self._free.add(*self._free.merge_neighbours(where, placed))

    def _add_region(self, need: int) -> tuple[int, int]:
        """Another region, as (where, bytes)."""
        increased = False
        while need > self._next_region:
            self._next_region *= 2
            increased = True
        size = self._next_region
        if not increased:
            self._next_region *= 2
        self._regions.append((self._at, bytearray((size + _CELL - 1) // _CELL)))
        where = self._at
        self._at += size + _ROUND  # a gap: regions have no common border
        return where, size

    def _write(self, where: int, size: int) -> None:
        at = bisect_left(self._regions, where + 1, key=lambda each: each[0]) - 1
        begin, written = self._regions[at]
        first, last = (where - begin) // _CELL, (where - begin + size - 1) // _CELL + 1
        fresh = written.count(0, first, last)
        if fresh:
            written[first:last] = b"\1" * (last - first)
            self.resident += fresh * _CELL


class Weight(NamedTuple):
    """One variable."""

    bytes: int
    initialized: bool  # its first values were computed: made with two more of its size beside it
    slots_bytes: int  # what the optimizer keeps for it


class PoolBytes(NamedTuple):
    """What a process holds of its tensors."""

    live_bytes: int  # in use at the worst moment
    resident_bytes: int  # taken from the system at the worst moment


def simulate_pool(
    weights: Sequence[Weight], plays: Sequence[Sequence[Event]], data_bytes: int
) -> PoolBytes:
    """
    What a process holds that builds a model, makes the optimizer's state and runs the steps.

    Args:
        weights: in the order in which they are made.
        plays: the events of one step each; steps differ where operations race each other.
        data_bytes: a batch as TensorFlow holds it.
    """
    pool = _Pool()
    for at, weight in enumerate(weights):
        if weight.initialized:
            pool.allocate(-1, weight.bytes)
            pool.allocate(-2, weight.bytes)
        pool.allocate(_STATE_KEY - 2 * at, weight.bytes)
        if weight.initialized:
            pool.free(-1)
            pool.free(-2)
    start = pool.live_peak  # the draws are over when the steps begin
    for at, weight in enumerate(weights):
        if weight.slots_bytes:
            pool.allocate(_STATE_KEY - 2 * at - 1, weight.slots_bytes)
    pool.live_peak = static = pool.live
    for number, events in enumerate(plays, 1):
        pool.allocate(-3, max(1, data_bytes))
        _run_step(pool, events, number * _STEP_KEYS)
        pool.free(-3)
    holes = int(_RACES_SHARE * max(0, pool.live_peak - static))
    return PoolBytes(max(pool.live_peak, min(start, pool.resident)), pool.resident + holes)


def _run_step(pool: _Pool, events: Sequence[Event], first_key: int) -> None:
    """Replay one step's events and free what is left. Keys of two steps differ."""
    alive: dict[int, None] = {}
    for event, size in events:
        key = event + first_key
        if size:
            pool.allocate(key, size)
            alive[key] = None
        else:
            pool.free(key)
            alive.pop(key, None)
    for key in alive:
        pool.free(key)


class _FreeBlocks:
    """What may be taken again: best fit, neighbours joined. Blocks do not overlap."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # (bytes, where), sorted
        self._begins: dict[int, int] = {}  # where -> bytes
        self._ends: dict[int, int] = {}  # its end -> where

    def pop_best_fit(self, need: int) -> tuple[int, int] | None:
        """The smallest that is large enough, as (where, bytes); None: there is none."""
        at = bisect_left(self._by_size, (need, -1))
        if at == len(self._by_size):
            return None
        size, where = self._by_size[at]
        self._remove(where, size)
        return where, size

    def merge_neighbours(self, where: int, size: int) -> tuple[int, int]:
        """A block that becomes free, with its free neighbours, which are none any more."""
        before = self._ends.get(where)
        if before is not None:
            length = self._begins[before]
            self._remove(before, length)
            where, size = before, size + length
        after = self._begins.get(where + size)
        if after is not None:
            self._remove(where + size, after)
            size += after
        return where, size

    def add(self, where: int, size: int) -> None:
        """A block that may be taken; as it is, its neighbours are not looked at."""
        insort(self._by_size, (size, where))
        self._begins[where] = size
        self._ends[where + size] = where

    def _remove(self, where: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, where))]
        del self._begins[where]
        del self._ends[where + size]
