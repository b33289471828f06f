"""Free blocks of a piece of memory: the best fit is taken, neighbours are joined."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeBlocks:
    """What may be taken again, by size and by place. Blocks do not overlap."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # (bytes, where), sorted
        self._begins: dict[int, int] = {}  # where -> bytes
        self._ends: dict[int, int] = {}  # its end -> where

    def take(self, need: int) -> tuple[int, int] | None:
        """The smallest that is large enough, as (where, bytes); None: there is none."""
        at = bisect_left(self._by_size, (need, -1))
        if at == len(self._by_size):
            return None
        size, where = self._by_size[at]
        self._remove(where, size)
        return where, size

    def joined(self, where: int, size: int) -> tuple[int, int]:
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
