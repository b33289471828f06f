"""
Record the batches that a PyTorch loop has had, and bring a resumed loop to its position.

A DataLoader draws a seed when an iteration begins, and its order from that seed. So the random
states are recorded at the start of each pass. A resumed loop restores them, begins the pass again
and skips the batches that it had. If the loader works in this process, it skips them without
loading them. If workers have their own random numbers, it draws them again. A loader with
`state_dict` (torchdata's StatefulDataLoader) saves and restores its own position.

A pass is identified by its place among the passes of its epoch, because objects have no name that
another process knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import GeneratorType
from typing import Any, Self

from torch.utils.data import DataLoader, IterableDataset

from watchdog_app.agent.adapters.passes import LAZY, Pass, Passes, RecordedPass, Source, begin
from watchdog_app.agent.contain import Guard, describe
from watchdog_app.agent.identity import names
from watchdog_app.agent.identity.attributes import Attributes, Values
from watchdog_app.agent.state import own_random, randomness, torch_tensors
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.base.errors import RescueError

PERSISTENT = (
    "random numbers that the workers of a DataLoader with persistent_workers=True draw, after the "
    "first epoch"
)
_MOST_LATER = 32  # number of kept draws: with more, the oldest are dropped
_COMPARED_DRAWS = 3  # batches of a DataLoader to compare: it draws with each batch or with none


class _Draws(Iterator[Any]):
    """The batches of a pass, which its first batch begins; `iter()` makes the loader's iterator."""

    def __init__(
        self, passes: LoaderPasses, dataset: Any, run: Callable[[], Iterator[Any]]
    ) -> None:
        """
        Args:
            passes: the passes of the training.
            dataset: what the program reads.
            run: begins the pass.
        """
        self._passes, self._dataset, self._run = passes, dataset, run
        self._batches: Iterator[Any] | None = None
        self._made: tuple[Pass, Iterator[Any]] | None = None

    def __iter__(self) -> Self:
        if self._batches is None and self._made is None:
            self._made = self._passes.make(self._dataset)
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches, self._passes.made = self._run(), self._made
        return next(self._batches)


