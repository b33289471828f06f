"""The gradients of a TensorFlow loop's loss, of a whole batch or of its parts one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from watchdog_app.agent.exhaustion import micro_batches
from watchdog_app.agent.exhaustion.micro_batches import MicroBatches


def gradients(
    batch: Any,
    loss_of: Callable[..., Any],
    variables: Sequence[Any],
    *,
    micro: MicroBatches,
    shrinks: bool,
    take: Callable[[], None],
    put_back: Callable[[], object],
    reduction: str,
    weight: Callable[..., Any] | None,
) -> tuple[Any, list[Any]]:
    """
    The loss of `batch` and its gradients in `variables`.

    Args:
        batch: a tensor, or tuples, lists and dicts of tensors of one length.
        loss_of: called with the batch, or with its members where it is a tuple or list.
        variables: that are trained.
        micro: what is known of how much fits, and learns.
        shrinks: go on with smaller parts after an error of memory.
        take: keeps what a forward pass changes (statistics, seeds).
        put_back: puts that back.
        reduction: of the loss over the samples, "mean" or "sum".
        weight: what a mean divides by, given what `loss_of` is; None: the samples.
    """
    micro_batches.check(reduction)
    trained = [getattr(each, "value", each) for each in variables]
    count = micro_batches.size_of(batch, _rows) if shrinks else None
    if count is None:
        return _of(batch, loss_of, trained)
    take()

    def attempt(parts: list[slice]) -> tuple[Any, list[Any]]:
        if len(parts) == 1:
            return _of(batch, loss_of, trained)
        loss: Any = None
        sums: list[Any] = [None] * len(trained)
        for where in parts:
            part = micro_batches.cut(batch, where)
            sizes = where.stop - where.start, parts[-1].stop
            counts = micro_batches.share(batch, part, sizes, reduction, weight)
            value, found = _of(part, loss_of, trained)
            value = value * tf.cast(counts, value.dtype)
            loss = value if loss is None else loss + value
            for index in range(len(trained)):
                gradient, found[index] = found[index], None  # one at a time in memory
                if gradient is None:
                    continue
                term = tf.convert_to_tensor(gradient) * tf.cast(counts, gradient.dtype)
                sums[index] = term if sums[index] is None else sums[index] + term
        return loss, sums

    return micro_batches.in_parts(micro, count, attempt, put_back)


def _of(batch: Any, loss_of: Callable[..., Any], trained: list[Any]) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = micro_batches.call(loss_of, batch)
    return loss, list(tape.gradient(loss, trained))


def _rows(leaf: Any) -> int | None:
    return int(leaf.shape[0]) if isinstance(leaf, tf.Tensor) and leaf.shape.rank else None
