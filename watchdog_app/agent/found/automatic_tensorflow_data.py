"""
Passes over tf.data sets in a loop that names no Rescue: which of them train, and how far they are.

What `rescue.data()` is told, is seen here from outside: a pass trains when an optimizer steps
after a batch of it. An epoch begins when the program comes to the same place in its code with
the same data again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from watchdog_app.agent.contain import say
from watchdog_app.agent.fit import position
from watchdog_app.agent.identity.data_facts import batches
from watchdog_app.agent.loops import own_random
from watchdog_app.agent.loops.passes import Passes, _anchor, _Pass, _Source


class WatchedPass(_Pass):
    """One iterator that the program made."""

    number: int  # in the order in which they were made
    place: Hashable  # in the program's code
    dataset: Callable[[], Any]  # as it was iterated over; None when it is gone
    iterator: Callable[[], Any]
    trains: bool = False


class WatchedPasses(Passes):
    """As `Passes`, of passes that run by themselves."""

    def __init__(self) -> None:
        super().__init__(say)
        self.epoch = 0
        self.at_end: dict[str, Any] | None = None  # random numbers as the last pass ended
        self.at_epoch: dict[str, Any] | None = None  # the same, as this epoch began
        self._made = 0

    def made(self, dataset: Any, place: Hashable) -> WatchedPass:
        """The program is about to make an iterator over `dataset` there."""
        anchor: Any = dataset
        with self._guard:
            anchor = _anchor(dataset)
        source = self._sources.get(id(anchor))
        if source is None or source.get() is not anchor:
            source = self._sources[id(anchor)] = _Source(anchor)
            with self._guard:
                source.sketch = own_random.sketch(dataset)
        now = WatchedPass(source, source.passes)
        source.passes += 1
        self._made += 1
        now.number, now.place, now.dataset = self._made, place, weakref.ref(dataset)
        with self._guard:
            now.generators = own_random.find(dataset)
            if now.generators:
                now.random = own_random.take(now.generators)
                now.orders = own_random.changed_orders(dataset, source.sketch)
        return now

    def trains(self, now: WatchedPass) -> None:
        """A step was made with a batch of this pass for the first time."""
        now.trains = True
        if not any(each.source is now.source for each in self._latest.values()):
            # Passes before the training are made again by the program itself.
            now.source.passes -= now.before
            now.before = 0
        if any(self._again(now, each) for each in self._epoch):
            self.new_epoch()
            self.epoch += 1
            self.at_epoch, self.at_end = self.at_end, None
        dataset = now.dataset()
        with self._guard:
            if dataset is not None:
                now.batches = batches(dataset)
                self._look_at(dataset, now.source, self._latest.get(len(self._epoch)))
                if position.unseeded_shuffle(dataset):
                    self._lost[position.UNSEEDED_SHUFFLE] = None
        self._latest[len(self._epoch)] = now
        self._epoch.append(now)

    def restart(self) -> None:
        """Another training begins: its epochs are its own."""
        self.epoch = 0
        self.at_end = self.at_epoch = None
        self._epoch, self._latest, self._lost = [], {}, {}

    @property
    def all_finished(self) -> bool:
        """Whether every pass of this epoch has given its last batch."""
        return all(each.finished for each in self._epoch)

    @property
    def datasets(self) -> list[Any]:
        """Those of this epoch that are still there, in the order of their places."""
        held = [each.dataset() for each in self._epoch if isinstance(each, WatchedPass)]
        return [each for each in held if each is not None]

    def _again(self, now: WatchedPass, before: _Pass) -> bool:
        """The program has come to the same place with the same data, or with data made anew."""
        if not isinstance(before, WatchedPass) or before.place != now.place:
            return False
        return before.source is now.source or before.source.get() is None
