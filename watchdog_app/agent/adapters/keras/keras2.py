"""
Keras 2, whose variables are TensorFlow's and whose random layers have their own generators.

It draws the batches of all epochs through one `DataHandler`. Its `enumerate_epochs` makes the
iterators, and its `steps` counts within an epoch. A resume runs them through the finished epochs,
which makes the same number of iterators and calls the same epoch hooks. Then it draws the finished
batches from the iterator of the current epoch. Arrays and generators have one iterator for all
epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras

from watchdog_app.agent import internals
from watchdog_app.agent.adapters.keras import position as places
from watchdog_app.agent.adapters.keras.backend import Backend, one_empty_step
from watchdog_app.agent.adapters.keras.on_tensorflow import OnTensorFlow, stateful_operations
from watchdog_app.agent.adapters.keras.position import BaseReplay, data_too_short_error
from watchdog_app.agent.state import variables
from watchdog_app.agent.state.keras_model import optimizers_of
from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER, OTHER, NamedVariable

_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")
# By data adapter of Keras 2: Keras 3's name for the same kind of data.
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
    """A data adapter of Keras 2 with the interface of those of Keras 3."""

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
        """The pipeline that the fit iterates over."""
        return self._handler._dataset


class HandlerIterator:
    """A `DataHandler` of Keras 2 with the interface of Keras 3's EpochIterator."""

    _current_iterator = True  # never None: in Keras 2 an epoch that ends early ends the training

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.data_adapter = HandlerAdapter(handler)
        self.steps_per_epoch = handler._steps_per_epoch

    @property
    def num_batches(self) -> int | None:
        """Number of batches in an epoch; None: not known yet."""
        found: int | None = self.handler._inferred_steps
        return found


def find_handler() -> HandlerIterator | None:
    """The data of the calling `fit`, from its local variables; None if unusable."""
    handler = places.find_fit_variable("data_handler", "DataHandler")
    usable = internals.has_names(handler, internals.DATA_HANDLER)
    # A subclass spreads the data over several processes.
    return HandlerIterator(handler) if usable and type(handler).__name__ == "DataHandler" else None


class HandlerReplay(BaseReplay):
    """Brings the DataHandler of a new fit to a recorded position."""

    def __init__(self, iterator: HandlerIterator, position: dict[str, Any], **how: Any) -> None:
        super().__init__(iterator, position, **how)
        self._handler = iterator.handler

    def install(self) -> None:
        """Make the epochs of this handler begin with the replay."""
        vars(self._handler)["enumerate_epochs"] = self._epochs

    def remove(self) -> None:
        """Restore the methods of the handler."""
        for name in ("enumerate_epochs", "steps"):
            vars(self._handler).pop(name, None)

    def _epochs(self) -> Iterator[tuple[int, Any]]:
        handler = self._handler
        self.remove()
        epochs = handler.enumerate_epochs()
        finished = sum(count for _steps, count in self._position["ended"])
        batches = self._position["num_batches"]
        for epoch in range(finished):
            if next(epochs, None) is None:
                return  # the user asks for no more epochs than the rescue has
            self._replay_validation(self._position["first_epoch"] + epoch)
            if not handler._adapter.should_recreate_iterator():
                self._pending += batches or 0
        found = next(epochs, None)
        if found is None:
            return
        if finished and handler._inferred_steps is None:
            handler._inferred_steps = batches  # Keras learns it at the end of the first epoch
        # `on_epoch_begin` records the generators after Keras has made the iterator.
        self._before_epoch()
        vars(handler)["steps"] = partial(self._steps, found[1])
        yield found
        yield from epochs

    def _makes_two_iterators(self, size: int, steps: int | None) -> bool:
        return steps in (None, size)

    def _steps(self, source: Any) -> Iterator[int]:
        handler, at = self._handler, self._position
        self.remove()
        over = at["epoch_done"]
        self._skip(source, self._pending + (at["num_batches"] or 0 if over else at["next_batch"]))
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

    def _skip(self, source: Any, count: int) -> None:
        """Draw `count` batches and drop them."""
        per_execution = self._handler._steps_per_execution
        whole = self._skip_batches(source, count, lambda: int(per_execution.numpy()))
        if not whole and not self._position["epoch_done"]:
            raise data_too_short_error(self._position["next_batch"])


