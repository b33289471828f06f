"""
Where `fit` stands in its data, read from outside while it trains: nothing is hooked or counted.

Keras draws the batches of all epochs through one `EpochIterator`. What is relied
on has been there since Keras 3.8: `_enumerate_iterator`, `_current_iterator`,
`_steps_seen`, `_num_batches`, `catch_stop_iteration`. `unsupported` says when it
is not so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from types import FrameType
from typing import Any

from watchdog_app.agent.fit.keras_kinds import is_a, of_keras

UNSEEDED_SHUFFLE = (
    "the order of a tf.data shuffle without a seed (give it one: shuffle(..., seed=1))"
)
LEFT_OVER = (
    "the order of a PyDataset with workers, whose epochs Keras begins with batches that were made "
    "for the one before (use workers=1)"
)
_BATCH_HOOKS = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_batch_begin",
    "on_test_batch_end",
)
_RELIED_ON = (
    "_enumerate_iterator",
    "_current_iterator",
    "_steps_seen",
    "_num_batches",
    "catch_stop_iteration",
    "data_adapter",
    "steps_per_execution",
)


@dataclass
class Course:
    """The epochs of one `fit` so far. What `position` returns is all that a resume needs."""

    iterator: Any  # Keras's EpochIterator, None where it cannot be followed
    first_epoch: int = 0
    epoch: int = 0
    next_batch: int = 0
    epoch_done: bool = False  # all batches trained; validation may be under way
    between_epochs: bool = False  # none of the epoch's hooks has been called yet
    callbacks_to_hear: bool = False  # the step has returned, and no callback has heard of its end
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
        """Plain JSON values, to be given to `replay.Replay` in another process."""
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
            "callbacks_to_hear": self.callbacks_to_hear,
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
    return find_in_fit("epoch_iterator", "EpochIterator")


def find_in_fit(name: str, kind: str) -> Any:
    """The local variable of the `fit` that is calling, if it is of this class of Keras's."""
    for frame in _frames_of_keras():
        if frame.f_code.co_name == "fit":
            candidate = frame.f_locals.get(name)
            if is_a(candidate, kind):
                return candidate
    return None


def argument_of_fit(name: str) -> Any:
    """What the `fit` that is calling was given as this argument; None where nobody calls."""
    for frame in _frames_of_keras():
        if frame.f_code.co_name == "fit":
            return frame.f_locals.get(name)
    return None


def unsupported(iterator: Any) -> str | None:
    """Why the place in the data cannot be found again with this Keras; None when it can."""
    if iterator is None:
        return "this Keras keeps its data iterator elsewhere"
    missing = [name for name in _RELIED_ON if not hasattr(iterator, name)]
    if missing:
        return f"this Keras's data iterator has no {', '.join(missing)}"
    return None


def siblings() -> list[Any]:
    """The callbacks of the CallbackList that is calling; empty when nothing of the kind is."""
    return list(getattr(caller(), "callbacks", ()))


def caller() -> Any:
    """The CallbackList that is calling, or None."""
    for frame in _frames_of_keras():
        owner = frame.f_locals.get("self")
        if is_a(owner, "CallbackList"):
            return owner
    return None


def batch_hook() -> tuple[str, int, Any] | None:
    """
    The batch hook that Keras is calling the callbacks with, its batch and logs; None elsewhere.

    The name is "on_train_batch_begin", "on_train_batch_end", "on_test_batch_begin" or
    "on_test_batch_end".
    """
    for frame in _frames_of_keras():
        name = frame.f_code.co_name.removeprefix("_")
        if name in _BATCH_HOOKS and is_a(frame.f_locals.get("self"), "CallbackList"):
            return name, int(frame.f_locals["batch"]), frame.f_locals.get("logs")
    return None


def _frames_of_keras() -> Iterator[FrameType]:
    """
    Callers within Keras, innermost first.

    Nobody else's locals may be looked at: before Python 3.13 the look leaves a dict behind that
    keeps alive what the function holds, also after it deleted it.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if of_keras(frame.f_globals.get("__name__")):
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


def batches_left_over(iterator: Any) -> bool:
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
