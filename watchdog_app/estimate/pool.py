"""
What TensorFlow's allocator on a CPU with oneDNN keeps: its best-fit pool, played.

With oneDNN (the default on x86) TensorFlow takes memory for tensors from regions that it never
gives back: each twice the size of the one before, blocks by best fit, free neighbours joined, a
block cut only when what is left over is as large as what was asked for. So a process grows to its
worst moment, gaps included, and stays there. A page counts once it was written.
"""

from __future__ import annotations

from bisect import bisect_left

from watchdog_app.estimate.free_blocks import FreeBlocks
from watchdog_app.estimate.heap import Event

_SMALL = 4096  # below, another allocator serves
_ROUND = 256
_FIRST_REGION = 2 * 1024 * 1024
_LEFT_OVER = 128 * 1024 * 1024  # that much is cut off in any case
_CELL = 64 * 1024  # how finely it is kept what was written


class Pool:
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
        self._free = FreeBlocks()
        self._blocks: dict[int, tuple[int, int, int]] = {}  # key -> asked, placed (0: small), where

    @property
    def peak(self) -> int:
        """The most that was ever resident."""
        return self.resident

    def take(self, key: int, size: int, _thread: int = 0) -> None:
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
        where, length = self._free.take(need) or self._extended(need)
        if length >= 2 * need or length - need >= _LEFT_OVER:
            self._free.add(where + need, length - need)
            length = need
        self._blocks[key] = (size, length, where)
        self._write(where, need)

    def give_back(self, key: int) -> None:
        """A block that is not needed any more; one that is not known is none of ours."""
        size, placed, where = self._blocks.pop(key, (0, 0, 0))
        self.live -= size
        if not placed:
            self._small -= size
            return
        self._free.add(*self._free.joined(where, placed))

    def play(self, events: list[Event]) -> None:
        """Take and give back, in this order."""
        for key, size, _ in events:
            if size:
                self.take(key, size)
            else:
                self.give_back(key)

    def _extended(self, need: int) -> tuple[int, int]:
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
