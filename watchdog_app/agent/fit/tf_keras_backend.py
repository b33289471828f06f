"""Keras 2: variables are TensorFlow's, and random layers keep generators of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras

from watchdog_app.agent.fit import keras_optimizers, step_random
from watchdog_app.agent.fit.keras_backend import one_empty_step
from watchdog_app.agent.fit.keras_on_tensorflow import OnTensorFlow
from watchdog_app.agent.fit.tf_keras_data import HandlerReplay
from watchdog_app.agent.loops import variables
from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER, OTHER, Holding

_COUNTERS = ("_train_counter", "_test_counter", "_predict_counter")


class OnKeras2(OnTensorFlow):
    """See `Backend`."""

    name = "Keras 2"
    stateful_remedy = (
        "call tf_keras.backend.experimental.enable_tf_random_generator() before the model is made"
    )
    replay = HandlerReplay

    def own_variables(self, model: Any) -> list[Any]:
        """Counters of batches, the generators of random layers, plain `tf.Variable`s."""
        found = [getattr(model, name, None) for name in _COUNTERS]
        found += [generator.state for generator in _generators(model)]
        found += variables.plain_variables(model)
        return [each for each in found if isinstance(each, tf.Variable)]

    def variables(self, model: Any, extra: Iterable[Any]) -> list[Holding]:
        """Weights, statistics, metrics, slots, and `extra`."""
        slots = [
            variable
            for optimizer in keras_optimizers.optimizers_of(model)
            for variable in _of_optimizer(optimizer)
        ]
        groups = ((MODEL, model.variables), (METRIC, _of_metrics(model)), (OPTIMIZER, slots))
        return [*variables.collect([*groups, (OTHER, extra)])]

    def metrics(self, model: Any) -> list[Holding]:
        """Those of its metrics alone."""
        return [*variables.collect([(METRIC, _of_metrics(model))])]

    def circumstances(self) -> dict[str, Any]:
        """With the version of Keras 2."""
        return {**super().circumstances(), "tf_keras": tf_keras.__version__}

    def build(self, model: Any, iterator: Any) -> None:
        """What a model does not let be made this way stays missing."""
        try:
            _build(model, iterator)
        except Exception:  # noqa: S110 - a model with a step of its own is built by that step
            pass

    def own_order(self, iterator: Any, model: Any) -> None:  # noqa: ARG002
        """Keras 2 shuffles all epochs of arrays in one pipeline, which is left as it is."""
        return

    def stateful_operations(self, model: Any) -> list[str]:
        """See `step_random`."""
        compiled = getattr(model, "train_tf_function", None) or model.train_function
        return step_random.stateful_operations(lambda: compiled)

    def without_training(
        self, model: Any, callbacks: Any, logs: dict[str, Any]
    ) -> AbstractContextManager[None] | None:
        """An epoch that had no step at all is an error to Keras 2."""
        return one_empty_step(model, callbacks, lambda _iterator: dict(logs))


def _build(model: Any, iterator: Any) -> None:
    if len(model.distribute_strategy.extended.worker_devices) > 1:
        return
    spec = iterator.handler._dataset.element_spec
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
    elif not getattr(optimizer, "_built", True):
        with tf.name_scope(optimizer.name), tf.init_scope():
            optimizer.build(model.trainable_variables)


def _zeros(spec: Any) -> Any:
    return tf.zeros([1 if size is None else size for size in spec.shape], spec.dtype)


def _generators(model: Any) -> Iterator[Any]:
    for layer in model._flatten_layers():
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            yield generator


def _of_metrics(model: Any) -> Iterator[Any]:
    for metric in model.metrics:
        yield from metric.variables


def _of_optimizer(optimizer: Any) -> Iterator[Any]:
    held = optimizer.variables
    # A method of the legacy optimizers, a list of the others.
    yield from held() if not isinstance(held, (list, tuple)) else held
