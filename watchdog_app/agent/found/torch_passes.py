"""
The passes over DataLoaders that a training makes by itself: seen as they begin.

What `torch_data.LoaderPasses` notes when a program reads through `rescue.data()` is noted here of
every pass that begins while gradients are computed: the random numbers before it, and which
loader it is of. Which passes are the training's is told by their iterators: those that have
moved on from one optimizer step to the next.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.agent.adapters.passes import COUNTED, Pass, weak_reference
from watchdog_app.agent.adapters.torch_data import PERSISTENT, LoaderPasses
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.identity.data_facts import batches
from watchdog_app.agent.state import own_random, randomness

AHEAD = "batches that the loop had drawn and not trained on yet: they are left out"
SEVERAL = (
    "the place among steps that are made on the same batch, or on batches that the program keeps "
    "(itertools.cycle): the loader's next batch is gone on with"
)
_MOST_SEEN = 8  # of a thread: training loaders that are read in turns

_Ref = Callable[[], Any]


@dataclass(eq=False, slots=True)
class Seen:
    """A pass over a DataLoader, of whoever."""

    loader: _Ref
    begin: dict[str, Any]
    generators: list[Any]
    begin_own: list[Any]
    iterator: _Ref = lambda: None
    now: int = 0  # batches that were drawn
    drawn: int = 0  # the same, as looked at last
    most: int = 1  # between two looks
    first: int = 0  # when the first step was made
    length: int | None = None  # batches of the whole pass
    training_pass: SeenPass | None = None


@dataclass
class SeenPass(Pass):
    """A pass of the training."""

    seen: Seen | None = field(default=None, repr=False)

    def set_drawn(self, drawn: int) -> None:
        """So many batches were handed out."""
        self.source.total += drawn - self.drawn
        self.drawn = drawn


class _Thread(threading.local):
    def __init__(self) -> None:
        self.passes: deque[Seen] = deque(maxlen=_MOST_SEEN)


_thread = _Thread()


class Watched:
    """The iterator of one pass over a DataLoader, as the loader's own; it counts its batches."""

    def __init__(self, iterator: Any, seen: Seen, about_to_draw: Callable[[], None]) -> None:
        """
        Args:
            iterator: of the loader.
            seen: what counts its batches.
            about_to_draw: called before each batch is drawn; must not raise.
        """
        self.plain_iterator = iterator
        self._seen = seen
        self._about_to_draw = about_to_draw

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        self._about_to_draw()
        batch = next(self.plain_iterator)
        self._seen.now += 1
        return batch

    def __len__(self) -> int:
        return len(self.plain_iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "plain_iterator":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.plain_iterator, name)


def begin_pass(loader: Any) -> Callable[[Any, Callable[[], None]], Watched]:
    """
    Note the random numbers before a pass over `loader`.

    Returns:
        Given the pass's iterator, and what to call before each batch: the iterator to be used.
    """
    generators = own_random.find_generators(loader)
    begin, begin_own = randomness.capture(), own_random.capture_all(generators)

    def begun(iterator: Any, about_to_draw: Callable[[], None]) -> Watched:
        seen = Seen(weak_reference(loader), begin, generators, begin_own)
        watched = Watched(iterator, seen, about_to_draw)
        seen.iterator = weakref.ref(watched)
        for each in list(_thread.passes):
            if each.iterator() is None:  # it does not move on any more
                _thread.passes.remove(each)
        _thread.passes.append(seen)
        return watched

    return begun


