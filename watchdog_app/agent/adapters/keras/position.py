"""
Where `fit` stands in its data, and how a fresh `fit` gets to such a place.

The place is read from outside while the fit trains: nothing is hooked or counted.

Keras draws the batches of all epochs through one `EpochIterator`. What is relied
on has been there since Keras 3.8, see `internals`; `unsupported` says when it is not so.

A resume drives Keras's own generator through the finished epochs, which makes as many dataset
iterators and calls the same epoch hooks, so that every reshuffle comes out as before, and then
through the finished batches of the current epoch, which are drawn and dropped. Only the one
iterator object of the resumed fit is touched, for its first epoch.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from types import FrameType
from typing import Any

from watchdog_app.agent import internals
from watchdog_app.agent.adapters.keras.model import is_keras_instance, is_keras_module
from watchdog_app.base.errors import RescueMismatch

REPORT_AFTER_S = 2.0  # drawing finished batches again is said when it takes longer
UNSEEDED_SHUFFLE = (
    "the order of a tf.data shuffle without a seed (give it one: shuffle(..., seed=1))"
)
LEFTOVER_BATCHES = (
    "the order of a PyDataset with workers, whose epochs Keras begins with batches that were made "
    "for the one before (use workers=1)"
)
_BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)


@dataclass
class FitProgress:
    """The epochs of one `fit` so far. What `position` returns is all that a resume needs."""

    iterator: Any  # Keras's EpochIterator, None where it cannot be followed
    first_epoch: int = 0
    epoch: int = 0
    next_batch: int = 0
    epoch_done: bool = False  # all batches trained; validation may be under way
    between_epochs: bool = False  # none of the epoch's hooks has been called yet
    # Of each finished epoch: None when its batches were all drawn in the regular way,
    # else the iterator's step count when its data ran out.
    ended: list[int | None] = field(default_factory=list)
    # Python's `random` as each epoch began: Keras orders a PyDataset's batches with it.
    python_random: list[Any] | None = None
    passes: Any = None  # the `DataPasses` over the data, where Python draws the batches

    def epoch_begins(self, epoch: int) -> None:
        """Call in `on_epoch_begin`."""
        self.epoch, self.next_batch, self.epoch_done = epoch, 0, False

    def epoch_ends(self) -> None:
        """Call in `on_epoch_end`."""
        self.ended.append(self._ran_out())

    @property
    def last_batch_trained(self) -> bool:
        """All batches of the epoch are trained, as far as their number is known beforehand."""
        total = self.num_batches
        return self.epoch_done or (total is not None and self.next_batch >= total)

    @property
    def num_batches(self) -> int | None:
        """Batches an epoch; None where that is not known, or not known yet."""
        total = None if self.iterator is None else self.iterator.num_batches
        return None if total is None else int(total)

    def position(self) -> dict[str, Any]:
        """Plain JSON values, to be given to `Replay` in another process."""
        ended = [[steps, len(list(group))] for steps, group in groupby(self.ended)]
        return {
            "first_epoch": self.first_epoch,
            "epoch": self.epoch,
            "next_batch": self.next_batch,
            "epoch_done": self.last_batch_trained,
            "ran_out": self._ran_out() if self.epoch_done else None,
            "ended": ended,
            "num_batches": self.num_batches,
            "between_epochs": self.between_epochs,
            "followed": self.iterator is not None,
            "python_random": self.python_random,
            "passes": None if self.passes is None else self.passes.position(),
        }

    def continue_from(self, position: dict[str, Any]) -> None:
        """Take over the course that a rescue recorded."""
        self.first_epoch, self.epoch = position["first_epoch"], position["epoch"]
        self.next_batch = position["next_batch"]
        self.ended = [steps for steps, count in position["ended"] for _ in range(count)]

    def _ran_out(self) -> int | None:
        # Keras forgets the iterator when its data ended before the expected number of batches.
        if self.iterator is not None and self.iterator._current_iterator is None:
            return int(self.iterator._steps_seen)
        return None


def find_iterator() -> Any:
    """The EpochIterator of the `fit` that is calling, or None: it is a local variable there."""
    return find_fit_variable("epoch_iterator", "EpochIterator")


def find_fit_variable(name: str, kind: str) -> Any:
    """The local variable of the `fit` that is calling, if it is of this class of Keras's."""
    for frame in _keras_frames():
        if frame.f_code.co_name == "fit":
            candidate = frame.f_locals.get(name)
            if is_keras_instance(candidate, kind):
                return candidate
    return None


def read_fit_argument(name: str) -> Any:
    """What the `fit` that is calling was given as this argument; None where nobody calls."""
    for frame in _keras_frames():
        if frame.f_code.co_name == "fit":
            return frame.f_locals.get(name)
    return None


