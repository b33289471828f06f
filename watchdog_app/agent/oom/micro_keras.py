"""
Train a Keras model on TensorFlow for one step with its batch in parts, equal to a whole batch.

The gradients of each part are weighted by the divisor of its loss: its samples, their weights or
the entries that are not masked. Their sum is applied once, so the optimizer, its schedule and its
accumulation see one step. Metrics see every part once. Batch statistics (BatchNormalization) and
random numbers (Dropout) belong to each part, and cannot equal those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from watchdog_app.agent.oom.micro import MicroBatches, sample_count, slice_batch
from watchdog_app.agent.state.keras_model import is_keras_module

_COUPLED = (
    "its loss for a batch is not the mean of its losses for parts of it: it compares the samples "
    "of a batch with each other, or adds them up"
)
_MEANS = ("sum_over_batch_size", "mean")
_WEIGHTED = "mean_with_sample_weight"
_OWN_STEP = ("train_step", "compute_loss")
# Of the trial that checks whether a loss compares the samples of a batch.
_FARTHEST = 1e-3  # largest relative difference by rounding, which is 1e-6 in float32
_FARTHEST_HALF = 2e-2  # the same with 16 bits
_ROWS = 8  # samples of the trial: few, because little memory is left


def obstacle(model: Any) -> str | None:
    """Why the batches of a model cannot be trained in parts, as a text; None if they can."""
    for name in _OWN_STEP:
        if name in vars(model) or not is_keras_module(getattr(type(model), name).__module__):
            return f"the model has a {name} of its own"
    layers = list(model._flatten_layers())
    if any(getattr(each, "stateful", False) for each in layers):
        return "a stateful layer keeps a state for each sample of a batch"
    ends = tree.flatten(getattr(model, "inputs", None))
    if any(each is not None and each.shape[:1] not in ((), (None,)) for each in ends):
        return "its Input has a batch_size of its own"
    if any(getattr(each, "activity_regularizer", None) for each in layers):
        return "an activity_regularizer adds up over the samples of a batch"
    losses = _losses(model)
    kinds = {str(getattr(each, "reduction", _MEANS[0])) for each in losses}
    unknown = kinds - {*_MEANS, _WEIGHTED, "sum"}
    if unknown:
        return f"a loss has the reduction {', '.join(sorted(unknown))}"
    if len({"mean" if kind in _MEANS else kind for kind in kinds}) > 1:
        return "its losses have different reductions"
    several = len(losses) > 1 or len(getattr(model, "outputs", None) or [None]) > 1
    masks = any(_creates_mask(layer) for layer in layers)
    if several and (masks or kinds - {*_MEANS}):
        return "it has several losses, and not each is a mean over the samples"
    if "sum" in kinds and (model.losses or masks):
        return "a loss that is a sum is added to one that is not"
    return None


def _losses(model: Any) -> list[Any]:
    return [each for each in tree.flatten(getattr(model, "loss", None)) if each is not None]


def _creates_mask(layer: Any) -> bool:
    return bool(getattr(layer, "mask_zero", False)) or isinstance(layer, keras.layers.Masking)


class Parts:
    """Trains a model on batches in parts."""

    coupled = _COUPLED  # the obstacle, as a text, if `couples_samples` returns True

    def __init__(self, model: Any, micro: MicroBatches) -> None:
        self._model = model
        self._micro = micro
        self._sums: list[Any] = []  # sum of the gradients so far, by trainable weight
        self._totals: list[Any] = []  # sum of the parts' weights, and sum of their losses
        self._has_gradient: list[bool] = []
        self._whole: tuple[Any, Any, Callable[[Any], Any]] | None = None
        self._functions: tuple[Any, Any, Any] | None = None
        losses = _losses(model)
        # The mean of a part has larger gradients than that of the batch: 16 bits might overflow.
        self._scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        self._reduction = str(getattr(losses[0], "reduction", _MEANS[0])) if losses else _MEANS[0]

    @property
    def inexact(self) -> str:
        """The parts of the model that see parts of a batch, as a text; empty: none."""
        layers = list(self._model._flatten_layers())
        named = {type(each).__name__ for each in layers}
        found = []
        if any("BatchNorm" in name for name in named):
            found.append("BatchNormalization takes the statistics of each part")
        if any("SpectralNorm" in name for name in named):
            found.append("SpectralNormalization moves on with each part")
        if any(getattr(each, "_losses", None) for each in layers):
            found.append("losses that layers add are taken for means over the samples")
        if any(getattr(each, "seed_generator", None) for each in layers):
            found.append("random layers (Dropout) draw for each part")
        return "; ".join(found)

    def couples_samples(self, data: Any, count: int) -> bool:
        """
        Whether the loss of a batch differs from that of its parts, by a trial on one that fits.

        A contrastive loss compares the samples of a batch with each other, and its code does not
        show it. The trial trains nothing, but it may change metrics.

        Returns:
            False also if the trial cannot decide.
        """
        try:
            first = self._micro.parts(count)[0]
            return self._couples_samples(slice_batch(_without_optionals(data), first))
        except Exception:  # the loss runs only in graphs, or memory ran out once more
            return False

    def _couples_samples(self, data: Any) -> bool:
        rows = min(_ROWS, int(_leaves(data)[0].shape[0]))
        if rows < 2:
            return False
        x, y, weights = keras.utils.unpack_x_y_sample_weight(slice_batch(data, slice(0, rows)))
        y_pred = self._model(x, training=False)
        predicted = tree.flatten(y_pred)
        if any(getattr(each, "_keras_mask", None) is not None for each in predicted):
            return False  # slicing the predictions loses the mask
        if any(each.shape.rank == 0 or each.shape[0] != rows for each in predicted):
            return False

        def loss(where: slice) -> tuple[float, float]:
            part = slice_batch((x, y, y_pred, weights), where)
            value = self._model.compute_loss(
                x=part[0], y=part[1], y_pred=part[2], sample_weight=part[3], training=False
            )
            return float(value), float(self._weight(part[0], part[2], part[3]))

        whole, _ = loss(slice(0, rows))
        parts = [loss(slice(0, rows // 2)), loss(slice(rows // 2, rows))]
        divisor = 1.0 if self._reduction == "sum" else sum(counts for _, counts in parts)
        if not divisor:
            return False
        together = sum(value * counts for value, counts in parts) / divisor
        half = any(each.dtype in (tf.float16, tf.bfloat16) for each in predicted)
        farthest = _FARTHEST_HALF if half else _FARTHEST
        # `>` is False for NaN: a loss that is not a number decides nothing.
        return abs(whole - together) > farthest * max(abs(whole), abs(together), 1e-6)

    def count(self, data: Any) -> int | None:
        """The number of samples in a batch; None if it cannot be divided."""
        return sample_count(_without_optionals(data), tf.Tensor)

    def build(self, data: Any) -> None:
        """
        Create the variables of the first step before it runs.

        Otherwise a first step that fails could create only some of them.
        """
        model = self._model
        optimizer = model.optimizer
        if optimizer is None or optimizer.built:
            return
        try:
            model._symbolic_build(data_batch=_without_optionals(data))
        except Exception:  # noqa: S110 - the step then raises the same error
            pass

    def whole(self, original: Any, spec: Any) -> Callable[[Any], Any]:
        """
        Keras's own step, as a function of a batch that was drawn before.

        The function is compiled for the shapes of the data set's element_spec, as in Keras's step,
        which draws the batch itself. TensorFlow would fold fixed sizes into the graph, which rounds
        differently.
        """
        if self._model.run_eagerly:
            return lambda data: original([data])
        if self._whole is None or self._whole[0] is not original or self._whole[1] != spec:

            def step(data: Any) -> Any:
                return original([data])

            self._whole = original, spec, tf.function(step, input_signature=[spec], autograph=False)
        return self._whole[2]

    def train(self, data: Any, count: int) -> Any:
        """Train one step on a batch of `count` samples, in parts of the size that fits."""
        plain = _without_optionals(data)
        flat = _leaves(plain)
        add, apply = self._compiled(plain, flat)
        for index, part in enumerate(self._micro.parts(count)):
            share = tf.constant((part.stop - part.start) / count if self._scales else 1.0)
            add(index == 0)(share, *[each[part] for each in flat])
        return apply(tf.constant(count))

    def _compiled(self, plain: Any, flat: list[Any]) -> tuple[Any, Any]:
        """
        The step's functions for batches of these shapes and any number of samples.

        The graph does not know the number of samples, as in Keras's own step: metrics that weight
        by it behave the same way.
        """
        known = self._whole[1] if self._whole is not None else None
        specs = [each for each in tf.nest.flatten(known) if isinstance(each, tf.TensorSpec)]
        shapes = [each.shape for each in (specs if len(specs) == len(flat) else flat)]
        signature = tuple(
            tf.TensorSpec([None, *shape[1:]], each.dtype)
            for shape, each in zip(shapes, flat, strict=True)
        )
        if self._functions is None or self._functions[0] != signature:
            self._functions = signature, *self._build_functions(plain, signature)
        return self._functions[1:]

    def _build_functions(self, plain: Any, signature: tuple[Any, ...]) -> tuple[Any, Any]:
        model = self._model
        weights = list(model.trainable_weights)
        if len(self._sums) != len(weights):
            with tf.init_scope():
                self._sums = [
                    tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False)
                    for each in weights
                ]
                self._totals = [tf.Variable(0.0, trainable=False) for _ in range(2)]

        def adding(begins: bool) -> Any:
            def add(share: Any, *flat: Any) -> None:
                leaves = iter(flat)
                data = tree.map_structure(
                    lambda each: None if each is None else next(leaves), structure
                )
                self._add_part(data, weights, share, begins=begins)

            return add

        def apply(count: Any) -> Any:
            return self._apply_gradients(weights, count)

        # The structure without its tensors: the closure would keep them alive.
        structure = tree.map_structure(lambda each: None if each is None else 0, plain)
        adders = {begins: adding(begins) for begins in (True, False)}
        if not model.run_eagerly:
            options = {"autograph": False, "jit_compile": bool(model.jit_compile)}
            adders = {
                begins: tf.function(add, input_signature=(tf.TensorSpec([]), *signature), **options)
                for begins, add in adders.items()
            }
            apply = tf.function(apply, **options)
        return adders.__getitem__, apply

    def _add_part(self, data: Any, weights: list[Any], share: Any, *, begins: bool) -> None:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            by = share if self._scales and self._reduction != "sum" else None
            scaled = model.optimizer.scale_loss(loss if by is None else loss * _cast_like(by, loss))
        gradients = tape.gradient(scaled, weights)
        self._has_gradient = [each is not None for each in gradients]
        weight = self._weight(x, y_pred, sample_weight)
        counts = weight if by is None else tf.cast(weight, tf.float32) / by
        added = [(total, value, counts) for total, value in zip(self._sums, gradients, strict=True)]
        added += [(self._totals[0], 1.0, weight), (self._totals[1], loss, weight)]
        for total, value, times in added:
            if value is None:
                continue
            term = tf.convert_to_tensor(value, total.dtype) * tf.cast(times, total.dtype)
            if begins:
                total.assign(term)
            else:
                total.assign_add(term)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def _apply_gradients(self, weights: list[Any], count: Any) -> Any:
        model = self._model
        divisor, loss = self._totals
        over = tf.constant(1.0) if self._reduction == "sum" else tf.convert_to_tensor(divisor)
        model._loss_tracker.update_state(tf.math.divide_no_nan(loss, over), sample_weight=count)
        gradients = [
            tf.math.divide_no_nan(total, tf.cast(over, total.dtype)) if has else None
            for total, has in zip(self._sums, self._has_gradient, strict=True)
        ]
        model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return model.get_metrics_result()

    def _weight(self, x: Any, y_pred: Any, sample_weight: Any) -> Any:
        """The divisor of the loss of a part."""
        if self._reduction == "sum":
            return tf.constant(1.0)
        mask = getattr(y_pred, "_keras_mask", None)
        if self._reduction == _WEIGHTED and sample_weight is not None:
            weights = tf.cast(sample_weight, tf.float32)
            return tf.reduce_sum(weights if mask is None else weights * _mask_like(mask, weights))
        if mask is not None:
            return tf.reduce_sum(tf.cast(mask, tf.float32))
        return tf.cast(tf.shape(_leaves(x)[0])[0], tf.float32)


def _cast_like(value: Any, like: Any) -> Any:
    return tf.cast(value, like.dtype)


def _mask_like(mask: Any, weights: Any) -> Any:
    found = tf.cast(mask, weights.dtype)
    return found if found.shape.rank == weights.shape.rank else tf.ones_like(weights)


def _without_optionals(data: Any) -> Any:
    """The batch with None in place of each empty Optional of the data set."""
    return tree.map_structure(
        lambda each: None if isinstance(each, tf.experimental.Optional) else each, data
    )


def _leaves(data: Any) -> list[Any]:
    return [each for each in tree.flatten(data) if each is not None]
