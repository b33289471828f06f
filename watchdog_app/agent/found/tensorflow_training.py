"""
The objects of a TensorFlow training in a user's own loop without a Rescue.

They are the models, layers, optimizers, metrics, variables and random generators that have a name
in the frames that lead to the optimizer's step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from watchdog_app.agent.adapters.keras.on_tensorflow import random_draws
from watchdog_app.agent.adapters.tensorflow_state import LoopState
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found import tensorflow_passes
from watchdog_app.agent.found.tensorflow_passes import WatchedPasses
from watchdog_app.agent.found.training import FoundTraining
from watchdog_app.agent.identity import names, source_loops
from watchdog_app.agent.identity.attributes import weak_reference
from watchdog_app.agent.identity.names import Found, Named
from watchdog_app.agent.runtime.link import registered_links
from watchdog_app.agent.snapshot.change_marker import ChangeMarker, NoMarker
from watchdog_app.agent.state import own_random, values, variables

_KINDS = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
    tf.Module,
    tf.train.Checkpoint,
)


class FoundTensorFlow(FoundTraining):
    """A TensorFlow training of one thread."""

    framework = "tensorflow"
    kind = "TensorFlow training"
    how_to_name = (
        "Name it: rescue = Rescue(folder, model=..., optimizer=...) of "
        "watchdog_app.agent.tensorflow, and rescue.step() after each step."
    )
    passes: WatchedPasses

    def __init__(self, guard: Guard) -> None:
        super().__init__(guard, tensorflow_passes.start_training())
        self.functions: set[weakref.ref[Any]] = set()  # the tf.functions in which it steps
        self._random_operations: list[str] | None = (
            None  # what these functions draw, as a text; None: unknown
        )

    def pass_ended(self) -> None:
        """Record random states at the end of a pass; the next one may draw its order from them."""
        if self.session is not None:
            self.passes.random_at_end = self._make_state(self._live_objects()).capture_random()
            self.session.reset_step_timer()

    def _find_objects(self, frame: FrameType | None) -> list[Named]:
        taken: set[str] = set()
        return [
            Named(names.keyword(one.name, taken), one.expression, weak_reference(one.thing))
            for one in find_objects(self.optimizers(), frame)
        ]

    def _has_unnamed(self) -> bool:
        objects = {each.name: thing for each in self._names if (thing := each.get()) is not None}
        return not _trained_variables(self.optimizers()) <= _variables_in(objects)

    def _has_own_rescue(self) -> bool:
        return bool(registered_links(self.framework))

    def _make_state(self, objects: Mapping[str, Any]) -> LoopState:
        return LoopState(objects, self._position, self.passes, begins=False)

    def _not_restored(self) -> list[str]:
        if self._random_operations is None:
            self._random_operations = random_draws([each() for each in self.functions])
        return [*super()._not_restored(), *self._random_operations]

    def _tensor_bytes(self, value: Any) -> int:
        arrays: values.Arrays = {}
        values.encode_arrays(value, "", arrays)
        return sum(each.nbytes for each in arrays.values())

    def _make_marker(self) -> ChangeMarker:
        return NoMarker()


def find_objects(optimizers: Iterable[Any], frame: FrameType | None) -> list[Found]:
    """The objects whose state makes up the training of these optimizers."""
    chosen = {id(each) for each in optimizers}

    def wanted(thing: Any) -> bool:
        if isinstance(thing, keras.optimizers.Optimizer):
            inner = getattr(thing, "inner_optimizer", None)
            return id(thing) in chosen or (inner is not None and id(inner) in chosen)
        if isinstance(thing, keras.Model):
            return bool(thing.built)
        return (
            isinstance(thing, _KINDS)
            or variables.is_variable(thing)
            or (own_random.is_generator(thing) and not own_random.is_global(thing))
        )

    standing = source_loops.program_places(frame)
    found = names.search(frame, wanted, source_loops.assigned_names(standing))
    sizes = {one.name: len(_variables_of(one)) for one in found}
    # Put a model before its parts, such as an autoencoder before its encoder.
    layers = [one for one in found if isinstance(one.thing, keras.Layer)]
    layers.sort(key=lambda one: -sizes[one.name])
    others = [one for one in found if not isinstance(one.thing, keras.Layer)]
    others.sort(key=lambda one: isinstance(one.thing, tf.train.Checkpoint))
    seen: set[int] = set()
    needed = []
    for one in (*layers, *others):
        ids = _variables_of(one)
        keeps_more = isinstance(one.thing, tf.train.Checkpoint)  # its first save makes a counter
        if keeps_more or not ids <= seen or (not ids and own_random.is_generator(one.thing)):
            seen |= ids
            needed.append(one)
    return needed


def _variables_of(one: Found) -> set[int]:
    return _variables_in({one.name: one.thing})


def _variables_in(objects: Mapping[str, Any]) -> set[int]:
    """The ids of the variables of objects."""
    return {id(each.holder) for each in variables.object_variables(objects)}


def _trained_variables(optimizers: Iterable[Any]) -> set[int]:
    """The ids of the variables that optimizers train."""
    return _variables_in(
        {
            f"{number}.{index}": variable
            for number, each in enumerate(optimizers)
            for index, variable in enumerate(getattr(each, "_trainable_variables", ()))
        }
    )
