"""
TensorFlow: when a step begins to change tensors, and how to refresh the state a step later.

A Keras step fetches its data inside the graph, where none of our Python code runs. So another
process cannot distinguish a generator that takes all memory from an optimizer that is updating.
For this reason all writes of the optimizer wait for a counter in memory: none of its kernels
can write before the counter is incremented. While the counter keeps its value, no weight and no
slot has changed, whatever else the step has done. The counter is a variable of two elements,
because a variable of one element has no address that another process could read.

Each step may give new buffers to variables. So one graph reads all of them: it concatenates the
small ones by element type, and returns the large ones, whose buffers NumPy reads without a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.agent.snapshot.change_marker import (
    FitMarker,
    Refresh,
    Refreshed,
    changed_values,
)
from watchdog_app.agent.snapshot.contents import Contents
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.snapshot import Gathering, Marker

_OURS = "_watchdog_counts"
# Operations that compute the gradient of a layer's kernel.
_OWN_KERNELS = frozenset((
    *("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"),
    *("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
))  # fmt: skip


@functools.cache
def counter() -> Any:
    """The counter of the process, made at the first call: a graph may outlive its training."""
    with tf.init_scope(), tf.device("CPU:0"):
        variable = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
        variable.assign_add(tf.ones((2,), tf.int64))  # gives the variable its own buffer
    return variable


def read_counter() -> Marker:
    """Address and value of the counter that steps increment before they apply gradients."""
    seen = np.asarray(counter().read_value())  # on a CPU this is the buffer itself, not a copy
    return Marker(int(seen.__array_interface__["data"][0]), int(seen[0]))


def add_counter(optimizer: Any) -> None:
    """
    Make steps traced from now on with this optimizer count before they apply gradients.

    Steps that were traced earlier do not count: check whether the counter changes.
    """
    apply = optimizer.apply
    if getattr(apply, _OURS, False):
        return
    variable = counter()

    def counted(grads: Any, trainable_variables: Any = None, **others: Any) -> Any:
        listed, trained = list(grads), list(trainable_variables or ())
        if not tf.inside_function():
            variable.assign_add(tf.ones((2,), tf.int64))
        elif optimizer.built and (last := next(filter(None, map(_kernel_op, listed)), None)):
            # A variable of Keras holds one of TensorFlow, whose own `value` is a method.
            held = [each if isinstance(each, tf.Variable) else each.value
                    for each in (*trained, *optimizer.variables)]  # fmt: skip
            # No operation stands between gradients and update: TensorFlow rewrites the graph
            # across them, and without that rewrite the last digits differ.
            with tf.control_dependencies([last]):
                begun = variable.assign_add(tf.ones((2,), tf.int64), read_value=False)
            # In a graph a write follows all reads of the variable that were there before it.
            with tf.control_dependencies([] if begun is None else [begun]):
                for each in held:
                    each.read_value()
        return apply(listed, trainable_variables and trained, **others)

    optimizer.apply = tf.autograph.experimental.do_not_convert(counted)
    setattr(optimizer.apply, _OURS, True)


def _kernel_op(gradient: Any) -> Any:
    """The operation of a gradient, or of a part of a sum, that no rewrite joins with others."""
    waiting = [gradient.op] if isinstance(gradient, tf.Tensor) else []
    for op in waiting:
        if op.type in _OWN_KERNELS:
            return op
        if op.type in ("AddN", "AddV2", "Reshape"):
            waiting += [each.op for each in op.inputs]
    return None


def remove_counter(optimizer: Any) -> None:
    """Restore the optimizer. Traced steps still count, which costs a microsecond each."""
    if getattr(optimizer.apply, _OURS, False):
        del optimizer.apply


class TensorFlowRefresh:
    """Refreshes the state of one set of variables; `capture` is called at boundaries."""

    def __init__(self, training: Any, contents: Contents) -> None:
        """
        Args:
            training: the training with these variables.
            contents: tensors of the last full capture.
        """
        self.meta: Mapping[str, Any] = {}  # meta of the last full capture
        self._training = training
        self._rows = contents.rows
        self._holders = held = {item.name: item.holder for item in training.variables()}
        small = sorted(
            (row for row in self._rows if row[4] is not None), key=lambda row: row[4] or 0
        )
        self._whole = all(row[0] in held for row in self._rows)
        large = [held[row[0]] for row in self._rows if row[4] is None and row[0] in held]
        # The snapshot holds the tensors of one element type without gaps.
        runs = [list(run) for _type, run in groupby(small, lambda row: row[1])]
        self._spans = [(int(run[0][4] or 0), sum(row[3] for row in run)) for run in runs]
        groups = [[held[row[0]] for row in run if row[0] in held] for run in runs]

        def read_values() -> tuple[list[Any], list[Any]]:
            return (
                [each.read_value() for each in large],
                [tf.concat([_flat(each) for each in group], 0) for group in groups],
            )

        self._values = bytearray(contents.values)
        self._offsets = [tables.sample_places(nbytes) for _address, nbytes in contents.large]
        self._addresses = [address for address, _nbytes in contents.large]
        self._samples = Gathering(tables.sample_ranges(contents.large))
        self._graph = (
            tf.function(read_values, autograph=False).get_concrete_function()
            if self._whole
            else None
        )

    def matches(self, contents: Contents) -> bool:
        """Whether the training still has these variables, and `contents` the same rows."""
        held = {item.name: item.holder for item in self._training.variables()}
        return (
            self._rows == contents.rows
            and held.keys() == self._holders.keys()
            and all(held[name] is one for name, one in self._holders.items())
        )

    def capture(self) -> Refreshed | None:
        """The state now; None if it needs a full capture."""
        changing = self._training.changing() if self._graph is not None else None
        if changing is None or self._graph is None:
            return None
        news = [
            each
            for key, value in changing.items()
            for each in changed_values(self.meta[key], value, (key,))
        ]
        large, small = self._graph()
        for (at, length), each in zip(self._spans, small, strict=True):
            self._values[at : at + length] = np.asarray(each).view(np.uint8).data
        addresses = [_address(each) for each in large]
        if addresses != self._addresses:
            self._addresses = addresses
            self._samples.move(
                address + offset
                for address, offsets in zip(addresses, self._offsets, strict=True)
                for offset in offsets
            )
        samples = bytes(self._samples.take())
        # Release the tensors at once: while we hold a buffer, a step has to allocate a new one.
        del large, small
        return Refreshed(news, self._values, samples, np.array(addresses, np.uint64).tobytes())


def _flat(variable: Any) -> Any:
    value = variable.read_value()
    return value if value.shape.rank == 1 else tf.reshape(value, [-1])


def _address(tensor: Any) -> int:
    """Address of the elements of an eager tensor on a CPU, which NumPy reads without a copy."""
    return int(np.asarray(tensor).__array_interface__["data"][0])


class OnTensorFlow(FitMarker):
    """For Keras on TensorFlow, where a step counts; each update checks that it does."""

    def __init__(self, training: Any) -> None:
        super().__init__(training)
        self.is_supported = not training.compiled
        self._marker: Marker | None = None
        self._step = -1
        self._counts = False
        self._refresh: TensorFlowRefresh | None = None

    def prepare(self) -> None:
        """
        See `ChangeMarker`; a model with several optimizers is not counted.

        A counter between the updates of two optimizers makes TensorFlow sum gradients in another
        order, which changes last digits. The agent then saves at a boundary.
        """
        optimizers = list(self._training.optimizers())
        if self.is_supported and len(optimizers) == 1:
            add_counter(optimizers[0])

    def update(self, step: int) -> None:
        """See `ChangeMarker`."""
        super().update(step)
        self.update_marker(step)

    def update_marker(self, step: int) -> None:
        """Read the counter, and check that the steps since the last update have counted."""
        before, self._marker = self._marker, read_counter()
        if step != self._step:
            now = self._marker
            self._counts = (
                before is not None and before.address == now.address and before.value < now.value
            )
        self._step = step

    def markers(self) -> Iterable[Marker]:
        """See `ChangeMarker`."""
        return () if self._marker is None else (self._marker,)

    @property
    def trusted(self) -> bool:  # type: ignore[override]  # only known after an update
        """See `ChangeMarker`."""
        return self._counts

    def end(self) -> None:
        """See `ChangeMarker`."""
        for optimizer in self._training.optimizers():
            remove_counter(optimizer)

    def refresh(self, meta: Mapping[str, Any], contents: Contents) -> Refresh | None:
        """See `ChangeMarker`."""
        if self._refresh is None or not self._refresh.matches(contents):
            self._refresh = TensorFlowRefresh(self._training, contents)
        known = self._refresh
        known.meta = meta

        def take(step: int) -> Refreshed | None:
            self.update_marker(step)
            found = known.capture()
            return None if found is None else replace(found, markers=tuple(self.markers()))

        return take
