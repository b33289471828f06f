"""
Passes over tf.data sets in a loop without a Rescue: which passes train, and their positions.

Without `rescue.data()` the agent infers this from events. A pass trains if an optimizer steps after
a batch of it. An epoch begins when the same place in the code iterates over the same data again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.adapters.passes import INFINITE, Pass, Passes
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.identity.data_facts import batches
from watchdog_app.agent.identity.loop_steps import Turn
from watchdog_app.agent.state import own_random

EVALUATION_ORDER = (
    "the order of a tf.data shuffle that an evaluation reads within the loop "
    "(give it reshuffle_each_iteration=False)"
)


class WatchedPass(Pass):
    """The pass of an iterator that the program made."""

    owner: WatchedPasses
    number: int  # number of the iterator, in order of creation
    place: Hashable  # position in the program's code
    dataset: Callable[[], Any]  # returns the data set; None after its deletion
    iterator: Callable[[], Any]
    endless: bool
    turn: Turn = None  # of the only loop around the pass
    trains: bool = False
    is_new: bool = True  # whether the training of this thread has drawn no batch of it


class WatchedPasses(Passes):
    """The passes of a training without a Rescue, from events."""

    def __init__(self, before: WatchedPasses | None = None) -> None:
        """
        Args:
            before: passes of the previous training in this thread; batches drawn since then belong
                to the new training.
        """
        super().__init__(print_message)
        self.epoch = 0
        self.random_at_end: dict[str, Any] | None = None  # random states at the end of a pass
        self.random_at_epoch: dict[str, Any] | None = None  # random states at this epoch's start
        self._made = 0
        self._untrained: list[WatchedPass] = []  # passes with a drawn batch and no step yet
        if before is not None:
            self._sources, self._made = before._sources, before._made
            self._untrained = before._untrained
            # A later step of the same turn may have begun the new training: it reads on.
            for each in before._epoch:
                if isinstance(each, WatchedPass):
                    each.is_new = True

    def add_pass(self, dataset: Any, place: Hashable, turn: Turn = None) -> WatchedPass:
        """Add the pass of an iterator that the program is about to make."""
        source = self._find_source(dataset)
        now = WatchedPass(source, source.passes)
        now.owner, now.turn = self, turn
        source.passes += 1
        self._made += 1
        now.number, now.place, now.dataset = self._made, place, weakref.ref(dataset)
        with self._guard:
            now.generators = own_random.find_generators(dataset)
            if now.generators:
                now.begin_own = own_random.capture_all(now.generators)
                now.orders = own_random.changed_orders(dataset, source.sketch)
        return now

    def count_batch(self, now: WatchedPass) -> None:
        """Count a drawn batch of this pass."""
        now.drawn += 1
        now.source.total += 1
        if now.is_new:
            now.is_new = False
            self._untrained.append(now)

    def match_step(self) -> bool:
        """Mark the passes drawn from since the last step as training passes."""
        for each in self._take_untrained():
            if each.iterator() is not None and not each.finished:
                self._mark_training(each)
            elif self._latest and _reshuffles(each) and not self._is_trained_on(each):
                self._lost[EVALUATION_ORDER] = None
        return True

    def lost_evaluations(self) -> list[str]:
        """What a resume would not restore of the passes since the last call, without training."""
        return [EVALUATION_ORDER] * any(map(_reshuffles, self._take_untrained()))

    def _is_trained_on(self, now: WatchedPass) -> bool:
        """Whether training passes read the same data: their position counts its passes."""
        return any(each.source is now.source for each in self._latest.values())

    def _take_untrained(self) -> list[WatchedPass]:
        drawn, self._untrained[:] = list(self._untrained), []
        return sorted(drawn, key=lambda one: one.number)

    def begin_after(self, steps: int) -> None:
        """Do nothing: the position does not depend on the first steps."""

    def record_empty_iteration(self) -> None:
        """Do nothing for an iteration that has drawn no batch."""

    @property
    def turn(self) -> Turn:
        """The only loop around the latest pass, and its turn."""
        return getattr(self.latest, "turn", None)

    @property
    def is_unfinished(self) -> bool:
        """Whether the program left a pass of this epoch before its last batch."""
        return any(
            isinstance(each, WatchedPass)
            and not (each.finished or each.endless or each.drawn == each.batches.count)
            for each in self._epoch
        )

    @property
    def is_behind(self) -> bool:
        """Whether the next epoch has begun, which the position does not show yet."""
        return any(self._is_repeated(now, each) for now in self._untrained for each in self._epoch)

    @property
    def datasets(self) -> list[Any]:
        """The data sets of this epoch that still exist, in the order of their passes."""
        held = [each.dataset() for each in self._epoch if isinstance(each, WatchedPass)]
        return [each for each in held if each is not None]

    def _mark_training(self, now: WatchedPass) -> None:
        """Mark a pass as training, after the first step with a batch of it."""
        if not (now.trains or self._is_trained_on(now)):
            # Do not count passes before the training: a resumed program makes them itself.
            now.source.passes -= now.passes
            now.passes = 0
        now.trains = True
        if any(self._is_repeated(now, each) for each in self._epoch):
            self.new_epoch()
            self.epoch += 1
            self.random_at_epoch, self.random_at_end = self.random_at_end, None
        dataset, place = now.dataset(), self._place_of(now.source)
        now.endless = False
        with self._guard:
            if dataset is not None:
                now.batches = batches(dataset)
                now.endless = int(dataset.cardinality()) == INFINITE
                self._check_order(dataset, now.source, self._latest.get(place))
                if position.unseeded_shuffle(dataset):
                    self._lost[position.UNSEEDED_SHUFFLE] = None
        self._begin_at(place, now)

    def _is_repeated(self, now: WatchedPass, before: Pass) -> bool:
        """Whether both have the same code position and the same or new data, in another turn."""
        if not isinstance(before, WatchedPass) or before.place != now.place:
            return False
        if now.turn is not None and now.turn == before.turn:
            return False
        return before.source is now.source or before.source.get() is None


def _reshuffles(made: Pass) -> bool:
    """Whether the data of a pass has another order in each pass."""
    return bool(getattr(made.source.get(), "_reshuffle_each_iteration", False))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.passes = WatchedPasses()


_thread = _Thread()


def thread_passes() -> WatchedPasses:
    """The passes of the current thread."""
    return _thread.passes


def start_training() -> WatchedPasses:
    """Make the passes of a training that begins in this thread, and count its epochs from 0."""
    _thread.passes = WatchedPasses(_thread.passes)
    return _thread.passes
