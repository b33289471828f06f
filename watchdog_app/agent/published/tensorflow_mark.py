"""
Numbers in memory that a TensorFlow step counts before it touches what is trained.

A Keras step fetches its data inside the graph, where no Python of ours runs: from outside, a
generator that takes all memory and an optimizer at work look alike. So the gradients are led past
a counter, which no kernel of the optimizer can overtake: as long as it is what it was, no weight
and no slot has moved, whatever the step has done.

It is a variable of two elements: one of a single element has no address to be read at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.rescue.segment.snapshot import Marker

_OURS = "_watchdog_counts"


class Counter:
    """Of the process: a graph that counts in it may outlive the training."""

    def __init__(self) -> None:
        self._variable: Any = None

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
        seen = np.asarray(self.variable.read_value())  # on a CPU the buffer itself, no copy
        return Marker(int(seen.__array_interface__["data"][0]), int(seen[0]))


APPLIED = Counter()  # before gradients are applied


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
