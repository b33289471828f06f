"""
Read the position of a `fit` in its data, and bring a new `fit` to such a position.

While the fit trains, the position is read from Keras's objects, without hooks or counters.

Keras draws the batches of all epochs through one `EpochIterator`. Its private names that this
module uses exist since Keras 3.8, see `internals`; `find_iterator` checks them.

A resume runs Keras's own generator through the finished epochs. That makes the same number of
dataset iterators and calls the same epoch hooks, so that each reshuffle gives the same order. Then
it draws the finished batches of the current epoch and drops them. It changes only the iterator
object of the resumed fit, and only for its first epoch.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from types import FrameType, GeneratorType
from typing import Any

from watchdog_app.agent import internals
from watchdog_app.agent.adapters.keras.running import RunningFit
from watchdog_app.agent.adapters.passes import (
    SHUFFLE,
    find_shuffle,
    order_draws,
    pipeline_parts,
    repeat_pass,
)
from watchdog_app.agent.contain import print_message
from watchdog_app.agent.state import randomness
from watchdog_app.agent.state.keras_model import is_keras_instance, is_keras_module
from watchdog_app.agent.telemetry.stacks import callers
from watchdog_app.base.errors import RescueMismatch

REPORT_AFTER_S = 2.0  # print a message if drawing finished batches again takes longer
UNSEEDED_SHUFFLE = (
    "the order of a tf.data shuffle without a seed (give it one: shuffle(..., seed=1))"
)
VALIDATION_STEPS = (
    "the order of a tf.data shuffle and repeat from which validation_steps draw (leave them out)"
)
VALIDATION_GENERATOR = "the place in the generator of the validation data"
# A new process reads two batches more, as Keras looks at the shape of the data.
VALIDATION_DRAWS = "random numbers that the validation data draws while it is read"
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
    """The progress of one `fit`; a resume needs only the values that `position` returns."""

    iterator: Any  # Keras's EpochIterator; None if it cannot be followed
    first_epoch: int = 0
    epoch: int = 0
    next_batch: int = 0
    epoch_done: bool = False  # whether all batches are trained; validation may be running
    between_epochs: bool = False  # whether no hook of the epoch has been called yet
    ended_of: int | None = None  # epochs that fit was asked for, if it has ended
    # Of each finished epoch: None if all its batches were drawn, otherwise the iterator's step
    # count when its data ran out.
    ended: list[int | None] = field(default_factory=list)
    # State of Python's `random` at the epoch's start: Keras orders a PyDataset's batches with it.
    python_random: list[Any] | None = None
    passes: Any = None  # the `DataPasses` over the data if Python draws the batches, or None

    def epoch_begins(self, epoch: int) -> None:
        """Record the start of an epoch; call it in `on_epoch_begin`."""
        self.epoch, self.next_batch, self.epoch_done = epoch, 0, False

    def batch_ends(self, batch: int) -> None:
        """Record the end of a training step; `batch` is the number in `on_train_batch_end`."""
        # Of several steps per execution Keras 3.8 tells the first one, later versions the last.
        size = getattr(self.iterator, "steps_per_execution", 1)
        self.next_batch = (batch // size + 1) * size

    def epoch_ends(self) -> None:
        """Record the end of an epoch; call it in `on_epoch_end`."""
        self.ended.append(self._ran_out())

    @property
    def last_batch_trained(self) -> bool:
        """Whether all batches of the epoch are trained, as far as their number is known."""
        total = self.num_batches
        return self.epoch_done or (total is not None and self.next_batch >= total)

    @property
    def num_batches(self) -> int | None:
        """Number of batches in an epoch; None: unknown, or not known yet."""
        total = None if self.iterator is None else self.iterator.num_batches
        return None if total is None else int(total)

    def position(self) -> dict[str, Any]:
        """The position as JSON values, for `Replay` in another process."""
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
            "ended_of": self.ended_of,
            "followed": self.iterator is not None,
            "python_random": self.python_random,
            "passes": None if self.passes is None else self.passes.position(),
        }

    def continue_from(self, position: dict[str, Any]) -> None:
        """Continue from the position in a rescue."""
        self.first_epoch, self.epoch = position["first_epoch"], position["epoch"]
        self.next_batch = position["next_batch"]
        self.ended = [steps for steps, count in position["ended"] for _ in range(count)]

    def _ran_out(self) -> int | None:
        # Keras drops the iterator if its data ends before the expected number of batches.
        if self.iterator is not None and self.iterator._current_iterator is None:
            return int(self.iterator._steps_seen)
        return None


def find_iterator() -> Any:
    """The EpochIterator of the calling `fit`, from its local variables; None if unusable."""
    found = find_fit_variable("epoch_iterator", "EpochIterator")
    return found if internals.has_names(found, internals.EPOCH_ITERATOR) else None


def find_fit_variable(name: str, kind: str) -> Any:
    """A local variable of the calling `fit`; None if it is not of this Keras class."""
    candidate = read_fit_variable(name)
    return candidate if is_keras_instance(candidate, kind) else None


def read_fit_variable(name: str) -> Any:
    """The value of a local variable of the calling `fit`; None without a calling `fit`."""
    frame = _fit_frame()
    return None if frame is None else frame.f_locals.get(name)


def running_fit() -> RunningFit | None:
    """The calling `fit`; None without one."""
    frame, callbacks = _fit_frame(), calling_callback_list()
    return None if frame is None or callbacks is None else RunningFit(frame, callbacks)


def calling_callbacks() -> list[Any]:
    """The callbacks of the calling CallbackList; empty without one."""
    return list(getattr(calling_callback_list(), "callbacks", ()))


def calling_callback_list() -> Any:
    """The calling CallbackList, or None."""
    for frame in _keras_frames():
        owner = frame.f_locals.get("self")
        if is_keras_instance(owner, "CallbackList"):
            return owner
    return None


def batch_hook() -> tuple[str, int, Any] | None:
    """
    The batch hook that Keras is calling, with its batch and logs; None outside batch hooks.

    The hook is "on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin" or
    "on_test_batch_end".
    """
    for frame in _keras_frames():
        name = frame.f_code.co_name.removeprefix("_")
        if name in _BATCH_HOOKS and is_keras_instance(frame.f_locals.get("self"), "CallbackList"):
            return name, int(frame.f_locals["batch"]), frame.f_locals.get("logs")
    return None


def _keras_frames() -> Iterator[FrameType]:
    """
    Callers in Keras, innermost first.

    The locals of other functions must not be read. Before Python 3.13 reading `f_locals` leaves a
    dict that keeps the function's objects alive, even after the function has deleted them.
    """
    for frame in callers(sys._getframe()):
        if is_keras_module(frame.f_globals.get("__name__")):
            yield frame


def _fit_frame() -> FrameType | None:
    return next((each for each in _keras_frames() if each.f_code.co_name == "fit"), None)


def adapter_name(iterator: Any) -> str:
    """The name of Keras 3's class for the kind of data, e.g. "ArrayDataAdapter"."""
    adapter = getattr(iterator, "data_adapter", None)
    return getattr(adapter, "kind_of_data", None) or type(adapter).__name__


