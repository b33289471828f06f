"""A Keras model for the estimate: traced as a graph on TensorFlow, by its layers elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

from watchdog_app.agent.telemetry.parts import (
    Parts,
    keras_optimizer_bytes,
    parts_of_keras,
    shape_of,
)
from watchdog_app.base.text.quantities import KIB, MIB
from watchdog_app.estimate.inputs import specs_from_keras
from watchdog_app.estimate.record import (
    GPU_CONTEXT_BYTES,
    EstimateError,
    InputSpec,
    Subject,
    Traced,
    TraceError,
)

# Measured on Linux x86-64 with TensorFlow 2.21 and Keras 3.15 (docs/measurements.md): resident
# after the import, and what the first step adds in any case.
TENSORFLOW_BYTES = 690 * MIB
TENSORFLOW_FIRST_BYTES = 60 * MIB
# Per operation of a training graph, in all the forms that TensorFlow stores.
_OP_BYTES = 33 * KIB
# TensorFlow does not return memory, and the order of operations varies between steps. So holes
# remain, a share of what a step takes. Several copies of a batch exist: the original, the converted
# one and the prefetched ones. Both values were fitted with bench/estimate_judge.py.
_HOLES_SHARE = 0.2
_BATCH_COPIES = 8
_XLA_FIRST_BYTES = 90 * MIB
_XLA_OP_BYTES = 50 * KIB  # compiled code and leftovers of compilation
# Without a trace, in multiples of the layers' outputs: kept activations, and temporaries of the
# backward pass.
_LAYERS_KEEP = 1.5
_LAYERS_TAKE = 0.5


def subject(  # noqa: PLR0917
    model: Any, shape: Any, specs: list[InputSpec], optimizer: Any, loss: Any, gpu: bool,
    jit: bool | None, base: int | None, precision: str | None,
) -> Subject:  # fmt: skip
    """
    Wrap a built model with the way to trace it; arguments as for `estimating.estimate`.

    Raises:
        EstimateError: it is not built, or does not define the shape of one example.
    """
    if not getattr(model, "built", False):
        raise EstimateError(
            "The model is not built: it has no weights yet. Call model.build((None, ...)) with the "
            "shape of its input, or call it once."
        )
    if shape is not None or not specs:
        specs = specs_from_keras(model, shape)
    notes: list[str] = []
    if precision is not None:
        notes.append(
            "a Keras model has its precision from its layers' policy; precision= is for PyTorch."
        )
    optimizer, parts = _resolve_optimizer(model, optimizer, notes)
    static = parts.weights_bytes + (parts.optimizer_bytes or 0)
    jit = bool(getattr(model, "jit_compile", False) is True if jit is None else jit)
    backend = _backend(model)
    operations = [0]
    traced_by_layers: list[str] = []

    def trace(batch: int) -> Traced:
        if backend == "tensorflow" and not traced_by_layers:
            try:
                return by_graph(batch)
            except TraceError as error:
                traced_by_layers.append(str(error))
                notes.append(
                    f"the step cannot be traced ({error}): counted layer by layer, roughly."
                )
        elif not traced_by_layers:
            traced_by_layers.append(backend)
            notes.append(f"on {backend} activations are counted layer by layer, roughly.")
        return by_layers(batch)

    def by_graph(batch: int) -> Traced:
        from watchdog_app.estimate import keras_trace, tf_graph

        graph = keras_trace.step_graph(model, specs, batch, optimizer=optimizer, loss=loss)
        memory = tf_graph.graph_memory(graph, compiled=jit)
        operations[0] = max(operations[0], memory.operations)
        data = _data_bytes(specs, batch)
        unknown = f"{memory.unknown_shapes} tensors have no known size and are left out."
        if memory.unknown_shapes and unknown not in notes:
            notes.append(unknown)
        if gpu:
            live = static + data + memory.peak_bytes
            return Traced.on_gpu(batch, live, memory.kept_bytes, data)
        live = static + memory.peak_bytes + _BATCH_COPIES * data
        resident = live + int(_HOLES_SHARE * memory.peak_bytes)
        return Traced(batch, live, resident, memory.kept_bytes, data)

    def by_layers(batch: int) -> Traced:
        data = _data_bytes(specs, batch)
        put_out = sum(_layer_output_bytes(model)) * batch
        live = static + parts.gradients_bytes + data + int(put_out * (_LAYERS_KEEP + _LAYERS_TAKE))
        return Traced.on_gpu(batch, live, int(put_out * _LAYERS_KEEP), data)

    def framework_bytes() -> int:
        if gpu:
            return GPU_CONTEXT_BYTES
        if backend == "torch":
            from watchdog_app.estimate.torch_step import TORCH_BYTES, TORCH_FIRST_BYTES

            return (TORCH_BYTES if base is None else base) + TORCH_FIRST_BYTES
        total = (TENSORFLOW_BYTES if base is None else base) + TENSORFLOW_FIRST_BYTES
        total += operations[0] * _OP_BYTES
        return total + (_XLA_FIRST_BYTES + operations[0] * _XLA_OP_BYTES if jit else 0)

    depth = len(list(_layers(model)))
    return Subject(backend, parts, trace, framework_bytes, depth, notes)


def _resolve_optimizer(model: Any, optimizer: Any, notes: list[str]) -> tuple[Any, Parts]:
    """
    Return a copy of the optimizer that is built for the model without memory, and the parts.

    The copy is None without an optimizer, or if it cannot be built.
    """
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    backend = _backend(model)
    if isinstance(optimizer, str):
        optimizers = import_module("tf_keras" if backend == "tf_keras" else "keras").optimizers
        momentum = optimizer.lower() == "momentum"
        try:
            optimizer = optimizers.SGD(momentum=0.9) if momentum else optimizers.get(optimizer)
        except ValueError as error:
            raise EstimateError(f"Keras knows no optimizer {optimizer!r}.") from error
    parts = parts_of_keras(model, optimizer=optimizer)
    if optimizer is None:
        notes.append("no optimizer was named: its state is not counted.")
        return None, parts
    try:
        built = _built_copy(optimizer, model.trainable_variables, backend)
    except Exception as error:
        notes.append(f"the state of {parts.optimizer} is not counted: {error}.")
        return None, replace(parts, optimizer_bytes=None)
    return built, replace(parts, optimizer_bytes=keras_optimizer_bytes(built))


def _built_copy(optimizer: Any, weights: Sequence[Any], backend: str) -> Any:
    """An optimizer with the same settings, whose slots have shapes and no memory."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    config: dict[str, Any] = inner.get_config()
    # A schedule would need an evaluation, and does not affect memory.
    if not isinstance(config.get("learning_rate"), int | float):
        config["learning_rate"] = 0.001
    made = inner.from_config(config)
    if backend == "jax":
        import jax

        jax.eval_shape(lambda: made.build(weights))
    elif backend == "torch":
        import keras

        with keras.device("meta"):
            made.build(weights)
    else:
        from watchdog_app.estimate import keras_trace

        with keras_trace.hollow_variables():
            made.build(weights)
    return made


def _backend(model: Any) -> str:
    if any(each.__module__.startswith("tf_keras") for each in type(model).__mro__):
        return "tf_keras"
    import keras

    return str(keras.config.backend())


def _data_bytes(specs: Sequence[InputSpec], batch: int) -> int:
    from watchdog_app.agent.telemetry.parts import TYPE_BYTES

    return sum(batch * prod(each.shape) * TYPE_BYTES.get(each.dtype, 4) for each in specs)


def _layers(model: Any) -> Any:
    for each in getattr(model, "layers", ()):
        if getattr(each, "layers", None):
            yield from _layers(each)
        else:
            yield each


def _layer_output_bytes(model: Any) -> list[int]:
    """List each layer's output bytes for one example, if the layer has an output shape."""
    found = []
    for each in _layers(model):
        try:
            out = each.output
        except (AttributeError, ValueError):
            continue
        for tensor in out if isinstance(out, list | tuple) else [out]:
            found.append(prod(shape_of(tensor)[1:]) * 4)
    return found
