"""TensorFlow out of memory: undo the changes of a failed step, and train a batch in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import raw_ops

from watchdog_app.agent.adapters.tensorflow_state import LoopState
from watchdog_app.agent.oom import micro as batches
from watchdog_app.agent.oom.micro import MicroBatches
from watchdog_app.agent.oom.record import Record
from watchdog_app.agent.state.rows import METRIC, OPTIMIZER, NamedVariable, split_variables

_MOST_SAMPLED = 64
_ELEMENTS = 8  # approximate number of sampled elements of a variable
_FIRST_REFRESHES = 2  # first captures that list the variables: the first step makes slots
_REFRESH_EVERY = 500  # captures between later listings: the program may have frozen layers


class TensorFlowRecord(Record):
    """
    Holds references to small variables and copies some elements of weights and slots.

    A reference is enough, because TensorFlow writes to a new buffer while one exists.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: list[int] = []
        self._readers: list[Callable[[], Any]] = []
        self._samplers: list[Callable[[], Any]] = []

    def set_variables(
        self, small: Sequence[NamedVariable], trained: Sequence[NamedVariable]
    ) -> None:
        """See `Record`."""
        known = [id(item.holder) for item in (*small, *trained)]
        if known == self._known:
            return
        super().set_variables(small, trained)
        self._known = known
        step = max(1, -(-len(trained) // _MOST_SAMPLED))
        self._readers = [_reader(item.holder) for item in small]
        self._samplers = [_sampler(item) for item in trained[::step]]

    def _values(self) -> Sequence[Any]:
        return [read() for read in self._readers]

    def _marks(self) -> list[Any]:
        return [read() for read in self._samplers]

    def _marks_equal(self, before: list[Any], now: list[Any]) -> bool:
        return all(
            np.asarray(old).tobytes() == np.asarray(new).tobytes()
            for old, new in zip(before, now, strict=True)
        )

    def _assign(self, item: Any, value: Any) -> None:
        item.holder.assign(value)


class LoopRecord(TensorFlowRecord):
    """The record of a loop of the program, with its random numbers and attributes."""

    def __init__(self, state: LoopState) -> None:
        super().__init__()
        self._state = state
        self._before: Any = None
        self._count = 0

    def capture(self, *, marks: bool = True) -> None:
        """See `Record`."""
        if self._count < _FIRST_REFRESHES or self._count % _REFRESH_EVERY == 0:
            variables = self._state.variables()
            trained = [
                item.holder
                for item in variables
                if item.group not in (METRIC, OPTIMIZER) and item.holder.trainable
            ]
            self.set_variables(*split_variables(variables, trained))
        self._count += 1
        super().capture(marks=marks)
        self._before = self._state.capture_before_step()

    def restore(self) -> bool:
        """See `Record`."""
        if self.is_captured:
            self._state.restore_before_step(self._before)
        return super().restore()


def _reader(variable: Any) -> Callable[[], Any]:
    """A function that reads a variable in half the time of its `read_value`."""
    try:
        handle, dtype = variable.handle, variable.dtype
        raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except Exception:  # the variable is distributed over devices
        read: Callable[[], Any] = variable.read_value
        return read
    return lambda: raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _sampler(item: NamedVariable) -> Callable[[], Any]:
    """
    A function that reads some elements of a variable.

    It never gathers from the variable itself. After one gather TensorFlow copies the whole variable
    at every later read (`copy_on_read_mode`), in each training step as well.
    """
    variable, shape = item.holder, item.row[2]
    if shape == ():
        return _reader(variable)
    stride = max(1, math.prod(shape) // _ELEMENTS)
    if "CPU" not in str(variable.device):
        return lambda: tf.reshape(variable.read_value(), [-1])[::stride]
    read = _reader(variable)

    def read_elements() -> Any:
        whole = np.asarray(read())  # the variable's own memory; below only elements are copied
        return whole.reshape(-1)[::stride].copy()

    return read_elements


def gradients(
    batch: Any,
    loss_of: Callable[..., Any],
    variables: Sequence[Any],
    *,
    micro: MicroBatches | None,
    record: Record,
    reduction: str,
    weight: Callable[..., Any] | None,
) -> tuple[Any, list[Any]]:
    """
    The loss of `batch` and its gradients in `variables`.

    Args:
        batch: a tensor, or tuples, lists and dicts of tensors of one length.
        loss_of: called with the batch, or with its members if it is a tuple or list.
        variables: the variables that are trained.
        micro: size of the parts; it shrinks after an out-of-memory error. None: that ends the step.
        record: records the values that a forward pass changes (statistics, seeds).
        reduction: reduction of the loss over the samples, "mean" or "sum".
        weight: takes the arguments of `loss_of` and returns the divisor of its mean; None: the
            number of samples.
    """
    batches.check_reduction(reduction)
    trained = [getattr(each, "value", each) for each in variables]
    count = None if micro is None else batches.sample_count(batch, tf.Tensor)
    if micro is None or count is None:
        return _loss_and_gradients(batch, loss_of, trained)
    record.capture(marks=False)

    def attempt(parts: list[slice]) -> tuple[Any, list[Any]]:
        if len(parts) == 1:
            return _loss_and_gradients(batch, loss_of, trained)
        loss: Any = None
        sums: list[Any] = [None] * len(trained)
        for part, share in batches.weighted_parts(batch, parts, reduction, weight):
            value, found = _loss_and_gradients(part, loss_of, trained)
            value = value * tf.cast(share, value.dtype)
            loss = value if loss is None else loss + value
            for index in range(len(trained)):
                # Release each gradient before the next sum, to need less memory.
                gradient, found[index] = found[index], None
                if gradient is None:
                    continue
                term = tf.convert_to_tensor(gradient) * tf.cast(share, gradient.dtype)
                sums[index] = term if sums[index] is None else sums[index] + term
        return loss, sums

    return batches.run_in_parts(micro, count, attempt, record.restore)


def _loss_and_gradients(
    batch: Any, loss_of: Callable[..., Any], trained: list[Any]
) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        loss = batches.call_with_batch(loss_of, batch)
    return loss, list(tape.gradient(loss, trained))
