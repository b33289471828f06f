"""
Which batches of its data sets a custom training loop has had, and how a fresh loop skips them.

Every `iter()` of a data set is a pass: a reshuffling tf.data pipeline draws a
new order with each. A resumed loop begins as many passes as there were, and
draws the finished batches of the current one again without handing them out.
A pass is known by its place among the passes of its epoch, since objects have
no name that another process would know.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

_SAY_AFTER_S = 2.0  # drawing finished batches again is said when it takes longer


class _Source:
    """A data set that was iterated over in this process."""

    def __init__(self, dataset: Any) -> None:
        self.passes = 0
        self.total = 0  # batches drawn, over all passes
        self._strong: Any = None
        try:
            self._weak: Callable[[], Any] = weakref.ref(dataset)
        except TypeError:  # lists and generators of some kinds cannot be referred to weakly
            self._strong = dataset
            self._weak = lambda: self._strong

    def get(self) -> Any:
        """The data set, or None when it is gone."""
        return self._weak()


@dataclass
class _Recorded:
    """What a rescue tells about one place in the epoch."""

    before: int  # passes over the same data set before this one
    drawn: int = 0  # batches handed out in this pass
    total: int = 0  # and in all passes over the same data set
    finished: bool = False
    current: bool = False  # begun in the epoch of the rescue

    def next_epoch(self) -> _Recorded:
        """The same place one epoch later."""
        return _Recorded(self.before + 1, total=self.total) if self.current else self


@dataclass
class _Pass:
    source: _Source
    before: int
    drawn: int = 0
    finished: bool = False


class Passes:
    """The passes over data sets in one training."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._sources: dict[int, _Source] = {}
        self._epoch: list[_Pass] = []  # passes of the current epoch as they began
        self._latest: dict[int, _Pass] = {}  # the last pass at each place, of any epoch
        self._recorded: dict[int, _Recorded] = {}  # of the rescue, until the place is reached

    @property
    def batch(self) -> int | None:
        """Batches handed out in the latest pass of this epoch; None before there is one."""
        return self._epoch[-1].drawn if self._epoch else None

    def new_epoch(self) -> None:
        """The next pass is the first of its epoch."""
        self._epoch = []
        self._recorded = {place: known.next_epoch() for place, known in self._recorded.items()}

    def position(self) -> dict[str, dict[str, Any]]:
        """Where each place in the epoch stands, as JSON, for `continue_from`."""
        places = dict(self._recorded)
        for place, last in self._latest.items():
            if place < len(self._epoch):
                places[place] = _Recorded(
                    last.before, last.drawn, last.source.total, last.finished, current=True
                )
            elif last.source.get() is None:  # made for that pass alone; the next will be new too
                places[place] = _Recorded(0)
            else:
                places[place] = _Recorded(last.source.passes, total=last.source.total)
        return {str(place): asdict(known) for place, known in places.items()}

    def continue_from(self, position: dict[str, dict[str, Any]]) -> None:
        """Let the next passes begin where the recorded ones stood."""
        self._recorded = {int(place): _Recorded(**known) for place, known in position.items()}

    def run(self, dataset: Iterable[Any], arrived: Callable[[], None]) -> Iterator[Any]:
        """
        The batches of `dataset` that the training has not had.

        `arrived` is called when a pass that the rescue was in, or had finished in its
        epoch, stands where it stood.
        """
        source = self._sources.get(id(dataset))
        if source is None or source.get() is not dataset:
            source = self._sources[id(dataset)] = _Source(dataset)
        place = len(self._epoch)
        known = self._recorded.pop(place, None)
        now = _Pass(source, source.passes if known is None else known.before)
        self._epoch.append(now)
        self._latest[place] = now
        return self._run(dataset, now, known, arrived)

    def _run(
        self,
        dataset: Iterable[Any],
        now: _Pass,
        known: _Recorded | None,
        arrived: Callable[[], None],
    ) -> Iterator[Any]:
        source = now.source
        while source.passes < now.before:
            iter(dataset)
            source.passes += 1
        iterator = iter(dataset)
        source.passes += 1
        if known is not None:
            now.drawn, now.finished = known.drawn, known.finished
            if iterator is dataset:  # a generator: every pass goes on where the last one stopped
                self._draw(iterator, known.total - source.total)
            elif not known.finished:
                self._draw(iterator, known.drawn)
            source.total = max(source.total, known.total)
            if known.current:
                arrived()
            if known.finished:
                return
        for item in iterator:
            now.drawn += 1
            source.total += 1
            yield item
        now.finished = True

    def _draw(self, iterator: Iterator[Any], count: int) -> None:
        began, said = time.monotonic(), False
        for _ in range(count):
            if next(iterator, self) is self:
                return
            if not said and time.monotonic() - began > _SAY_AFTER_S:
                said = True
                self._say(f"drawing {count} batches again to find the place in the data")