def reads_in_background(iterator: Any, *, in_python: bool = False) -> bool:
    """
    Whether the batches come from Python code that runs ahead of the training in another thread.

    Args:
        iterator: Keras's EpochIterator, or None.
        in_python: whether the backend draws from Python iterators. Then only workers run ahead.
    """
    if iterator is None:
        return False
    if in_python:
        return getattr(iterator.data_adapter, "enqueuer", None) is not None
    return adapter_name(iterator) not in ("ArrayDataAdapter", "TFDatasetAdapter")


def has_leftover_batches(iterator: Any) -> bool:
    """Whether, at the start of an epoch, workers have already made batches for it."""
    enqueuer = getattr(getattr(iterator, "data_adapter", None), "enqueuer", None)
    ready = getattr(enqueuer, "ready_queue", None)
    return ready is not None and not ready.empty()


def shuffles_with_python(iterator: Any) -> bool:
    """Whether Keras orders this data's batches with Python's `random`."""
    return adapter_name(iterator) == "PyDatasetAdapter" and bool(iterator.data_adapter.shuffle)


def after_shuffles(iterator: Any, state: list[Any]) -> Iterator[list[Any]]:
    """The states of Python's `random` after Keras's own shuffles, which a resume replays."""
    count: Any = iterator.data_adapter.num_batches if shuffles_with_python(iterator) else None
    draws = random.Random()  # noqa: S311 - the generator that Keras uses
    draws.setstate(randomness.random_from_json(state))
    for _ in range(0 if count is None else 2):  # of this epoch and the next one
        draws.shuffle(list(range(count)))
        yield randomness.random_to_json(draws.getstate())


def unrepeatable_order(iterator: Any) -> str | None:
    """Why the order of this data cannot be repeated, as a text; None if it can."""
    name = adapter_name(iterator)
    if name == "TorchDataLoaderAdapter":
        return "the order of a torch DataLoader"
    if name == "GrainDatasetAdapter":
        return "the order of a grain dataset"
    if name == "TFDatasetAdapter" and unseeded_shuffle(iterator.data_adapter.get_tf_dataset()):
        return UNSEEDED_SHUFFLE
    return None


def unrepeatable_validation(data: Any) -> str | None:
    """Why the order of validation data cannot be repeated, as a text; None if it can."""
    if isinstance(data, GeneratorType):
        return VALIDATION_GENERATOR
    kinds = {type(each).__name__ for each in pipeline_parts(data)}
    repeated = {SHUFFLE, "_RepeatDataset"} <= kinds
    if repeated and read_fit_variable("validation_steps") is not None:
        return VALIDATION_STEPS
    return UNSEEDED_SHUFFLE if unseeded_shuffle(data) else None


def unseeded_shuffle(dataset: Any) -> bool:
    """Whether a dataset shuffles without any seed; False if that is unknown."""
    for part in pipeline_parts(dataset):
        if "Shuffle" in type(part).__name__:
            seeds = [getattr(part, name, None) for name in ("_seed", "_seed2")]
            if all(seed is not None and int(seed) == 0 for seed in seeds):
                return True
    return False


