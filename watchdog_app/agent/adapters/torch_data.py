"""
Which batches a PyTorch loop has had, and how a fresh loop gets to its place in the data.

A DataLoader draws a seed as it is iterated over, and its order from that. So the
random numbers are noted as each pass begins. A resumed loop puts them back,
begins the pass again, and leaves out the batches that it had: without loading
them where the loader works in this process, by drawing them again where workers
have random numbers of their own. A loader with `state_dict` (torchdata's
StatefulDataLoader) is asked for its place instead.

A pass is known by its place among the passes of its epoch, since objects have no
name that another process would know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from watchdog_app.agent.adapters.passes import LAZY, Pass, Passes, RecordedPass, Source
from watchdog_app.agent.contain import describe
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.state import own_random, randomness, torch_tensors
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.base.errors import RescueError

PERSISTENT = (
    "random numbers that the workers of a DataLoader with persistent_workers=True draw, after the "
    "first epoch"
)
_MOST_LATER = 32  # draws that are kept: of more, the first are let go of
_COMPARED_DRAWS = 3  # of a DataLoader, which draws with each batch or with none


class LoaderPasses(Passes):
    """The passes over DataLoaders, and other iterables, of one PyTorch training."""

    def run(
        self,
        dataset: Iterable[Any],
        arrived: Callable[[], None],
        read: Callable[[str], Any] | None = None,
    ) -> Iterator[Any]:
        """As `Passes.run`; the pass begins as its first batch is drawn."""
        yield from super().run(dataset, arrived, read)

    def _next_pass(self, dataset: Iterable[Any]) -> tuple[Pass, RecordedPass | None]:
        before = self._latest.get(len(self._epoch))
        now, known = super()._next_pass(dataset)
        if known is not None:
            now.later = list(known.later)
        elif before is not None and before.source is now.source:
            now.later = list(before.later) if isinstance(dataset, Iterator) else []
        else:
            now.other_data = before is not None
        with self._guard:
            now.generators = own_random.find_generators(dataset)
            now.attributes = Attributes(_data_parts(dataset))
        return now, known

    def _check_order(self, dataset: Any, source: Source, before: Pass | None) -> None:
        """Nothing is lost: an iterator over a loader draws its order with its first batch."""

    def _record_next_pass(self, last: Pass, now_own: own_random.States) -> RecordedPass:
        dataset, source = last.source.get(), last.source
        # Nobody iterates again over an iterator that has ended.
        ended = last.finished and isinstance(dataset, Iterator)
        if last.other_data or dataset is None or ended:
            return RecordedPass(0)
        return RecordedPass(source.passes, total=source.total, now_own=now_own, later=last.later)

    def _loader_state(self, last: Pass, place: int, tensors: Tensors) -> Any:
        dataset = last.source.get()
        if not (last.finished or last.ahead) and _is_stateful(dataset):
            # Some have the methods and no state; without it the batches are drawn again.
            with suppress(Exception):
                return torch_tensors.encode(dataset.state_dict(), f"data/{place}", tensors)
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
        random = randomness.capture() if self.has_stepped else None
        iterator = self._resume_pass(dataset, now, known, read)
        self._restore_own_random(now, known.now_own)
        if now.attributes is not None:
            now.attributes.restore(known.attributes)
        if random is not None:  # not read since the rescue, while steps were made
            randomness.restore(random)
        return iterator

    def _begin_pass(
        self, dataset: Iterable[Any], now: Pass, known: RecordedPass | None
    ) -> Iterator[Any]:
        """Begin a pass that the rescue was not in."""
        self._start_workers(dataset, now)
        self._record_beginning(now)
        iterator = iter(dataset)
        # An iterator of the program's begins where its last pass stopped, also in a fresh process.
        if iterator is dataset and known is not None:
            self._draw_again(iterator, now.source.total, known.total, known.later)
        return iterator

    def _resume_pass(
        self,
        dataset: Iterable[Any],
        now: Pass,
        known: RecordedPass,
        read: Callable[[str], Any] | None,
    ) -> Iterator[Any]:
        """The iterator of a pass that the rescue was in, at the rescue's place."""
        self._start_workers(dataset, now)
        itself = isinstance(dataset, Iterator)
        # An iterator that began in an earlier pass draws its whole past again.
        as_begun = known.begin is not None and (not itself or known.total == known.drawn)
        if as_begun:
            self._restore_beginning(now, known)
        self._record_beginning(now)
        sized = getattr(dataset, "batch_size", None)
        same_size = known.size is None or known.size == sized
        if known.loader is not None and read is not None and same_size and _is_stateful(dataset):
            stateful: Any = dataset
            stateful.load_state_dict(torch_tensors.decode(known.loader, read))
            return iter(dataset)
        iterator = iter(dataset)
        self._first = known.first if as_begun and known.drawn else None
        if itself:
            self._draw_again(iterator, now.source.total, known.total, known.later)
        elif _can_skip_indices(dataset, iterator):
            if self._first is not None:
                for batch in iterator:  # loaded once more to be compared
                    self._compare_first_batch(batch, known.drawn)
                    break
                self._restore_beginning(now, known)
                iterator = iter(dataset)
            inner = _unwrap(iterator)
            for _ in range(known.drawn):
                next(inner._sampler_iter, None)
            inner._num_yielded = known.drawn
        else:
            self._draw_again(iterator, 0, known.drawn, known.later)
        return iterator

    def _restore_beginning(self, now: Pass, known: RecordedPass) -> None:
        """Restore the random numbers with which the pass of the rescue began."""
        try:
            randomness.restore(known.begin or {})
        except Exception as error:
            raise RescueError(
                f"The random numbers in the rescue cannot be given back ({describe(error)}). "
                "Nothing on disk was changed. To start over: Rescue(..., resume=False)."
            ) from error
        self._restore_own_random(now, known.begin_own)

    def _remaining_batches(self, dataset: Any, now: Pass, iterator: Iterator[Any]) -> Iterator[Any]:
        watched = _LaterDraws(now.later) if _reads_in_process(dataset) else None
        if watched is not None:
            now.later = watched.kept
        # Of an iterator of the program's, whose passes are one.
        first = now.source.total - now.drawn if isinstance(dataset, Iterator) else 0
        while True:
            seen = None
            if watched is not None and first + now.drawn:  # what is drawn before is `begin`
                with self._guard:
                    seen = randomness.snapshot()
            try:
                item = next(iterator)
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
        """Draw batches `first` to `end` again, each with the global random numbers that it had."""
        for at, state in kept:
            if first <= at < end:
                self._draw(iterator, at - first)
                randomness.restore(state)
                first = at
        self._draw(iterator, end - first)

    def _start_workers(self, dataset: Any, now: Pass) -> None:
        """Start persistent workers, which the first pass does: it draws a seed."""
        if not (isinstance(dataset, DataLoader) and dataset.num_workers and now.passes):
            return
        if dataset.persistent_workers:
            self._lost[PERSISTENT] = None
            if getattr(dataset, "_iterator", None) is None:
                iter(dataset)

    def _record_beginning(self, now: Pass) -> None:
        with self._guard:
            now.begin = randomness.capture()
            now.begin_own = own_random.capture_all(now.generators)

    def _restore_own_random(self, now: Pass, states: list[Any]) -> None:
        if not own_random.restore_all(now.generators, states):
            self._report(own_random.CHANGED)


