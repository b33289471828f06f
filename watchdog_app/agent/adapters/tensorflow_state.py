"""
Capture and restore the state of a TensorFlow training loop: the objects that the user names.

It supports:

- Keras models, layers, optimizers, metrics and variables;
- objects that TensorFlow tracks (tf.Module, tf.Variable, tf.random.Generator, tf.train.Checkpoint);
- NumPy arrays, and random generators of NumPy and Python;
- dicts and lists of plain values;
- objects with state_dict and load_state_dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.adapters.named import NamedState, SavedState
from watchdog_app.agent.adapters.passes import Passes
from watchdog_app.agent.identity import environment, keras_facts, tensorflow_facts
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.snapshot.change_marker import ChangeMarker, NoMarker
from watchdog_app.agent.state import keras_model, matching, own_random, values, variables
from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER, Row, entry, from_bytes
from watchdog_app.agent.state.variables import StateVariable
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.format import Capture

KIND = "loop"

_WITH_VARIABLES = (
    keras.Layer,
    keras.optimizers.Optimizer,
    keras.metrics.Metric,
)
_ACCEPTED = (
    "an object of Keras or TensorFlow with variables, a NumPy array, a random generator, a dict or "
    "list, or an object with state_dict() and load_state_dict()"
)

_ACCEPTED_HINT = (
    "Dicts and lists may hold numbers, strings, None, arrays, tensors, tuples, sets, dicts and "
    "lists."
)


class LoopState(NamedState):
    """The state of the named objects of one loop."""

    def __init__(
        self,
        objects: Mapping[str, Any],
        position: Callable[[], dict[str, Any]],
        passes: Passes,
        *,
        begins: bool = True,
    ) -> None:
        """
        Args:
            objects: the objects by the user's names.
            position: gives the position of the loop, as JSON.
            passes: passes over its data; they know what a resume cannot restore.
            begins: whether the training begins now; if not, its settings may have changed already.

        Raises:
            TypeError: the state of an object cannot be captured.
        """
        self._variables: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._others: dict[str, Any] = {}
        for name, thing in objects.items():
            self._register(name, thing)
        super().__init__(
            objects,
            passes,
            tensorflow_facts.gather(objects, begins=begins),
            Attributes(tensorflow_facts.holders_of(objects), begins=begins),
        )
        self._position = position
        self._initial_names = {item.name for item in self.variables()}
        self._begins = begins

    def variables(self) -> list[StateVariable]:
        """All variables that the objects have now."""
        return variables.object_variables(self._variables)

    def capture(self) -> Capture:
        """Capture everything, as tensors to read one by one and as JSON."""
        held = self.variables()
        if any(each.group == MODEL and each.name not in self._initial_names for each in held):
            self._describe(begins=False)  # a step has built layers
        entries = [entry(item.row, item.nbytes, item.array) for item in held]
        rows = [item.row for item in held]
        arrays = {f"{name}/": array for name, array in self._arrays.items()}
        others = {name: _capture_value(name, thing, arrays) for name, thing in self._others.items()}
        lost: list[str] = []
        position = self._position()
        encode = partial(values.encode_arrays, arrays=arrays)
        position["variables"] = values.encode_each(position["variables"], encode, lost)
        for name, array in arrays.items():
            row = (name, array.dtype.name, array.shape)
            entries.append(entry(row, array.nbytes, partial(np.asarray, array)))
            rows.append(row)
        optimizers = tensorflow_facts.optimizers_of(self._objects)
        counters = self._late_counters()
        late = [
            item.name
            for item in held
            if item.name not in self._initial_names and item.group != OPTIMIZER
            if item.name not in counters
        ]
        self.lost = [*lost, *(f"{name}, made after Rescue(...) was" for name in late)]
        if not self._begins:  # Keras makes the variables of compiled metrics at the first batch
            late += [
                item.name
                for item in held
                if item.group == METRIC
                and isinstance(self._variables[item.name.partition("/")[0]], keras.Model)
            ]
        meta = {
            **self._common_meta(),
            "kind": KIND,
            "position": position,
            "variables": rows,
            "arrays": len(arrays),
            "late": late,
            "settings": keras_facts.recorded_settings(optimizers),
            "optimizers": {name: self._targets(thing) for name, thing in optimizers.items()},
            "layers": {name: keras_model.build_configs(each) for name, each in self._layers()},
            "others": others,
            "environment": environment.record(),
        }
        return Capture(entries, meta)

    def marker(self) -> ChangeMarker:
        """See `LoopState`; a counter in the steps, as in a Keras fit, may change last digits."""
        return NoMarker()

    def build(self, saved: SavedLoop) -> None:
        """Create the variables that a rescue has and the program makes later."""
        for name in self._late_counters():
            if saved.row(name) is not None:
                self._variables[name.partition("/")[0]].save_counter  # noqa: B018 - makes it
        told = saved.meta.get("layers", {})
        for name, thing in self._layers():
            keras_model.build_layers(thing, told.get(name, ()), keras)
        if self._initial_names != {item.name for item in self.variables()}:
            self._describe(begins=True)
        trained = self._model_variables()
        for name, thing in tensorflow_facts.optimizers_of(self._objects).items():
            indices = saved.meta["optimizers"].get(name)
            if not thing.built and indices and max(indices) < len(trained):
                wanted = [trained[index] for index in indices]
                strategy = getattr(wanted[0].value, "distribute_strategy", None)
                with nullcontext() if strategy is None else strategy.scope():
                    thing.build(wanted)

    def check(self, saved: SavedLoop) -> None:
        """
        Compare names, shapes and types with those of the rescue.

        Raises:
            RescueMismatch: they differ; no value was changed.
        """
        current = self.variables()
        found = matching.differences(saved.rows({item.name for item in current}), current)
        names = set(saved.meta["others"])
        found += [f"{name} is in the rescue only" for name in sorted(names - set(self._others))]
        found += [f"{name} is in the program only" for name in sorted(set(self._others) - names)]
        for name, array in self._arrays.items():
            row = saved.row(f"{name}/")
            if row is None or row[1:] != (array.dtype.name, array.shape):
                found.append(f"the array {name} has another type or shape in the rescue")
        if found:
            raise matching.mismatch(saved.path, found)

    def restore(self, saved: SavedLoop) -> None:
        """
        Set everything to the values in the rescue.

        Raises:
            RescueMismatch: the rescue does not fit; no value was changed.
        """
        self.check(saved)
        current = self.variables()
        rows = saved.rows({item.name for item in current})
        matching.load(rows, current, saved.read)
        for name, array in self._arrays.items():
            array[...] = saved.read(f"{name}/")
        for name, thing in self._others.items():
            _restore_value(thing, saved.meta["others"][name], saved.read)
        self._restore_common(saved)

    def merge_settings(self, saved: SavedLoop) -> tuple[str, ...]:
        """Apply settings that the user edited, after `restore`; returns messages about them."""
        optimizers = tensorflow_facts.optimizers_of(self._objects)
        return keras_facts.merge(optimizers, saved.meta, self.identity.settings)

    def _describe(self, *, begins: bool) -> None:
        """Gather again what the objects compute, after layers were built."""
        found = tensorflow_facts.gather(self._objects, begins=begins)
        self.identity = found if begins else replace(found, settings=self.identity.settings)
        self._identity = self.identity.to_json()
        self._initial_names = {item.name for item in self.variables()}

    def _register(self, name: str, thing: Any) -> None:
        if isinstance(thing, tf.data.Iterator):
            raise TypeError(
                f"{name} is an iterator over data, whose state would hold the batches that it "
                "reads ahead. Iterate with `for batch in rescue.data(dataset)` instead."
            )
        if isinstance(thing, np.ndarray):
            self._arrays[name] = thing
        elif (
            isinstance(thing, _WITH_VARIABLES)
            or variables.is_variable(thing)
            or hasattr(thing, "_trackable_children")
        ):
            self._variables[name] = thing
        elif _is_supported(thing):
            self._others[name] = thing
            try:
                _capture_value(name, thing, {})  # fail now rather than when memory runs out
            except RescueError as error:
                why = error.__cause__
                raise TypeError(
                    f"the state of {name} cannot be saved: {why}. {_ACCEPTED_HINT}"
                ) from why
        else:
            raise TypeError(
                f"{name} is of type {type(thing).__name__}, whose state cannot be taken. "
                f"Give {_ACCEPTED}. A single number can live in a tf.Variable or a dict."
            )

    def _late_counters(self) -> list[str]:
        """The names of variables that a tf.train.Checkpoint makes at its first save."""
        held = self._variables.items()
        return [
            f"{name}/save_counter" for name, each in held if isinstance(each, tf.train.Checkpoint)
        ]

    def _layers(self) -> list[tuple[str, Any]]:
        return [one for one in self._variables.items() if isinstance(one[1], keras.Layer)]

    def _model_variables(self) -> list[Any]:
        return [
            variable
            for thing in self._variables.values()
            for variable in (
                thing.variables
                if isinstance(thing, keras.Layer)
                else [thing] * variables.is_variable(thing)
            )
        ]

    def _targets(self, optimizer: Any) -> list[int] | None:
        return keras_model.targets_of(optimizer, self._model_variables())


class SavedLoop(SavedState):
    """A rescue of a TensorFlow loop."""

    kind = KIND, "a TensorFlow training loop"
    rows_key = "variables"

    def rows(self, present: set[str]) -> list[Row]:
        """The saved variables, without late ones that this program has not made yet."""
        late = set(self.meta["late"])
        saved = list(self._rows.values())
        of_variables = saved[: len(saved) - self.meta["arrays"]]
        return [row for row in of_variables if row[0] not in late or row[0] in present]

    def row(self, name: str) -> Row | None:
        """Name, type and shape of one tensor; None if the rescue has no tensor of that name."""
        return self._rows.get(name)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read one tensor."""
        return from_bytes(self._rows[name], self._read_raw(name))

    def variables(self) -> dict[str, Any]:
        """The variables of the loop, by keyword of `step`."""
        found: dict[str, Any] = values.decode_arrays(self.position.get("variables", {}), self.read)
        return found


def _is_supported(thing: Any) -> bool:
    return (
        own_random.is_generator(thing)
        or isinstance(thing, (dict, list))
        or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"))
    )


def _capture_value(name: str, thing: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The state of an object as JSON; adds its arrays to `arrays`."""
    try:
        if own_random.is_generator(thing):
            return own_random.capture(thing)
        if isinstance(thing, (dict, list)):
            known = dict(thing) if isinstance(thing, dict) else list(thing)
            return values.encode_arrays(known, name, arrays)
        return values.encode_arrays(thing.state_dict(), name, arrays, tensors_as_arrays=True)
    except Exception as error:
        raise RescueError(f"{name} cannot be saved: {error}. Nothing was saved.") from error


def _restore_value(thing: Any, state: Any, read: Callable[[str], np.ndarray[Any, Any]]) -> None:
    if own_random.is_generator(thing):
        own_random.restore(thing, state)
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(values.decode_arrays(state, read))
    elif isinstance(thing, list):
        thing[:] = values.decode_arrays(state, read)
    else:
        thing.load_state_dict(values.decode_arrays(state, read))
