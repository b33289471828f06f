"""
The place in the data at which a loop would be saved: as a step or a pass began to fail.

Noted at the end of each step and where a pass begins that nothing else is read beside. What was
drawn since is to be drawn again, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from watchdog_app.agent.loops import own_random
from watchdog_app.agent.loops.passes import EpochPasses


class LastPlace:
    """Where the passes of one loop stood; costs a microsecond to note."""

    def __init__(self, passes: EpochPasses[Any, Any]) -> None:
        self._passes = passes
        self._epoch: list[Any] | None = None  # the list itself: another one in each epoch
        self._latest: dict[int, Any] = {}
        self._sources: list[tuple[Any, int, int]] = []
        self._counts: list[tuple[int, bool, int]] = []  # of each pass of the epoch
        self._own: list[list[Any]] | None = None

    def note(self, *, own: bool) -> None:
        """
        The loop is at a place that it can be brought back to.

        Args:
            own: note also the random numbers that the data draws for itself.
        """
        epoch = self._passes._epoch
        if epoch is not self._epoch or len(epoch) != len(self._counts):
            self._epoch, self._latest = epoch, dict(self._passes._latest)
            self._sources = [
                (source, source.passes, source.total)
                for each in self._latest.values()
                if (source := getattr(each, "source", None)) is not None
            ]
        if self._sources:
            self._counts = [_count(each) for each in epoch]
        elif len(epoch) == 1:  # at each step of most PyTorch loops
            only = epoch[0]
            self._counts = [(only.drawn, only.finished, 0)]
        else:
            self._counts = [(each.drawn, each.finished, 0) for each in epoch]
        self._own = [own_random.take(each.generators) for each in epoch] if own else None

    def is_beginning(self) -> bool:
        """Whether the pass that has just begun is the only one that is being read."""
        return all(each.finished for each in self._passes._epoch[:-1])

    def is_of_this_epoch(self) -> bool:
        """Whether no other epoch has begun since."""
        return self._passes._epoch is self._epoch

    def has_moved(self) -> bool:
        """Whether a batch was drawn since, or a pass begun; True where there are no passes."""
        epoch = self._passes._epoch
        if not epoch:
            return True
        return epoch is not self._epoch or [each.drawn for each in epoch] != [
            drawn for drawn, _, _ in self._counts
        ]

    def forget(self) -> None:
        """Keep nothing alive."""
        self.__init__(self._passes)  # type: ignore[misc]

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Within it the passes stand as noted; own random numbers stay as put back."""
        if self._epoch is None:
            yield
            return
        passes, old = self._passes, self._epoch
        epoch, latest = passes._epoch, passes._latest
        same = epoch is old
        # In an epoch that has begun since, and read nothing that was noted, nothing has been had.
        kept = old[: len(self._counts)] if same else []
        now = [_count(each) for each in kept]
        sources = [(source, source.passes, source.total) for source, _, _ in self._sources]
        passes._epoch = kept
        passes._latest = dict(self._latest)
        for source, begun, total in self._sources:
            source.passes, source.total = begun, total
        for each, count in zip(kept, self._counts, strict=False):
            each.ahead = each.drawn != count[0]
            _set(each, count)
        for each, states in zip(kept, self._own or [], strict=False):
            own_random.put(each.generators, states)
        try:
            yield
        finally:
            passes._epoch, passes._latest = epoch, latest
            for source, begun, total in sources:
                source.passes, source.total = begun, total
            for each, count in zip(kept, now, strict=True):
                each.ahead = False
                _set(each, count)


def _count(each: Any) -> tuple[int, bool, int]:
    source = getattr(each, "source", None)
    return each.drawn, each.finished, 0 if source is None else source.total


def _set(each: Any, count: tuple[int, bool, int]) -> None:
    each.drawn, each.finished = count[:2]
    source = getattr(each, "source", None)
    if source is not None:
        source.total = count[2]