def _data_parts(dataset: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a pass reads from, with their names."""
    yield "data", dataset
    for name in ("dataset", "sampler", "batch_sampler", "collate_fn"):
        if hasattr(dataset, name):
            yield name, getattr(dataset, name)


def _is_stateful(dataset: Any) -> bool:
    """Whether a loader has `state_dict` and `load_state_dict`."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


def _can_skip_indices(dataset: Any, iterator: Any) -> bool:
    """
    Whether batches can be left out by leaving out their indices.

    With workers they cannot: what a worker draws depends on the batches that it has made.
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
    """The DataLoader's own iterator, where the agent that is switched on has one around it."""
    return getattr(iterator, "plain_iterator", iterator)


def _reads_in_process(dataset: Any) -> bool:
    """Whether items are made in this process and cannot be left out by their indices."""
    if isinstance(dataset, DataLoader):
        return dataset.num_workers == 0 and isinstance(dataset.dataset, IterableDataset)
    return not isinstance(dataset, (list, tuple))


class _LaterDraws:
    """
    What the global generators were before each batch that drew from them.

    `def cycle(loader): while True: yield from loader` begins a pass over the loader, with an order
    drawn anew, in the middle of what the loop takes for one pass. A resume puts the numbers back at
    that batch when it draws the batches again.
    """

    def __init__(self, kept: Iterable[tuple[int, dict[str, Any]]] = ()) -> None:
        """
        Args:
            kept: `kept` of an earlier one: of the passes before over the same iterator.
        """
        self.kept: list[tuple[int, dict[str, Any]]] = [(at, state) for at, state in kept]
        self.lost = False  # more were drawn than can come back
        self.always = False  # with each batch: nobody keeps all that

    def compare(self, at: int, before: randomness.Snapshot) -> None:
        """Note whether batch `at` has drawn from them."""
        if before == randomness.snapshot():
            return
        if self.kept and self.kept[-1][0] == at - 1:
            self.lost = self.always = True
        self.kept.append((at, randomness.state_of_snapshot(before)))
        if len(self.kept) > _MOST_LATER:
            self.lost = True
            del self.kept[0]