class OnKeras2(OnTensorFlow):
    """See `Backend`."""

    name = "Keras 2"
    stateful_remedy = (
        "call tf_keras.backend.experimental.enable_tf_random_generator() before the model is made"
    )
    replay = HandlerReplay

    def own_variables(self, model: Any) -> list[Any]:
        """Counters of batches, generators of random layers, and plain `tf.Variable`s."""
        found = [getattr(model, name, None) for name in _COUNTERS]
        found += [generator.state for generator in _random_generators(model)]
        found += variables.plain_variables(model)
        return [each for each in found if isinstance(each, tf.Variable)]

    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:
        """See `Backend`; weights, statistics, metrics, slots, and `extra`."""
        slots = [
            variable
            for optimizer in optimizers_of(model)
            for variable in _optimizer_variables(optimizer)
        ]
        groups = ((MODEL, model.variables), (METRIC, _metric_variables(model)), (OPTIMIZER, slots))
        return [*variables.collect([*groups, (OTHER, extra)])]

    def metrics(self, model: Any) -> list[NamedVariable]:
        """The variables of the model's metrics."""
        return [*variables.collect([(METRIC, _metric_variables(model))])]

    def environment_record(self) -> dict[str, Any]:
        """See `environment.record`; adds the version of Keras 2."""
        return {**super().environment_record(), "tf_keras": tf_keras.__version__}

    def position_obstacle(self, iterator: Any, position: dict[str, Any]) -> str | None:
        """See `Backend`; Keras 2 prepares the data of the epochs from `initial_epoch` on."""
        given, before = iterator.handler._initial_epoch, position["first_epoch"]
        if given == before:
            return None
        return (
            f"fit is given initial_epoch={given}, and the fit of the rescue began with "
            f"initial_epoch={before}: Keras 2 then has the data of other epochs"
        )

    def build(self, model: Any, iterator: Any) -> None:
        """See `Backend`; variables that cannot be created this way stay missing."""
        try:
            with model.distribute_strategy.scope():
                _build_variables(model, iterator)
        except Exception:  # noqa: S110 - a model with its own step is built by that step
            pass

    def repeatable_order(self, iterator: Any, model: Any) -> None:  # noqa: ARG002
        """None: Keras 2 shuffles all epochs of arrays in one pipeline, which stays unchanged."""
        return

    def stateful_operations(self, model: Any) -> list[str]:
        """See `OnTensorFlow`."""
        return stateful_operations(
            getattr(model, "train_tf_function", None) or model.train_function
        )

    def without_training(
        self, model: Any, callbacks: Any, logs: dict[str, Any]
    ) -> AbstractContextManager[None] | None:
        """See `Backend`; Keras 2 raises an error for an epoch without a step."""
        return one_empty_step(model, callbacks, lambda _iterator: dict(logs))

    def micro_batch_obstacle(self, model: Any) -> str | None:
        """See `Backend`; unlike its base class, Keras 2 supports no parts of batches."""
        return Backend.micro_batch_obstacle(self, model)


def _build_variables(model: Any, iterator: Any) -> None:
    spec = iterator.handler._adapter.get_dataset().element_spec  # of all replicas together
    nothing = tf.nest.map_structure(_zeros, spec)
    x, y, _weights = tf_keras.utils.unpack_x_y_sample_weight(nothing)
    outputs = model(x, training=False)
    if y is not None:
        for container, made in (("compiled_loss", (outputs,)), ("compiled_metrics", (outputs, y))):
            held = getattr(model, container, None)
            if held is not None and not held.built:
                held.build(*made)
    optimizer = model.optimizer
    if hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(model.trainable_variables)
    elif hasattr(optimizer, "build") and not getattr(optimizer, "_built", False):
        with tf.name_scope(optimizer.name), tf.init_scope():
            optimizer.build(model.trainable_variables)


def _zeros(spec: Any) -> Any:
    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def _random_generators(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield generator


def _metric_variables(model: Any) -> Iterator[Any]:
    for metric in model.metrics:
        yield from metric.variables


def _optimizer_variables(optimizer: Any) -> Iterator[Any]:
    held = optimizer.variables
    # Legacy optimizers have a method `variables`, others a list.
    yield from held() if not isinstance(held, (list, tuple)) else held
