"""
Whether the loss of a Keras model on TensorFlow is that of its samples, each by itself.

A contrastive loss compares the samples of a batch with each other: in parts it is another loss,
and nothing in its code says so. So it is tried, on predictions that are cut in two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

_FARTHEST = 1e-3  # relative: rounding is 1e-6 in float32
_FARTHEST_HALF = 2e-2  # with 16 bits
_ROWS = 8  # little memory is left

COUPLED = (
    "its loss for a batch is not the mean of its losses for parts of it: it compares the samples "
    "of a batch with each other, or adds them up"
)


def couples_samples(model: Any, data: Any, weight: Callable[..., Any], *, sums: bool) -> bool:
    """
    Whether the loss of a batch is another one than that of its parts; False where nobody can tell.

    Args:
        model: predicts as in a test; nothing of it is trained. Its metrics may move.
        data: a part of a batch that fits, with None where the data set has nothing.
        weight: what a loss was divided by, of x, y_pred and the samples' weights.
        sums: the loss adds up, and is not a mean.
    """
    leaves = [each for each in tree.flatten(data) if each is not None]
    rows = min(_ROWS, int(leaves[0].shape[0]))
    if rows < 2:
        return False
    shown = _cut(data, slice(0, rows))
    x, y, weights = keras.utils.unpack_x_y_sample_weight(shown)
    y_pred = model(x, **({"training": False} if model._call_has_training_arg else {}))
    predicted = tree.flatten(y_pred)
    if any(getattr(each, "_keras_mask", None) is not None for each in predicted):
        return False  # it does not survive the cut
    if any(each.shape.rank == 0 or each.shape[0] != rows for each in predicted):
        return False

    def loss(where: slice) -> tuple[float, float]:
        part = _cut((x, y, y_pred, weights), where)
        value = model._compute_loss(
            x=part[0], y=part[1], y_pred=part[2], sample_weight=part[3], training=False
        )
        return float(value), float(weight(part[0], part[2], part[3]))

    whole, _ = loss(slice(0, rows))
    parts = [loss(slice(0, rows // 2)), loss(slice(rows // 2, rows))]
    divisor = 1.0 if sums else sum(counts for _, counts in parts)
    if not divisor:
        return False
    together = sum(value * counts for value, counts in parts) / divisor
    half = any(each.dtype in (tf.float16, tf.bfloat16) for each in predicted)
    farthest = _FARTHEST_HALF if half else _FARTHEST
    # Not `>`: what is no number says nothing.
    return abs(whole - together) > farthest * max(abs(whole), abs(together), 1e-6)


def _cut(data: Any, where: slice) -> Any:
    return tree.map_structure(lambda each: None if each is None else each[where], data)