def data_too_short_error(batch: int) -> RescueMismatch:
    """The error of a resume if the data is shorter than before."""
    return RescueMismatch(
        f"The rescue was saved before batch {batch} of its epoch, but the data of this "
        "program ends earlier. Train on the same data with the same batch size, or start "
        "afresh with Rescue(..., resume=False)."
    )


class BaseReplay:
    """
    Brings the data of a new fit to a recorded position; base class for Keras 2 and 3.

    Args:
        iterator: the iterator of the fit that resumes.
        position: a position from `FitProgress.position`.
        before_epoch: called after the replay of the finished epochs, before the current one.
        train_step: trains on the next batch of a dataset iterator, to create variables that only a
            step creates; None if all exist.
        arrived: called once at the position, before the next batch is trained.
        without_training: a context in which a step trains nothing; None if an epoch needs no step.
        data_ended: the exceptions that iterators raise at the end of their data.
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
    ) -> None:
        self._iterator = iterator
        self._position = position
        self._before_epoch = before_epoch
        self._train_step = train_step
        self._arrived = arrived
        self._without_training = without_training
        self._data_ended = data_ended
        self._pending = 0

    def replay_fit(self) -> None:
        """Advance the data as the whole fit did, for a fit without an epoch left; Keras 3 only."""

    def _replay_validation(self, epoch: int) -> None:
        """Begin validation data that shuffles itself as often as Keras did."""
        data, every = read_fit_variable("validation_data"), read_fit_variable("validation_freq")
        number = epoch + 1
        due = number % every == 0 if isinstance(every, int) else number in every
        if due and type(find_shuffle(data)).__name__ == SHUFFLE:
            repeat_pass(data)
            size, steps = int(data.cardinality()), read_fit_variable("validation_steps")
            if self._makes_two_iterators(size, steps):
                iter(data)

    def _makes_two_iterators(self, size: int, steps: int | None) -> bool:
        """Whether a validation advances the shuffle twice: Keras drops an iterator."""
        # Those of other backends advance it as they are drawn.
        on_tensorflow = hasattr(self._iterator, "_distributed_dataset")
        return on_tensorflow and (steps or size) >= size >= 0

    def _skip_batches(self, source: Any, count: int, per_execution: Callable[[], int]) -> bool:
        """Draw `count` batches and drop them; False if the data ended earlier."""
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
                print_message(f"drawing {count} batches again to find the place in the data")
        return True


class Replay(BaseReplay):
    """Brings an EpochIterator of Keras 3 to a recorded position when its first epoch begins."""

    def __init__(self, iterator: Any, position: dict[str, Any], **how: Any) -> None:
        super().__init__(iterator, position, **how)
        # A Python generator continues where the iterator before it stopped. Other dataset iterators
        # start from the first batch, so finished ones need no draws.
        self._draw_all = adapter_name(iterator) == "GeneratorDataAdapter"
        self._draws: int | None = 0  # of a finished iterator, to advance the order
        if adapter_name(iterator) == "TFDatasetAdapter":
            self._draws = order_draws(iterator.data_adapter.get_tf_dataset())
        self._source: Any = None

    def install(self) -> None:
        """Make only the next epoch of this iterator begin with the replay."""
        vars(self._iterator)["_enumerate_iterator"] = self._first_epoch

    def remove(self) -> None:
        """Restore the method of the iterator."""
        vars(self._iterator).pop("_enumerate_iterator", None)

    def replay_fit(self) -> None:
        """See `BaseReplay`."""
        self.remove()
        self._replay_finished_epochs()
        self._finish_source()

    def _first_epoch(self) -> Iterator[Any]:
        self.remove()
        with warnings.catch_warnings():
            # Keras would repeat its warning for each replayed epoch whose data ran out.
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
        # Workers would compute the batches of every finished epoch only to drop them.
        workers = getattr(adapter, "enqueuer", None)
        if workers is not None and adapter.num_batches is not None:
            adapter.enqueuer = None
        epoch = self._position["first_epoch"]
        for steps, count in self._position["ended"]:
            for _ in range(count):
                self._replay_epoch(steps)
                self._replay_validation(epoch)
                epoch += 1
        if workers is not None:
            adapter.enqueuer = workers

    def _replay_epoch(self, ran_out_at: int | None) -> None:
        """Replay one epoch without training, to its regular end or to where its data ran out."""
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
        """Replay the current epoch up to the next step, and return Keras's item for that step."""
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
        """Finish an iterator that is no longer in use; its pending batches need no draws."""
        if self._draws is not None and not self._draw_all:
            self._pending = min(self._pending, self._draws)
        self._skip_pending()
        skip = getattr(self._source, "skip", None)
        if skip is not None:
            skip()

    def _skip_pending(self) -> None:
        """Draw and drop the pending batches."""
        # The last execution of an epoch may hold fewer steps than the others.
        self._skip_batches(self._source, self._pending, lambda: self._iterator.steps_per_execution)
        self._pending = 0
