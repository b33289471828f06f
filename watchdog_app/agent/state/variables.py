"""
The variables of a training, and access to their bytes.

A Keras model keeps its state in four places: `variables` (weights, statistics and random seeds),
`metrics_variables`, the variables of every optimizer, and plain TensorFlow variables attached to
it. A resume needs all four to repeat the uninterrupted run bit for bit. Every save method of Keras
omits some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.agent.state.keras_model import is_keras_instance, optimizers_of
from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER, OTHER, NamedVariable, Row
from watchdog_app.base.errors import RescueError

_OF_KERAS = ("Layer", "Metric", "Optimizer", "SeedGenerator")


@dataclass(frozen=True, slots=True)
class StateVariable(NamedVariable):
    """One tensor of the training's state: a tf.Variable, or one replica's part of it."""

    @property
    def row(self) -> Row:
        """See `NamedVariable`."""
        shape = self.holder.shape
        known = shape if shape.is_fully_defined() else tf.shape(self.holder)
        return self.name, str(self.holder.dtype.name), tuple(int(size) for size in known)

    def array(self) -> np.ndarray[Any, Any]:
        """
        The current elements: the variable's own memory on a CPU, a copy from a GPU.

        TensorFlow writes to a new buffer while this array lives, so the array never changes. Keep
        it no longer than needed.
        """
        return np.asarray(self.holder.read_value())

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Set the variable."""
        self.holder.assign(value)


def model_variables(model: Any, extra: Iterable[Any] = ()) -> list[StateVariable]:
    """
    Every variable of a compiled or bare Keras model, in an order that its program repeats.

    Args:
        model: a Keras model.
        extra: TensorFlow variables outside Keras's own lists, see `plain_variables`.
    """
    optimizers = [(OPTIMIZER, each.variables) for each in optimizers_of(model)]
    metrics = (METRIC, model.metrics_variables)
    return collect([(MODEL, model.variables), metrics, *optimizers, (OTHER, extra)])


def _refuse_other_backend(objects: Mapping[str, Any], backend: str) -> None:
    """Refuse Keras objects of another backend: their variables are not TensorFlow variables."""
    of_keras = [name for name, thing in objects.items() if is_keras_instance(thing, *_OF_KERAS)]
    if of_keras:
        raise RescueError(
            f"{', '.join(of_keras)}: this is Keras on {backend}, and "
            "watchdog_app.agent.tensorflow.Rescue saves loops of TensorFlow. A fit is saved on "
            "every backend: model.fit(..., callbacks=[Rescue(...)]) with the Rescue of "
            "watchdog_app.agent.keras."
        )


def collect(groups: Iterable[tuple[str, Iterable[Any]]]) -> list[StateVariable]:
    """Variables by groups (MODEL, ...), once each, under unique names."""
    found = _Collector()
    for group, members in groups:
        found.add(group, members)
    return found.variables


def object_variables(objects: Mapping[str, Any]) -> list[StateVariable]:
    """
    Every variable of named objects: models, layers, optimizers, metrics, modules, variables.

    The objects' names become the first part of the variables' names.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        _refuse_other_backend(objects, keras.backend.backend())
    found = _Collector()
    for name, thing in objects.items():
        if isinstance(thing, keras.Model):
            found.add(name, thing.variables, MODEL)
            found.add(name, thing.metrics_variables, METRIC)
            for optimizer in optimizers_of(thing):
                found.add(name, optimizer.variables, OPTIMIZER)
        elif isinstance(thing, keras.optimizers.Optimizer):
            found.add(name, thing.variables, OPTIMIZER)
        elif isinstance(thing, keras.metrics.Metric):
            found.add(name, thing.variables, METRIC)
        elif isinstance(thing, keras.Layer):
            found.add(name, thing.variables, MODEL)
        elif isinstance(thing, keras.random.SeedGenerator):
            found.add(name, [thing.state], OTHER)
        elif is_variable(thing):
            found.add(name, [thing], OTHER)
        found.add(name, plain_variables(thing), OTHER)
    return found.variables


def plain_variables(root: Any) -> list[Any]:
    """TensorFlow variables reachable from a trackable object, in a repeatable order."""
    if is_variable(root) or not hasattr(root, "_trackable_children"):
        return []
    return [thing for thing in tf.train.TrackableView(root).descendants() if is_variable(thing)]


def is_variable(thing: Any) -> bool:
    """Whether this is a variable of TensorFlow or Keras."""
    return isinstance(thing, tf.Variable) or _is_keras_variable(thing)


def _is_keras_variable(thing: Any) -> bool:
    # Before Keras 3.6 layers make a base class of `keras.Variable`, so isinstance fails.
    return type(thing).__name__ == "Variable" and hasattr(thing, "value") and hasattr(thing, "path")


class _Collector:
    """Collects variables once each, under unique names."""

    def __init__(self) -> None:
        self.variables: list[StateVariable] = []
        self._seen: set[int] = set()
        self._names: dict[str, int] = {}

    def add(self, prefix: str, variables: Iterable[Any], group: str | None = None) -> None:
        """Append variables not seen before; skip strings and handles, which have no raw bytes."""
        for variable in variables:
            holder = variable.value if _is_keras_variable(variable) else variable
            path = getattr(variable, "path", None) or holder.name.removesuffix(":0")
            for index, part in enumerate(_replica_parts(holder)):
                if id(part) in self._seen or not _has_bytes(part):
                    continue
                self._seen.add(id(part))
                name = f"{prefix}/{path}" if index == 0 else f"{prefix}/{path}:{index}"
                self.variables.append(StateVariable(self._unique(name), group or prefix, part))

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self._unique(f"{name}~{count}")


def _replica_parts(holder: Any) -> Sequence[Any]:
    """
    The parts of a variable to save: the variable itself, or every replica's part.

    A mirrored variable is the same in every replica, and one assignment sets all. A variable that
    is synchronised when read (metrics, statistics under a distribution strategy) differs by
    replica. Its sum cannot be split again.
    """
    if (
        isinstance(holder, tf.distribute.DistributedValues)
        and "SyncOnRead" in type(holder).__name__
    ):
        return list(holder.values)
    return [holder]


def _has_bytes(holder: Any) -> bool:
    return holder.dtype not in (tf.string, tf.resource, tf.variant)
