"""
Where a `fit` of Keras 2 stands in its data, and how a fresh one gets there.

Keras 2 draws the batches of all epochs through one `DataHandler`, whose
`enumerate_epochs` makes the iterators and whose `steps` counts within an epoch.
A resume drives them through the finished epochs, which makes as many iterators
and calls the same epoch hooks, and draws the finished batches from what the
next one comes from. Arrays and generators have one iterator for all epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from watchdog_app.agent.fit import position as places
from watchdog_app.agent.fit.replay import FreshReplay, ended_earlier

_RELIED_ON = (
    "enumerate_epochs",
    "steps",
    "_adapter",
    "_dataset",
    "_inferred_steps",
    "_initial_step",
    "_steps_per_epoch",
    "_steps_per_execution",
)
# Keras 3's names for the same kinds of data.
_KINDS = {
    "TensorLikeDataAdapter": "ArrayDataAdapter",
    "GenericArrayLikeDataAdapter": "ArrayDataAdapter",
    "ListsOfScalarsDataAdapter": "ArrayDataAdapter",
    "CompositeTensorDataAdapter": "ArrayDataAdapter",
    "DatasetAdapter": "TFDatasetAdapter",
    "KerasSequenceAdapter": "PyDatasetAdapter",
    "GeneratorDataAdapter": "GeneratorDataAdapter",
}


class HandlerAdapter:
    """A data adapter of Keras 2 as `position` and `fit_state` know those of Keras 3."""

    def __init__(self, handler: Any) -> None:
        adapter = handler._adapter
        self._handler = handler
        self.kind_of_data = _KINDS.get(type(adapter).__name__, type(adapter).__name__)
        self.shuffle = bool(getattr(adapter, "_shuffle_sequence", False))
        self.py_dataset = getattr(adapter, "_keras_sequence", None)
        self._shuffle = getattr(adapter, "_shuffle", False)
        self.batch_size = adapter.batch_size()
        self.num_batches = adapter.get_size()
        self.has_partial_batch = adapter.has_partial_batch()
        self.partial_batch_size = adapter.partial_batch_size()

    def get_tf_dataset(self) -> Any:
        """The pipeline that is iterated over."""
        return self._handler._dataset


class HandlerIterator:
    """A `DataHandler` of Keras 2 as `position.Course` knows Keras 3's EpochIterator."""

    _current_iterator = True  # an epoch that ended early ends the training

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.data_adapter = HandlerAdapter(handler)
        self.steps_per_epoch = handler._steps_per_epoch

    @property
    def num_batches(self) -> int | None:
        """Batches an epoch; None where that is not known yet."""
        found: int | None = self.handler._inferred_steps
        return found


def find_handler() -> HandlerIterator | None:
    """The data of the `fit` that is calling, or None: it is a local variable there."""
    handler = places.find_in_fit("data_handler", "DataHandler")
    return None if handler is None else HandlerIterator(handler)


def unsupported(iterator: HandlerIterator | None) -> str | None:
    """Why the place in the data cannot be found again with this Keras; None when it can."""
    if iterator is None:
        return "this Keras keeps its data elsewhere"
    if type(iterator.handler).__name__ != "DataHandler":
        return "the data is spread over several processes"
    missing = [name for name in _RELIED_ON if not hasattr(iterator.handler, name)]
    return f"this Keras's DataHandler has no {', '.join(missing)}" if missing else None


class HandlerReplay(FreshReplay):
    """As `replay.Replay`, for the DataHandler of a fresh fit."""

    def __init__(self, iterator: HandlerIterator, position: dict[str, Any], **how: Any) -> None:
        super().__init__(iterator, position, **how)
        self._handler = iterator.handler

    def install(self) -> None:
        """Let the epochs of this handler begin with the replay."""
        vars(self._handler)["enumerate_epochs"] = self._epochs

    def remove(self) -> None:
        """Leave the handler as Keras made it."""
        for name in ("enumerate_epochs", "steps"):
            vars(self._handler).pop(name, None)

    def _epochs(self) -> Iterator[tuple[int, Any]]:
        handler = self._handler
        self.remove()
        epochs = handler.enumerate_epochs()
        finished = sum(count for _steps, count in self._position["ended"])
        batches = self._position["num_batches"]
        for _ in range(finished):
            if next(epochs, None) is None:
                return  # fit was asked for no more epochs than there were
            if not handler._adapter.should_recreate_iterator():
                self._owed += batches or 0
        found = next(epochs, None)
        if found is None:
            return
        if finished and handler._inferred_steps is None:
            handler._inferred_steps = batches  # as the end of the first epoch told
        # The generators are noted as `on_epoch_begin` comes, when Keras has made the iterator.
        self._before_epoch()
        vars(handler)["steps"] = partial(self._steps, found[1])
        yield found
        yield from epochs

    def _steps(self, source: Any) -> Iterator[int]:
        handler, at = self._handler, self._position
        self.remove()
        over = at["epoch_done"]
        self._draw(source, self._owed + (at["num_batches"] or 0 if over else at["next_batch"]))
        if over:
            handler._inferred_steps = at["num_batches"]
            self._arrived()
            if self._without_training is not None:
                with self._without_training:
                    yield 0
            return
        handler._initial_step = at["next_batch"]
        self._arrived()
        yield from handler.steps()

    def _draw(self, source: Any, count: int) -> None:
        """Draw so many batches, and drop them."""
        per_execution = self._handler._steps_per_execution
        whole = self._drop(source, count, lambda: int(per_execution.numpy()))
        if not whole and not self._position["epoch_done"]:
            raise ended_earlier(self._position["next_batch"])