def unsupported(iterator: Any) -> str | None:
    """Why the place in the data cannot be found again with this Keras; None when it can."""
    if iterator is None:
        return "this Keras keeps its data iterator elsewhere"
    missing = internals.absent(iterator, internals.EPOCH_ITERATOR)
    if missing:
        return f"this Keras's data iterator has no {', '.join(missing)}"
    return None


def calling_callbacks() -> list[Any]:
    """The callbacks of the CallbackList that is calling; empty when nothing of the kind is."""
    return list(getattr(calling_callback_list(), "callbacks", ()))


def calling_callback_list() -> Any:
    """The CallbackList that is calling, or None."""
    for frame in _keras_frames():
        owner = frame.f_locals.get("self")
        if is_keras_instance(owner, "CallbackList"):
            return owner
    return None


def batch_hook() -> tuple[str, int, Any] | None:
    """
    The batch hook that Keras is calling the callbacks with, its batch and logs; None elsewhere.

    The name is "on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin" or
    "on_test_batch_end".
    """
    for frame in _keras_frames():
        name = frame.f_code.co_name.removeprefix("_")
        if name in _BATCH_HOOKS and is_keras_instance(frame.f_locals.get("self"), "CallbackList"):
            return name, int(frame.f_locals["batch"]), frame.f_locals.get("logs")
    return None


def _keras_frames() -> Iterator[FrameType]:
    """
    Callers within Keras, innermost first.

    Nobody else's locals may be looked at: before Python 3.13 the look leaves a dict behind that
    keeps alive what the function holds, also after it deleted it.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if is_keras_module(frame.f_globals.get("__name__")):
            yield frame
        frame = frame.f_back


def adapter_name(iterator: Any) -> str:
    """Keras 3's class for the kind of data, e.g. "ArrayDataAdapter"."""
    adapter = getattr(iterator, "data_adapter", None)
    return getattr(adapter, "kind_of_data", None) or type(adapter).__name__


def reads_in_background(iterator: Any, *, in_python: bool = False) -> bool:
    """
    The batches come from Python code that runs ahead of the training in another thread.

    `in_python`: the backend draws from Python iterators. Then only workers run ahead.
    """
    if iterator is None:
        return False
    if in_python:
        return getattr(iterator.data_adapter, "enqueuer", None) is not None
    return adapter_name(iterator) not in ("ArrayDataAdapter", "TFDatasetAdapter")


def has_leftover_batches(iterator: Any) -> bool:
    """As an epoch begins: workers have made batches ahead that are still to be trained."""
    enqueuer = getattr(getattr(iterator, "data_adapter", None), "enqueuer", None)
    ready = getattr(enqueuer, "ready_queue", None)
    return ready is not None and not ready.empty()


def shuffles_with_python(iterator: Any) -> bool:
    """Keras orders this data's batches with Python's `random`."""
    return adapter_name(iterator) == "PyDatasetAdapter" and bool(iterator.data_adapter.shuffle)


def unrepeatable_order(iterator: Any) -> str | None:
    """What makes the order of this data impossible to repeat, if anything does."""
    name = adapter_name(iterator)
    if name == "TorchDataLoaderAdapter":
        return "the order of a torch DataLoader"
    if name == "GrainDatasetAdapter":
        return "the order of a grain dataset"
    if name == "TFDatasetAdapter" and unseeded_shuffle(iterator.data_adapter.get_tf_dataset()):
        return UNSEEDED_SHUFFLE
    return None


def unseeded_shuffle(dataset: Any) -> bool:
    """A dataset that shuffles without any seed; False where that cannot be told."""
    inputs = getattr(dataset, "_inputs", None)
    if inputs is None:
        return False
    if "Shuffle" in type(dataset).__name__:
        seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
        if all(seed is not None and int(seed) == 0 for seed in seeds):
            return True
    return any(unseeded_shuffle(source) for source in inputs())


def data_too_short_error(batch: int) -> RescueMismatch:
    """The error of a resume whose data is shorter than it was."""
    return RescueMismatch(
        f"The rescue was saved before batch {batch} of its epoch, but the data of this "
        "program ends earlier. Train on the same data with the same batch size, or start "
        "afresh with Rescue(..., resume=False)."
    )


