"""
Which batches of its data sets a custom training loop has had, and how a fresh loop skips them.

Every `iter()` of a data set is a pass: a reshuffling tf.data pipeline draws a
new order with each. A resumed loop begins as many passes as there were, and
draws the finished batches of the current one again without handing them out.
A pass is known by its place among the passes of its epoch, since objects have
no name that another process would know. What a source draws from random
generators of its own is taken as a pass begins.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from types import GeneratorType
from typing import Any

from watchdog_app.agent.identity.data_facts import Batches, batches
from watchdog_app.agent.loops import own_random, randomness
from watchdog_app.agent.loops.epoch_passes import (
    COUNTED,
    LAZY,
    EpochPasses,
)

MADE_ANEW = (
    "the order of an iterator that is made anew in each epoch (give rescue.data() the data set)"
)
_INFINITE = -1


class _Source:
    """A data set that was iterated over in this process."""

    def __init__(self, dataset: Any) -> None:
        self.passes = 0
        self.sketch: dict[str, int] = {}
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
    random: own_random.States | None = None  # of its own generators as the pass begins
    orders: own_random.Orders | None = None  # that it keeps
    length: int | None = None  # batches of a whole pass, where known
    size: int | None = None  # rows of a batch
    rows: int | None = None  # of a whole pass

    def next_epoch(self) -> _Recorded:
        """The same place one epoch later."""
        return _Recorded(self.before + 1, total=self.total) if self.current else self


@dataclass
class _Pass:
    source: _Source
    before: int
    drawn: int = 0
    finished: bool = False
    ahead: bool = False  # more was drawn of the data itself
    generators: list[Any] = field(default_factory=list)  # that the source draws from
    random: own_random.States | None = None  # their states as the pass began
    orders: own_random.Orders = field(default_factory=dict)
    batches: Batches = field(default_factory=Batches)


class Passes(EpochPasses[_Pass, _Recorded]):
    """The passes over data sets in one training."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say, _Recorded)
        self._sources: dict[int, _Source] = {}

    def position(self) -> dict[str, dict[str, Any]]:
        """Where each place in the epoch stands, as JSON, for `continue_from`."""
        places = dict(self._recorded)
        for place, last in self._latest.items():
            if place < len(self._epoch):
                places[place] = _Recorded(
                    last.before,
                    last.drawn,
                    last.source.total,
                    last.finished,
                    current=True,
                    random=last.random,
                    orders=last.orders,
                    length=last.batches.count,
                    size=last.batches.size,
                    rows=last.batches.rows,
                )
                continue
            now = own_random.take(last.generators) if last.generators else None
            if last.source.get() is None:  # made for that pass alone; the next will be new too
                places[place] = _Recorded(0, random=now)
            else:
                places[place] = _Recorded(last.source.passes, total=last.source.total, random=now)
        return {str(place): asdict(known) for place, known in places.items()}

    def run(self, dataset: Iterable[Any], arrived: Callable[[], None]) -> Iterator[Any]:
        """
        The batches of `dataset` that the training has not had.

        `arrived` is called when a pass that the rescue was in, or had finished in its
        epoch, stands where it stood.

        Raises:
            RescueMismatch: as the first batch is drawn; the pass that the rescue was in had
                another number of batches.
        """
        anchor: Any = dataset
        with self._guard:
            anchor = _anchor(dataset)
        source = self._sources.get(id(anchor))
        if source is None or source.get() is not anchor:
            source = self._sources[id(anchor)] = _Source(anchor)
            with self._guard:
                source.sketch = own_random.sketch(dataset)
        place = len(self._epoch)
        with self._guard:
            self._look_at(dataset, source, self._latest.get(place))
        known = self._recorded.pop(place, None)
        now = _Pass(source, source.passes if known is None else known.before)
        now.batches = batches(dataset)
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
        if known is not None and known.current and not known.finished:
            self._in_these_batches(known, now.batches)
        source = now.source
        while source.passes < now.before:
            iter(dataset)
            source.passes += 1
        with self._guard:
            self._set_random(dataset, now, known)
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
        self._has_begun()
        looks = _Looks(iterator)
        for item in looks:
            now.drawn += 1
            source.total += 1
            if looks.mixed:
                self._lost[LAZY] = None
            yield item
        now.finished = True

    def _set_random(self, dataset: Any, now: _Pass, known: _Recorded | None) -> None:
        """Set what the source draws from as it was when this pass began, and note it."""
        now.generators = own_random.find(dataset)
        # A generator that began in an earlier pass draws its whole past again.
        begins = not isinstance(dataset, Iterator) or known is None or known.total == known.drawn
        states = known.random if known is not None and begins else None
        if states and not own_random.put(now.generators, states):
            self._say(own_random.CHANGED)
        if states and known is not None and known.orders:
            own_random.put_orders(dataset, known.orders)
        if now.generators:
            now.random = own_random.take(now.generators)
            now.orders = own_random.changed_orders(dataset, now.source.sketch)

    def _look_at(self, dataset: Any, source: _Source, before: _Pass | None) -> None:
        """Note what a resume in this pass could not bring back."""
        if isinstance(dataset, Iterator):
            anew = before is not None and before.source is not source
            # One of Python's gives the same each time, or draws from what is put back.
            if anew and not isinstance(dataset, GeneratorType) and hasattr(dataset, "_dataset"):
                self._lost[MADE_ANEW] = None
        elif hasattr(dataset, "_inputs") and int(dataset.cardinality()) == _INFINITE:
            self._lost[COUNTED] = None


class _Looks:
    """
    An iterator, and whether data and training draw from the same global generators in turn.

    A resume draws the finished batches again without the training in between.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.mixed = False
        self._iterator = iterator
        # Generators are where Python code of the program draws.
        self._looks = isinstance(iterator, GeneratorType)
        self._after: randomness.Look | None = None
        self._others = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._looks or self.mixed:
            return next(self._iterator)
        before = randomness.look()
        self._others = self._others or self._after not in (None, before)
        item = next(self._iterator)
        self._after = randomness.look()
        self.mixed = self._others and self._after != before
        return item


def _anchor(dataset: Any) -> Any:
    """
    The object whose passes advance the order: of a tf.data pipeline its last shuffle.

    `dataset.take(8)` is another object each time, and goes on with the shuffle within.
    """
    waiting = [dataset]
    while waiting:
        part = waiting.pop(0)
        if type(part).__name__ == "_ShuffleDataset":
            return part
        sources = getattr(part, "_inputs", None)
        if callable(sources):
            waiting.extend(sources())
    return dataset