class LoaderPasses(Passes):
    """The passes over DataLoaders, and other iterables, of one PyTorch training."""

    # The iterator of the pass that begins now, and the states before it was made.
    made: tuple[Pass, Iterator[Any]] | None = None

    def run(
        self,
        dataset: Iterable[Any],
        arrived: Callable[[], None],
        read: Callable[[str], Any] | None = None,
    ) -> Iterator[Any]:
        """See `Passes.run`; the pass counts from the draw of its first batch."""
        return _Draws(self, dataset, partial(super().run, dataset, arrived, read))

    def make(self, dataset: Any) -> tuple[Pass, Iterator[Any]] | None:
        """Make the iterator of a loader, which draws a seed; None: the pass does so later."""
        if not isinstance(dataset, DataLoader) or self._recorded:
            return None
        now = Pass(self._find_source(dataset), 0)
        with self._guard:
            now.generators = own_random.find_generators(dataset)
        self._record_beginning(dataset, now)
        iterator = iter(dataset)
        with self._guard:
            now.before_first = randomness.capture()
        return now, iterator

    def _next_pass(self, dataset: Iterable[Any]) -> tuple[Pass, RecordedPass | None]:
        before = self._latest.get(len(self._epoch))
        now, known = super()._next_pass(dataset)
        if known is not None:
            now.later = list(known.later)
        elif before is not None and before.source is now.source:
            now.later = list(before.later) if _continues(dataset) else []
        else:
            now.other_data = before is not None
        with self._guard:
            now.generators = own_random.find_generators(dataset)
        return now, known

    def _data_parts(self, dataset: Any) -> Iterable[tuple[str, Any]]:
        yield from super()._data_parts(dataset)
        for name in ("dataset", "sampler", "batch_sampler", "collate_fn"):
            if hasattr(dataset, name):
                yield name, getattr(dataset, name)

    def _check_order(self, dataset: Any, source: Source, before: Pass | None) -> None:
        """Do nothing: an iterator over a loader draws its order with its first batch."""

    def _record_next_pass(self, last: Pass, now_own: own_random.States) -> RecordedPass:
        dataset, source = last.source.get(), last.source
        # A program does not iterate again over an iterator that has ended.
        ended = last.finished and _continues(dataset)
        if last.other_data or dataset is None or ended:
            return RecordedPass(0)
        total = source.total if _continues(dataset) else 0
        return RecordedPass(source.passes, total=total, now_own=now_own, later=last.later)

    def _loader_state(self, last: Pass, place: int, tensors: Tensors) -> Any:
        dataset = last.source.get()
        state = dataset.state_dict if _is_stateful(dataset) and not last.ahead else None
        if not last.finished and (state or last.contents):
            # Some loaders have the methods but no state: a resume then draws the batches again.
            with suppress(Exception):
                held = state() if state else last.contents
                return torch_tensors.encode(held, f"data/{place}", tensors)
        return None

    def _iterator(
        self,
        dataset: Iterable[Any],
        now: Pass,
        known: RecordedPass | None,
        read: Callable[[str], Any] | None,
    ) -> Iterator[Any]:
        now.source.passes = max(now.source.passes, now.passes)
        if known is None or not known.current:
            if known is not None and known.passes:
                self._restore_own_random(now, known.now_own)
            return self._begin_pass(dataset, now, known)
        if known.finished:
            self._restore_own_random(now, known.now_own)
            return iter(())
        random = randomness.capture() if self.has_stepped or self.has_arrived else None
        iterator = self._resume_pass(dataset, now, known, read)
        self._restore_own_random(now, known.now_own)
        if random is not None:  # steps or draws were made since the resume, before this pass
            randomness.restore(random)
        return iterator

    def _begin_pass(
        self, dataset: Iterable[Any], now: Pass, known: RecordedPass | None
    ) -> Iterator[Any]:
        """Begin a pass in which the rescue has no position."""
        self._start_workers(dataset, now)
        made, self.made = self.made, None
        if made is not None:
            early, iterator = made
            now.begin, now.begin_own, now.contents = early.begin, early.begin_own, early.contents
            with self._guard:
                random = randomness.capture()
                now.before_first = random if random != early.before_first else None
            return iterator
        self._record_beginning(dataset, now)
        iterator = begin(dataset)
        # A pass over an iterator of the program begins where the last one stopped: in a new
        # process too.
        if iterator is dataset and known is not None and _continues(dataset):
            self._draw_again(iterator, now.source.total, known.total, known.later)
        return iterator

    def _resume_pass(
        self,
        dataset: Iterable[Any],
        now: Pass,
        known: RecordedPass,
        read: Callable[[str], Any] | None,
    ) -> Iterator[Any]:
        """The iterator of a pass in which the rescue was saved, at the rescue's position."""
        self._start_workers(dataset, now)
        itself = _continues(dataset)
        # An iterator that began in an earlier pass draws all its batches again.
        as_begun = known.begin is not None and (not itself or known.total == known.drawn)
        if as_begun:
            self._restore_beginning(now, known)
        self._record_beginning(dataset, now)
        sized = getattr(dataset, "batch_size", None)
        same_size = known.size is None or known.size == sized
        if known.loader is not None and read is not None and same_size and _is_stateful(dataset):
            stateful: Any = dataset
            stateful.load_state_dict(torch_tensors.decode(known.loader, read))
            return iter(dataset)
        makers, held = _makers(dataset), list[Values]()
        if makers is not None and read is not None and known.loader is not None:
            held = _values(makers)
            _restore(makers, torch_tensors.decode(known.loader, read))
        iterator = begin(dataset)
        if as_begun and known.before_first is not None:
            randomness.restore(known.before_first)
        self._first = known.first if as_begun and known.drawn else None
        if itself:
            self._draw_again(iterator, now.source.total, known.total, known.later)
        elif _can_skip_indices(dataset, iterator):
            if self._first is not None:
                for batch in iterator:  # load the first batch again to compare it
                    self._compare_first_batch(batch, known.drawn)
                    break
                self._restore_beginning(now, known)
                iterator = iter(dataset)
                if known.before_first is not None:
                    randomness.restore(known.before_first)
            inner = _unwrap(iterator)
            for _ in range(known.drawn):
                next(inner._sampler_iter, None)
            inner._num_yielded = known.drawn
        else:
            self._draw_again(iterator, 0, known.drawn, known.later)
        if makers is not None:
            _restore(makers, held)
        return iterator

    def _restore_beginning(self, now: Pass, known: RecordedPass) -> None:
        """Restore the random states at the start of the rescue's pass."""
        try:
            randomness.restore(known.begin or {})
        except Exception as error:
            raise RescueError(
                f"The random numbers in the rescue cannot be given back ({describe(error)}). "
                "Nothing on disk was changed. To start over: Rescue(..., resume=False)."
            ) from error
        self._restore_own_random(now, known.begin_own)

    def _remaining_batches(self, dataset: Any, now: Pass, iterator: Iterator[Any]) -> Iterator[Any]:
        is_watched = _reads_in_process(dataset) and not _are_loaders(iterator)
        watched = _LaterDraws(now.later) if is_watched else None
        if watched is not None:
            now.later = watched.kept
        # An iterator of the program continues over passes, so count the batches of earlier ones.
        first = now.source.total - now.drawn if _continues(dataset) else 0
        ahead = None
        if isinstance(iterator, GeneratorType) and getattr(dataset, "num_workers", None) == 0:
            ahead = LastDraws()  # a loader of accelerate
            now.before_draw = ahead.states
        while True:
            seen = None
            # `begin` already holds the random states before the first batch.
            if watched is not None and first + now.drawn:
                with self._guard:
                    seen = randomness.snapshot()
            try:
                item = ahead.draw(iterator, now.drawn) if ahead else next(iterator)
            except StopIteration:
                break
            if watched is not None and seen is not None:
                with self._guard:
                    watched.compare(first + now.drawn, seen)
                if watched.lost:
                    self._lost[LAZY] = None
                loader = isinstance(dataset, DataLoader) and now.drawn >= _COMPARED_DRAWS
                watched = None if watched.always or loader else watched
            now.count_batch(item)
            yield item

    def _draw_again(
        self,
        iterator: Iterator[Any],
        first: int,
        end: int,
        kept: Iterable[tuple[int, dict[str, Any]]],
    ) -> None:
        """Draw batches `first` to `end` again, with the global random states that they had."""
        for at, state in kept:
            if max(first, 1) <= at < end:  # `begin` holds the states before the first
                self._draw(iterator, at - first)
                randomness.restore(state)
                first = at
        self._draw(iterator, end - first)

    def _start_workers(self, dataset: Any, now: Pass) -> None:
        """Start persistent workers, as the first pass did, because that draws a seed."""
        if not (isinstance(dataset, DataLoader) and dataset.num_workers and now.passes):
            return
        if dataset.persistent_workers:
            self._lost[PERSISTENT] = None
            if getattr(dataset, "_iterator", None) is None:
                iter(dataset)

    def _record_beginning(self, dataset: Any, now: Pass) -> None:
        with self._guard:
            now.begin = randomness.capture()
            now.begin_own = own_random.capture_all(now.generators)
            now.contents = contents(dataset)

    def _restore_own_random(self, now: Pass, states: list[Any]) -> None:
        if not own_random.restore_all(now.generators, states):
            self._report(own_random.CHANGED)


