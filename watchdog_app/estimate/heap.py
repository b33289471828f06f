"""
What the C library keeps of the memory that a program gives back: glibc's malloc, played.

A process holds more than what lives in it. Blocks above a threshold are mapped from the kernel
and go back at once; all others come from a heap that shrinks only at its end, and a hole in it is
used again only by what fits. The threshold rises with every mapped block that is freed, up to
32 MiB. How much that leaves behind depends on the order of sizes, so the order is played: best fit
from the free blocks, neighbours joined, the top grown and trimmed as malloc does it.

Threads have arenas of their own: what one of them gave back serves no other. Blocks below `_SMALL`
are counted and not placed.
"""

from __future__ import annotations

from collections.abc import Iterable

from watchdog_app.estimate.free_blocks import FreeBlocks

# Key of a block, its bytes (0: it is freed), the thread that takes it (0: the main one).
Event = tuple[int, int, int]

_SMALL = 4096
_PAGE = 4096
_HEAD = 80  # of a block: malloc's own words, and the alignment that frameworks ask for
_FIRST_THRESHOLD = 128 * 1024
_MOST_THRESHOLD = 32 * 1024 * 1024
_TOP_PAD = 128 * 1024
_ARENA_HEAP = 64 * 1024 * 1024  # threads beside the main one have heaps of at most this size


class Memory:
    """What a process holds: mapped blocks and the arenas of its threads; `peak` is the most."""

    def __init__(self) -> None:
        self.live = 0  # bytes in use
        self.live_peak = 0
        self.resident = 0
        self.peak = 0
        self._mapped = 0
        self._small = 0
        self._threshold = _FIRST_THRESHOLD
        self._arenas: dict[int, _Arena] = {}
        # Key -> bytes as asked for, bytes as placed, arena (None: mapped or small), where.
        self._blocks: dict[int, tuple[int, int, _Arena | None, int]] = {}

    def play(self, events: Iterable[Event]) -> None:
        """Take and give back, in this order."""
        for key, size, thread in events:
            if size:
                self.take(key, size, thread)
            else:
                self.give_back(key)

    def take(self, key: int, size: int, thread: int = 0) -> None:
        """A block that is written to in full."""
        self.live += size
        if size < _SMALL:
            self._small += size
            self._blocks[key] = (size, 0, None, 0)
        else:
            need = (size + _HEAD + 15) // 16 * 16
            arena = self._arenas.get(thread)
            if arena is None:
                arena = self._arenas[thread] = _Arena(thread > 0)
            where = arena.place(need, self._threshold)
            if where is None:
                need = (need + _PAGE - 1) // _PAGE * _PAGE
                self._mapped += need
                self._blocks[key] = (size, need, None, 0)
            else:
                self._blocks[key] = (size, need, arena, where)
        self.live_peak = max(self.live_peak, self.live)
        self._count()
        self.peak = max(self.peak, self.resident)

    def give_back(self, key: int) -> None:
        """A block that is not needed any more; one that is not known is none of ours."""
        size, placed, arena, where = self._blocks.pop(key, (0, 0, None, 0))
        self.live -= size
        if arena is not None:
            arena.release(where, placed, 2 * self._threshold)
        elif placed:
            self._mapped -= placed
            if self._threshold < placed <= _MOST_THRESHOLD:
                self._threshold = placed
        else:
            self._small -= size
        self._count()

    def _count(self) -> None:
        arenas = sum(each.touched for each in self._arenas.values())
        self.resident = self._mapped + self._small + arenas


class _Arena:
    """A heap of one growing piece, or of pieces of `_ARENA_HEAP` for a thread of its own."""

    def __init__(self, pieces: bool) -> None:
        self.touched = 0  # bytes that were ever written since they were last given back
        self._pieces = pieces
        self._at = 0  # where the piece that grows begins
        self._top = 0  # where its unused end begins
        self._end = 0  # as far as the kernel gave it
        self._written = 0  # as far as it was ever written
        self._free = FreeBlocks()

    def place(self, need: int, threshold: int) -> int | None:
        """Where a block goes; None where it is mapped instead."""
        found = self._free.take(need)
        if found is not None:
            where, size = found
            if size > need:
                self._free.add(where + need, size - need)
            return where
        if self._end - self._top < need:
            if need >= threshold or (self._pieces and need > _ARENA_HEAP):
                return None
            self._grow(need)
        where = self._top
        self._top += need
        if self._top > self._written:
            self.touched += self._top - self._written
            self._written = self._top
        return where

    def release(self, where: int, size: int, trim: int) -> None:
        """A block is free again; neighbours are joined, a long unused end goes back."""
        where, size = self._free.joined(where, size)
        if where + size != self._top:
            self._free.add(where, size)
            return
        self._top = where
        if self._end - self._top > trim:
            self._end = self._top + _TOP_PAD
            if self._written > self._end:
                self.touched -= self._written - self._end
                self._written = self._end

    def _grow(self, need: int) -> None:
        if self._pieces and self._top + need > self._at + _ARENA_HEAP:
            # What is left of the old piece serves smaller blocks; the new one has no neighbour.
            rest = self._at + _ARENA_HEAP - self._top
            if rest >= _SMALL and self._at != self._end:
                self._free.add(self._top, rest)
                self.touched += max(0, self._top + rest - self._written)
            self._at = self._top = self._written = self._at + 2 * _ARENA_HEAP
        self._end = self._top + need + (0 if self._pieces else _TOP_PAD)