class BaseReplay:
    """
    What brings the data of a fresh fit to a recorded position, whichever Keras drives it.

    Args:
        iterator: of the fit that resumes.
        position: what `Course.position` returned.
        before_epoch: called when the finished epochs are replayed, before the current one.
        train_step: trains on the next batch of the dataset iterator it is given, to make
            variables that nothing else can make; None when all of them exist.
        arrived: called once when the position is reached, before the next batch is trained.
        without_training: a step within it trains nothing; None where an epoch needs no step.
        data_ended: what iterators raise at the end of their data.
        say: tells the user a line.
    """

    def __init__(
        self,
        iterator: Any,
        position: dict[str, Any],
        *,
        before_epoch: Callable[[], None],
        train_step: Callable[[Any], object] | None,
        arrived: Callable[[], None],
        without_training: AbstractContextManager[None] | None,
        data_ended: tuple[type[BaseException], ...],
        say: Callable[[str], None],
    ) -> None:
        self._iterator = iterator
        self._position = position
        self._before_epoch = before_epoch
        self._train_step = train_step
        self._arrived = arrived
        self._without_training = without_training
        self._data_ended = data_ended
        self._say = say
        self._pending = 0

    def _skip_batches(self, source: Any, count: int, per_execution: Callable[[], int]) -> bool:
        """Draw so many batches and drop them; False where the data ended before."""
        began, left, said = time.monotonic(), count, False
        while left > 0:
            try:
                if self._train_step is not None:
                    self._train_step(source)
                    self._train_step = None
                    left -= per_execution()
                else:
                    next(source)
                    left -= 1
            except self._data_ended:
                return False
            if not said and time.monotonic() - began > REPORT_AFTER_S:
                said = True
                self._say(f"drawing {count} batches again to find the place in the data")
        return True


class Replay(BaseReplay):
    """Brings one EpochIterator of Keras 3 there when its first epoch begins."""

    def __init__(self, iterator: Any, position: dict[str, Any], **how: Any) -> None:
        super().__init__(iterator, position, **how)
        # A Python generator goes on where the iterator before it stopped; every dataset
        # iterator else starts at its own beginning, and those not in use any more need no draws.
        self._draw_all = adapter_name(iterator) == "GeneratorDataAdapter"
        self._source: Any = None

    def install(self) -> None:
        """Let the next epoch of this iterator, and that one alone, begin with the replay."""
        vars(self._iterator)["_enumerate_iterator"] = self._first_epoch

    def remove(self) -> None:
        """Leave the iterator as Keras made it."""
        vars(self._iterator).pop("_enumerate_iterator", None)

    def _first_epoch(self) -> Iterator[Any]:
        self.remove()
        with warnings.catch_warnings():
            # Keras says again, for each replayed epoch, that its data ran out.
            warnings.simplefilter("ignore")
            self._replay_finished_epochs()
        self._before_epoch()
        if self._position["epoch_done"]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._replay_epoch(self._position["ran_out"])
            self._skip_pending()
            self._arrived()
            if self._without_training is not None:
                with self._without_training:
                    yield 0, 0, None
            return
        generator = self._iterator._enumerate_iterator()
        item = self._replay_batches(generator)
        if item[-1] is not self._source:
            self._finish_source()
        self._skip_pending()
        self._arrived()
        yield item
        yield from generator

    def _replay_finished_epochs(self) -> None:
        adapter = self._iterator.data_adapter
        # Workers would compute batches of every finished epoch only to drop them.
        workers = getattr(adapter, "enqueuer", None)
        if workers is not None and adapter.num_batches is not None:
            adapter.enqueuer = None
        for steps, count in self._position["ended"]:
            for _ in range(count):
                self._replay_epoch(steps)
        if workers is not None:
            adapter.enqueuer = workers

    def _replay_epoch(self, ran_out_at: int | None) -> None:
        """One epoch without training: to its regular end, or to where its data ran out."""
        generator = self._iterator._enumerate_iterator()
        for item in generator:
            self._count_step(item)
            if ran_out_at is not None and self._iterator._steps_seen >= ran_out_at:
                generator.close()
                self._end_data()
                return

    def _end_data(self) -> None:
        """Tell Keras that the data ended earlier than expected."""
        with self._iterator.catch_stop_iteration():
            raise StopIteration

    def _replay_batches(self, generator: Iterator[Any]) -> Any:
        """Drive the current epoch to the step that comes next, and return Keras's item for it."""
        next_batch = self._position["next_batch"]
        for item in generator:
            if item[0] >= next_batch:
                return item
            self._count_step(item)
        raise data_too_short_error(next_batch)

    def _count_step(self, item: Any) -> None:
        """Count the batches of one training step as pending draws of its iterator."""
        source = item[-1]
        if source is not self._source:
            self._finish_source()
            self._source, self._pending = source, 0
        self._pending += self._iterator.steps_per_execution

    def _finish_source(self) -> None:
        """The batches of an iterator that is not in use any more need not be drawn."""
        if self._draw_all:
            self._skip_pending()
        self._pending = 0
        skip = getattr(self._source, "skip", None)
        if skip is not None:
            skip()

    def _skip_pending(self) -> None:
        """Draw and drop the pending batches."""
        # The last execution of an epoch may hold fewer steps than the others.
        self._skip_batches(self._source, self._pending, lambda: self._iterator.steps_per_execution)
        self._pending = 0