def contents(dataset: Any) -> list[Values]:
    """What the objects keep that make the batches of a pass, such as a replay buffer."""
    makers = _makers(dataset)
    return [] if makers is None else _values(makers)


def _makers(dataset: Any) -> Attributes | None:
    if not isinstance(dataset, DataLoader) or not _reads_in_process(dataset):
        return None
    roots = [("data", dataset.dataset)]
    parts = [*roots, *names.objects_in(roots)]
    return Attributes(parts, begins=False, holds=torch_tensors.is_held)


def _values(makers: Attributes) -> list[Values]:
    return [each for each in makers.kept_values() if each]


def _restore(makers: Attributes, held: Iterable[Values]) -> None:
    for each in held:
        makers.restore(each)


def _continues(dataset: Any) -> bool:
    """Whether a pass begins where the last one ended; Ray's loader, its own iterator, restarts."""
    return isinstance(dataset, Iterator) and not isinstance(dataset, DataLoader)


def _is_stateful(dataset: Any) -> bool:
    """Whether a loader has `state_dict` and `load_state_dict`."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


def _can_skip_indices(dataset: Any, iterator: Any) -> bool:
    """
    Whether batches can be skipped by skipping their indices.

    With workers they cannot: the random numbers of a worker depend on the batches that it has made.
    """
    return (
        isinstance(dataset, DataLoader)
        and dataset.num_workers == 0
        and not isinstance(dataset.dataset, IterableDataset)
        and type(_unwrap(iterator)).__name__ == "_SingleProcessDataLoaderIter"
        and hasattr(iterator, "_sampler_iter")
        and hasattr(iterator, "_num_yielded")
    )


def _unwrap(iterator: Any) -> Any:
    """The DataLoader's own iterator, without the agent's wrapper."""
    return getattr(iterator, "plain_iterator", iterator)


def _reads_in_process(dataset: Any) -> bool:
    """Whether this process makes the items, and they cannot be skipped by their indices."""
    if isinstance(dataset, DataLoader):
        return dataset.num_workers == 0 and isinstance(dataset.dataset, IterableDataset)
    return not isinstance(dataset, (list, tuple))


def _are_loaders(iterator: Any) -> bool:
    """Whether `zip` or `map` reads DataLoaders only, which draw their order at their start."""
    given = iterator.__reduce__()[1] if isinstance(iterator, zip | map) else ()
    parts = [_unwrap(each) for each in given if not callable(each)]
    return bool(parts) and all(
        type(each).__name__ in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
        and not isinstance(each._dataset, IterableDataset)
        for each in parts
    )


class _LaterDraws:
    """
    The states of the global random generators before each batch that drew from them.

    `def cycle(loader): while True: yield from loader` begins a pass over the loader, with a new
    order, in the middle of one pass of the training loop. A resume restores the states at that
    batch when it draws the batches again.
    """

    def __init__(self, kept: Iterable[tuple[int, dict[str, Any]]] = ()) -> None:
        """
        Args:
            kept: the attribute `kept` of previous passes over the same iterator.
        """
        self.kept: list[tuple[int, dict[str, Any]]] = [(at, state) for at, state in kept]
        self.lost = False  # whether there were more draws than a resume can restore
        self.always = False  # whether each batch draws, which is too much to keep

    def compare(self, at: int, before: randomness.Snapshot) -> None:
        """Record whether batch `at` has drawn from the global generators."""
        if before == randomness.snapshot():
            return
        if self.kept and self.kept[-1][0] == at - 1:
            self.lost = self.always = True
        self.kept.append((at, randomness.state_of_snapshot(before)))
        if len(self.kept) > _MOST_LATER:
            self.lost = True
            del self.kept[0]


class LastDraws:
    """Random states before the last draws of a loader that draws one batch ahead (accelerate)."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, randomness.Snapshot]] = deque(maxlen=2)
        self._equal = 0  # draws that changed no random state; -1: one did
        self._guard = Guard("the look at what the data draws from")

    def draw(self, iterator: Iterator[Any], at: int) -> Any:
        """Draw the batch ahead, before which the program gets the batch with number `at`."""
        before = None
        with self._guard:
            before = randomness.snapshot() if self._equal < _COMPARED_DRAWS else None
        batch = next(iterator)
        with self._guard:
            if before is not None:
                self._kept.append((at, before))
                if self._equal >= 0:
                    self._equal = self._equal + 1 if before == randomness.snapshot() else -1
        return batch

    def states(self, at: int) -> list[Any]:
        """The states before the draw with this number, as in `RecordedPass.later`."""
        return [(n, randomness.state_of_snapshot(seen)) for n, seen in self._kept if n == at]
