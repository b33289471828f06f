"""
Passes over DataLoaders in a loop without a Rescue.

`torch_data.LoaderPasses` records a pass when a program reads through `rescue.data()`. This module
records every pass that begins while gradients are enabled: its loader, and the random states before
it. A pass belongs to the training if its iterator advances between two optimizer steps. A pass that
begins and ends between two steps, while another one advances, is an evaluation.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.agent.adapters.passes import Pass
from watchdog_app.agent.adapters.torch_data import PERSISTENT, LastDraws, LoaderPasses, contents
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.identity.attributes import Values, weak_reference
from watchdog_app.agent.identity.data_facts import batches
from watchdog_app.agent.identity.loop_steps import Turn
from watchdog_app.agent.state import own_random, randomness

AHEAD = "batches that the loop had drawn and not trained on yet: they are left out"
SEVERAL = (
    "the place among steps that are made on the same batch, or on batches that the program keeps "
    "(itertools.cycle): a resume continues with the loader's next batch"
)
_MOST_SEEN = 8  # recorded passes of a thread: a training may read several loaders in turn

_Ref = Callable[[], Any]


@dataclass(eq=False, slots=True)
class Seen:
    """A recorded pass over a DataLoader, which may belong to a training or not."""

    loader: _Ref
    begin: dict[str, Any]
    generators: list[Any]
    begin_own: list[Any]
    begun: dict[str, Any] = field(default_factory=dict)  # random states once it has its iterator
    before_first: dict[str, Any] | None = None  # see `RecordedPass`
    iterator: _Ref = lambda: None
    now: int = 0  # batches drawn so far
    ahead: int = 0  # of these, how many were drawn ahead of the step
    over: bool = False  # whether the loader has no more
    drawn: int = 0  # batches drawn at the last step
    most: int = 1  # most batches between two steps
    first: int = 0  # batches drawn at the first step
    length: int | None = None  # batches of the whole pass; None: unknown
    training_pass: SeenPass | None = None
    last_draws: LastDraws | None = None  # of a loader of accelerate
    turn: Turn = None  # of the only loop around the pass
    contents: list[Values] = field(default_factory=list)  # see `torch_data.contents`
    # Random states after the pass before, see `record_random`.
    random_before: dict[str, Any] | None = None

    @property
    def given(self) -> int:
        """Batches that the program has so far."""
        return max(0, self.now - self.ahead)

    @property
    def has_ended(self) -> bool:
        """Whether no batch can follow: the loader has no more, or the program left its loop."""
        return self.over or self.iterator() is None


@dataclass
class SeenPass(Pass):
    """A pass that belongs to the training."""

    seen: Seen | None = field(default=None, repr=False)

    @property
    def is_read(self) -> bool:
        """See `Pass.is_read`."""
        return self.seen is not None and not (self.finished or self.seen.has_ended)

    def set_drawn(self, drawn: int) -> None:
        """Set the number of batches that the pass has given to the program."""
        # The lines may read an iterator over the loader, which each pass makes again.
        self.source.total = self.drawn = drawn


class _Thread(threading.local):
    def __init__(self) -> None:
        self.passes: deque[Seen] = deque(maxlen=_MOST_SEEN)
        self.random_at_end: dict[str, Any] | None = None  # after the last pass


_thread = _Thread()
_guard = Guard("the look at random numbers")


def record_random() -> None:
    """Record the random states after a pass, from which the program may make its next data."""
    with _guard:
        _thread.random_at_end = {"random": randomness.capture(), "own": {}}


class Watched:
    """The iterator of one pass over a DataLoader; wraps the loader's own and counts batches."""

    def __init__(self, iterator: Any, seen: Seen, about_to_draw: Callable[..., None]) -> None:
        """
        Args:
            iterator: the loader's iterator.
            seen: the record that counts its batches.
            about_to_draw: called before each draw of a batch, and with True when a pass of a
                training has ended; must not raise.
        """
        self.plain_iterator = iterator
        self._seen = seen
        self._about_to_draw = about_to_draw

    def __iter__(self) -> Watched:
        return self

    def __next__(self) -> Any:
        self._about_to_draw()
        draws, now = self._seen.last_draws, self._seen.now
        if not now:
            with _guard:
                random = randomness.capture()
                self._seen.before_first = random if random != self._seen.begun else None
        try:
            plain = self.plain_iterator
            batch = draws.draw(plain, now - 1) if draws and now else next(plain)
        except StopIteration:
            self._seen.ahead, self._seen.over = 0, True
            record_random()
            if self._seen.training_pass is not None:
                self._about_to_draw(True)
            raise
        self._seen.now += 1
        return batch

    def __len__(self) -> int:
        return len(self.plain_iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "plain_iterator":  # copy.copy asks before the attribute is set
            raise AttributeError(name)
        return getattr(self.plain_iterator, name)


def begin_pass(
    loader: Any, ahead: int = 0, turn: Turn = None
) -> Callable[[Any, Callable[..., None]], Watched]:
    """
    Record the random states before a pass over `loader`.

    Args:
        loader: the DataLoader.
        ahead: batches that a library draws before the program gets one.
        turn: that of the only loop around the pass.

    Returns:
        A function that takes the pass's iterator and a function to call before each batch. It
        returns the iterator for the program.
    """
    generators = own_random.find_generators(loader)
    begin, begin_own = randomness.capture(), own_random.capture_all(generators)
    held, before = contents(loader), _thread.random_at_end

    def begun(iterator: Any, about_to_draw: Callable[..., None]) -> Watched:
        seen = Seen(weak_reference(loader), begin, generators, begin_own, ahead=ahead)
        seen.begun, seen.turn, seen.contents = randomness.capture(), turn, held
        seen.random_before = before
        if ahead and getattr(loader, "num_workers", None) == 0:
            seen.last_draws = LastDraws()
        watched = Watched(iterator, seen, about_to_draw)
        seen.iterator = weakref.ref(watched)
        for each in list(_thread.passes):
            if each.iterator() is None:  # the program has deleted it
                _thread.passes.remove(each)
        _thread.passes.append(seen)
        return watched

    return begun


class SeenPasses(LoaderPasses):
    """The passes of one training without a Rescue."""

    def __init__(self) -> None:
        super().__init__(print_message)
        self.epoch = 0
        self.random_at_epoch: dict[str, Any] | None = None  # random states at this epoch's start
        self._is_frozen = False
        self._ahead = 0  # batches that each pass of this loop draws ahead
        self._of_thread = _thread.passes  # recorded passes of the training's thread
        for seen in self._of_thread:  # the previous training may have claimed passes
            seen.training_pass = None

    def begin_after(self, steps: int) -> None:
        """Take the passes of this thread as if steps before this one had had a batch each."""
        for seen in self._of_thread if steps else ():
            seen.first, seen.drawn = 1, max(seen.now - 1, 0)

    def match_step(self) -> bool:
        """Update the passes after an optimizer step; whether any pass has advanced."""
        moved, passes = False, self._of_thread
        for seen in passes:  # most steps find no new pass
            if seen.training_pass is None:
                self._drop_evaluations()
                break
        for seen in passes:
            if seen.training_pass is None and not seen.over and self._is_next_epoch(seen.loader()):
                seen.ahead = seen.ahead or self._ahead
            drawn, known = seen.given if seen.ahead else seen.now, seen.training_pass
            between = drawn - seen.drawn
            if between == 0:
                continue
            moved = True
            if between == 1 == seen.first and known is not None:  # most steps
                seen.drawn = known.drawn = known.source.total = drawn
                continue
            if seen.training_pass is None:
                seen.first = seen.first or drawn
                seen.most = max(seen.most, between)
            else:
                # With accumulated gradients the last step of an epoch may have fewer batches.
                ahead = seen.training_pass.drawn == seen.first and seen.first > between
                if ahead and drawn != batches(seen.loader()).count:
                    if seen.first - between == 1:  # a resume draws it again before its loop
                        self._ahead = seen.ahead = 1
                        drawn = seen.given
                    else:
                        self._lost[AHEAD] = None
                seen.most = max(seen.most, between)
            seen.drawn = drawn
            if seen.training_pass is None:
                self._start_pass(seen)
            else:
                seen.training_pass.set_drawn(drawn)
        return moved

    def record_empty_iteration(self) -> None:
        """Record that an iteration has drawn no batch: its position is then inexact."""
        if self._epoch and AHEAD not in self._lost:
            self._lost[SEVERAL] = None

    def freeze(self) -> None:
        """Freeze the position at the last step, or at an epoch that has begun since."""
        self._is_frozen = True
        for seen in list(_thread.passes):
            if seen.training_pass is None and self._is_next_epoch(seen.loader()):
                self._start_pass(seen)

    def own_random(self) -> list[tuple[list[Any], own_random.States]]:
        """The random generators of the data that this epoch reads, with their states."""
        drawing = [each.generators for each in self._epoch if each.generators]
        return [(each, own_random.capture_all(each)) for each in drawing]

    @property
    def random_before_epoch(self) -> dict[str, Any] | None:
        """Random states of the next epoch's pass, if it has begun and drawn no batch."""
        seen = self._of_thread[-1] if self._of_thread else None
        begun = seen is not None and seen.now == 0 and self._is_next_epoch(seen.loader())
        if seen is None or not begun:
            return None
        # A frozen position is in that pass, and the one before is at the end of the last pass.
        return seen.begun if self._is_frozen else seen.begin

    @property
    def random_since_begin(self) -> dict[str, Any]:
        """Random states at the beginning of the newest pass, if a step was made in it."""
        seen = self._of_thread[-1] if self._of_thread else None
        return seen.begun if seen is not None and seen.drawn else {}

    @property
    def is_behind(self) -> bool:
        """Whether the next epoch has begun, which the position does not show yet."""
        return any(
            each.training_pass is None and self._is_next_epoch(each.loader())
            for each in self._of_thread
        )

    @property
    def has_skipped_step(self) -> bool:
        """Whether an iteration may have ended without a step, as if gradients are accumulated."""
        own = [each for each in self._of_thread if each.training_pass is not None]
        return any(each.given - each.drawn > 1 for each in own)

    @property
    def is_at_step(self) -> bool:
        """Whether no pass of this epoch has given a batch since the last step."""
        seen = (each.seen for each in self._epoch if isinstance(each, SeenPass) and each.seen)
        return all(each.given == each.drawn for each in seen)

    @property
    def turn(self) -> Turn:
        """The only loop around the latest pass, and its turn."""
        seen = getattr(self.latest, "seen", None) if self.begun else None
        return None if seen is None else seen.turn

    @property
    def datasets(self) -> list[Any]:
        """The loaders of this epoch's passes that still exist."""
        return [each for one in self._epoch if (each := one.source.get()) is not None]

    @property
    def is_unfinished(self) -> bool:
        """
        Whether the program left every pass of this epoch in the middle.

        A pass of unknown length does not count as left. A pass that lacks only its last batch, or
        the last batches to accumulate, does not either: the program may make no step for them.
        """
        seen = [each.seen for each in self._epoch if isinstance(each, SeenPass) and each.seen]
        return bool(seen) and all(
            each.length is not None and each.drawn + each.most < each.length for each in seen
        )

    def position(self, tensors: Any = None) -> dict[str, dict[str, Any]]:
        """See `Passes.position`."""
        for each in self._epoch:
            if isinstance(each, SeenPass) and each.seen is not None and not self._is_frozen:
                each.set_drawn(each.seen.given)
        return super().position(tensors)

    def _drop_evaluations(self) -> None:
        """Forget passes that have ended since the last step, if another pass advances."""
        ended = [each for each in self._of_thread if each.training_pass is None and each.has_ended]
        if any(each.given != each.drawn and each not in ended for each in self._of_thread):
            for each in ended:
                self._of_thread.remove(each)

    def _start_pass(self, seen: Seen) -> None:
        loader = seen.loader()
        for each in self._epoch:
            if isinstance(each, SeenPass) and each.seen is not None:
                self._finish_pass(each, each.seen)
        is_next = self._is_next_epoch(loader) and not (seen.turn and seen.turn == self.turn)
        if is_next or self._is_next_turn(seen):
            if not any(each.is_read for each in self._epoch):
                self.new_epoch()
            self.epoch += 1
            self.random_at_epoch = seen.random_before
        source = self._find_source(loader)
        place = self._place_of(source)
        before = self._latest.get(place)
        now = SeenPass(source, source.passes, batches(loader), seen=seen)
        now.other_data = before is not None and before.source is not source
        source.passes += 1
        now.set_drawn(seen.drawn)
        if seen.last_draws is not None:
            now.before_draw = seen.last_draws.states
        now.generators, now.begin, now.begin_own = seen.generators, seen.begin, seen.begin_own
        now.contents, now.before_first = seen.contents, seen.before_first
        if now.passes and loader is not None and getattr(loader, "persistent_workers", False):
            self._lost[PERSISTENT] = None
        seen.training_pass = now
        seen.length = now.batches.count  # the program may delete the loader before its pass
        self._begin_at(place, now)

    def _finish_pass(self, each: SeenPass, seen: Seen) -> None:
        """Mark a pass as finished when another one begins, unless both are read in turn."""
        length = batches(seen.loader()).count
        # The program may be reading both passes in turn.
        is_read = seen.iterator() is not None and seen in _thread.passes
        # `drawn` does not count batches after the last step of an epoch, so allow for them.
        each.finished = not is_read or (length is not None and each.drawn + seen.most > length)

    def _is_next_turn(self, seen: Seen) -> bool:
        """Whether the program reads a new loader, and may still hold the old one."""
        before = (each.seen for each in self._epoch if isinstance(each, SeenPass) and each.seen)
        return any(seen.turn and each.turn and seen.turn != each.turn for each in before)

    def _is_next_epoch(self, loader: Any) -> bool:
        if not self._epoch:
            return False
        if any(each.source.get() is loader for each in self._epoch):
            return True
        # A program may make new loaders in each epoch, which replace the old ones.
        return all(each.finished and each.source.get() is None for each in self._epoch)
