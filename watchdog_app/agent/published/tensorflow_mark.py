"""
Numbers in memory that a TensorFlow step counts before it touches what is trained.

A Keras step fetches its data inside the graph, where no Python of ours runs: from outside, a
generator that takes all memory and an optimizer at work look alike. So the gradients are led past
a counter, which no kernel of the optimizer can overtake: as long as it is what it was, no weight
and no slot has moved, whatever the step has done. A second one is counted when the data has come,
and whatever writes to a variable waits for that: as long as that one is what it was, nothing at all
has moved.

They are variables of two elements: those of one element have no address to be read at.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.agent.fit import step_random
from watchdog_app.agent.published.tensorflow_places import Buffers, Moving, Places, Unknown
from watchdog_app.airbag.table import Marker

_OURS = "_watchdog_counts"
_READS = frozenset(
    {"ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd"}
)


class Counter:
    """Of the process: a graph that counts in it may outlive the training."""

    def __init__(self) -> None:
        self._variable: Any = None
        self._place: tuple[Buffers, Moving] | None = None

    @property
    def variable(self) -> Any:
        """Made when it is first asked for."""
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._variable = tf.Variable(tf.zeros((2,), tf.int64), trainable=False)
                # Gives it a buffer of its own.
                self._variable.assign_add(tf.ones((2,), tf.int64))
        return self._variable

    def read(self) -> Marker:
        """Where the number is, and what it is now."""
        variable = self.variable
        if self._place is None:
            with suppress(Unknown, OSError):
                self._place = Buffers(Places([variable])), Moving([8])
        if self._place is not None:
            addresses = self._place[0].addresses()
            return Marker(
                int(addresses[0]), int.from_bytes(self._place[1].take(addresses), "little")
            )
        seen = np.asarray(variable.read_value()._numpy())
        return Marker(int(seen.__array_interface__["data"][0]), int(seen[0]))


APPLIED, ARRIVED = Counter(), Counter()  # before gradients are applied; when the data has come


def count_in(optimizer: Any) -> None:
    """
    From now on what is traced with this optimizer counts before it applies gradients.

    A step that was traced before does not; see whether the number moves.
    """
    apply = optimizer.apply
    if getattr(apply, _OURS, False):
        return
    variable = APPLIED.variable

    def counted(grads: Any, trainable_variables: Any = None, **others: Any) -> Any:
        listed = list(grads)
        there = [each for each in listed if each is not None]
        if not there:
            return apply(grads, trainable_variables, **others)
        one = tf.ones((2,), tf.int64)
        with tf.control_dependencies(there):
            behind = tf.identity(one)
        begun = variable.assign_add(behind, read_value=False)
        with tf.control_dependencies([] if begun is None else [begun]):
            led = [tf.identity(each) if isinstance(each, tf.Tensor) else each for each in listed]
            led = [
                tf.IndexedSlices(tf.identity(each.values), each.indices, each.dense_shape)
                if isinstance(each, tf.IndexedSlices)
                else each
                for each in led
            ]
        return apply(led, trainable_variables, **others)

    setattr(counted, _OURS, True)
    optimizer.apply = counted


def count_no_more(optimizer: Any) -> None:
    """The optimizer as it was; what is traced goes on counting, which costs a microsecond."""
    if getattr(optimizer.apply, _OURS, False):
        del optimizer.apply


def order(model: Any) -> None:
    """
    From now on a fit of this model writes nothing before the data of a step has come, and counts.

    Where its step was traced before, or is made in a way of the program's own, it stays as it is.
    """
    made = model.train_function
    keras_makes = getattr(type(model).make_train_function, "__module__", "").startswith("keras.")
    if made is None or not keras_makes or ordered(model) or step_random.is_traced(made):
        return
    step, own = model.train_step, vars(model).get("train_step")

    def waiting(data: Any) -> Any:
        one = tf.ones((2,), tf.int64)
        there = [each for each in tf.nest.flatten(data, True) if isinstance(each, tf.Tensor)]
        with tf.control_dependencies(there):
            behind = tf.identity(one)
        arrived = ARRIVED.variable.assign_add(behind, read_value=False)
        if arrived is None:  # run eagerly
            return step(data)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = step(data)
        for each in graph.get_operations()[before:]:
            if _writes(each):
                each._add_control_input(arrived)
        return result

    # Keras makes its function of what stands there now; the model itself stays as it was.
    vars(model)["train_step"] = waiting
    try:
        model.make_train_function(force=True)
    finally:
        if own is None:
            del vars(model)["train_step"]
        else:
            vars(model)["train_step"] = own
    setattr(model.train_function, _OURS, True)


def ordered(model: Any) -> bool:
    """Whether the steps of this model's present function wait for their data."""
    return getattr(model.train_function, _OURS, False)


def _writes(operation: Any) -> bool:
    """Whether it may change a variable; one that calls functions may."""
    return operation.type not in _READS and any(
        each.dtype == tf.resource for each in operation.inputs
    )