class SeenPasses(LoaderPasses):
    """The passes of one training that names no Rescue."""

    def __init__(self) -> None:
        super().__init__(print_message)
        self.epoch = 0
        self.random_at_epoch: dict[str, Any] | None = None  # each pass has its own random numbers
        self._is_frozen = False
        self._of_thread = _thread.passes  # which is the training's own
        for seen in self._of_thread:  # the training before may have taken it for its own
            seen.training_pass = None

    def match_step(self) -> bool:
        """The optimizer has stepped: have passes of the training moved on?"""
        moved = False
        for seen in self._of_thread:
            drawn = seen.now
            between = drawn - seen.drawn
            if between == 0:
                continue
            moved = True
            if between == 1 == seen.first and seen.training_pass is not None:  # by far the most
                seen.drawn = drawn
                seen.training_pass.set_drawn(drawn)
                continue
            if seen.training_pass is None:
                seen.first = seen.first or drawn
                seen.most = max(seen.most, between)
            else:
                # The last step of an epoch is of what is left where gradients are added up.
                ahead = seen.training_pass.drawn == seen.first and seen.first > between
                if ahead and drawn != batches(seen.loader()).count:
                    self._lost[AHEAD] = None
                seen.most = max(seen.most, between)
            seen.drawn = drawn
            if seen.training_pass is None:
                self._start_pass(seen)
            else:
                seen.training_pass.set_drawn(drawn)
        return moved

    def record_empty_iteration(self) -> None:
        """An iteration has drawn nothing."""
        if self._epoch and AHEAD not in self._lost:
            self._lost[SEVERAL] = None

    def freeze(self) -> None:
        """The place is that of the last step, or of an epoch that has begun to be read since."""
        self._is_frozen = True
        for seen in list(_thread.passes):
            if seen.training_pass is None and self._is_next_epoch(seen.loader()):
                self._start_pass(seen)

    @property
    def datasets(self) -> list[Any]:
        """What the passes of this epoch are over, as far as it lives."""
        return [each for one in self._epoch if (each := one.source.get()) is not None]

    @property
    def is_unfinished(self) -> bool:
        """
        Whether every pass of this epoch was left in the middle.

        A pass whose length nobody knows was not, nor one of which the last batch or the last
        batches that are added up are missing: there may have been no step for them.
        """
        seen = [each.seen for each in self._epoch if isinstance(each, SeenPass) and each.seen]
        return bool(seen) and all(
            each.length is not None and each.drawn + each.most < each.length for each in seen
        )

    def position(self, tensors: Any = None) -> dict[str, dict[str, Any]]:
        """As `Passes.position`."""
        for each in self._epoch:
            if isinstance(each, SeenPass) and each.seen is not None and not self._is_frozen:
                each.set_drawn(each.seen.now)
        return super().position(tensors)

    def _start_pass(self, seen: Seen) -> None:
        loader = seen.loader()
        for each in self._epoch:
            if isinstance(each, SeenPass) and each.seen is not None:
                self._finish_pass(each, each.seen)
        if self._is_next_epoch(loader):
            self.new_epoch()
            self.epoch += 1
        place = len(self._epoch)
        before, source = self._latest.get(place), self._find_source(loader)
        now = SeenPass(source, source.passes, batches(loader), seen=seen)
        now.other_data = before is not None and before.source is not source
        source.passes += 1
        now.set_drawn(seen.drawn)
        now.generators, now.begin, now.begin_own = seen.generators, seen.begin, seen.begin_own
        if now.passes and loader is not None and getattr(loader, "persistent_workers", False):
            self._lost[PERSISTENT] = None
        seen.training_pass = now
        seen.length = now.batches.count  # the loader may go before its pass
        self._epoch.append(now)
        self._latest[place] = now

    def _finish_pass(self, each: SeenPass, seen: Seen) -> None:
        """A pass that another one comes after: it had all its batches, or was left."""
        length = batches(seen.loader()).count
        # Batches after the last step of an epoch are not counted.
        each.finished = length is not None and each.drawn + seen.most > length
        if each.finished or (seen.iterator() is not None and seen in _thread.passes):
            return  # or two are read in turns
        each.finished = True
        if length is not None:
            self._lost[COUNTED] = None

    def _is_next_epoch(self, loader: Any) -> bool:
        if not self._epoch:
            return False
        if any(each.source.get() is loader for each in self._epoch):
            return True
        # Loaders that are made anew in each epoch take the place of those before.
        return all(each.finished and each.source.get() is None for each in self._epoch)
