"""
The graph of one Keras training step on TensorFlow, traced and never run.

The trace follows `fit`: forward pass, loss, gradients and the optimizer's update, with inputs that
are only shapes. The optimizer is a copy whose slots are variables without contents. So the model
does not change, no random number is drawn, and no memory of a weight's size is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from watchdog_app.estimate.record import InputSpec, TraceError

_SMALL_BYTES = 64 * 1024  # smaller variables get contents as usual: seeds, counters, biases


@contextmanager
def hollow_variables() -> Iterator[None]:
    """Create TensorFlow variables with a shape and a type but no contents, inside this context."""
    with tf.variable_creator_scope(_create_variable):
        yield


def _create_variable(make: Callable[..., Any], **wanted: Any) -> Any:
    initial = wanted.get("initial_value")
    if not callable(initial) or not tf.executing_eagerly():
        return make(**wanted)
    with tf.Graph().as_default():
        told = initial()
        shape, dtype = told.shape, told.dtype
    if not shape.is_fully_defined() or prod(shape.as_list()) * dtype.size < _SMALL_BYTES:
        return make(**wanted)
    return resource_variable_ops.UninitializedVariable(
        trainable=wanted.get("trainable"), shape=shape, dtype=dtype, name=wanted.get("name")
    )


def step_graph(
    model: Any,
    inputs: Sequence[InputSpec],
    batch: int,
    *,
    optimizer: Any = None,
    loss: Any = None,
) -> Any:
    """
    Trace the FuncGraph of a training step.

    Args:
        model: a built Keras model on TensorFlow.
        inputs: of one example each, in the order of `model.inputs`.
        batch: examples in the step.
        optimizer: built for the model; the trace may change it. None: no update is traced.
        loss: a name or a function as for `compile`; None: one that suits the output.

    Raises:
        TraceError: the step cannot be traced for these inputs.
    """
    try:
        step = _step(model, optimizer, loss)
        specs = [tf.TensorSpec((batch, *each.shape), each.dtype) for each in inputs]
        given = _pack_inputs(model, specs)
        return tf.function(step, autograph=False).get_concrete_function(given).graph
    except Exception as error:
        raise TraceError(f"{type(error).__name__}: {error}".split("\n", 1)[0]) from error


def _step(model: Any, optimizer: Any, loss: Any) -> Callable[[Any], Any]:
    if loss is None and getattr(model, "compiled", False):
        loss = getattr(model, "loss", None)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tokens = any(each.dtype.is_integer for each in tf.nest.flatten(x))
            losses = loss_of(model(x, training=True), loss, tokens)
            value = tf.add_n([tf.cast(each, tf.float32) for each in losses])
            for each in model.losses:
                value += tf.cast(each, value.dtype)
        weights = model.trainable_weights
        gradients = tape.gradient(value, [each.value for each in weights])
        if optimizer is None:
            return value, [each for each in gradients if each is not None]
        pairs = [pair for pair in zip(gradients, weights, strict=True) if pair[0] is not None]
        optimizer.apply_gradients(pairs)
        return value

    return step


def loss_of(output: Any, loss: Any, tokens: bool = False) -> list[Any]:
    """
    Return the loss of each output, for targets that are only shapes; `tokens`: integer inputs.
    """
    outputs = tf.nest.flatten(output)
    given = tf.nest.flatten(loss) if isinstance(loss, dict | list | tuple) else [loss]
    given = given if len(given) == len(outputs) else [given[0]] * len(outputs)
    return [_output_loss(out, each, tokens) for out, each in zip(outputs, given, strict=True)]


def _output_loss(output: Any, loss: Any, tokens: bool) -> Any:
    if loss is None:
        sequence = tokens and (output.shape.rank or 0) > 2
        classes = (output.shape.rank == 2 or sequence) and (output.shape[-1] or 0) > 1
        loss = "sparse_categorical_crossentropy" if classes else "mse"
    chosen = keras.losses.get(loss)
    same = tf.zeros_like(output)
    labels = tf.zeros(output.shape[:-1], tf.int32)
    name = getattr(chosen, "__name__", type(chosen).__name__).lower()
    for target in (labels, same) if "sparse" in name else (same, labels):
        try:
            return tf.reduce_mean(chosen(target, output))
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            continue
    return tf.reduce_mean(output)


def _pack_inputs(model: Any, specs: list[Any]) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is None:
        return specs[0] if len(specs) == 1 else specs
    return keras.tree.pack_sequence_as(structure, specs)
