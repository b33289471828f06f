"""
The state of a Keras `fit` in a rescue: captured at a batch boundary, restored in a new fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras import identity, position
from watchdog_app.agent.adapters.keras.backend import (
    TENSORFLOW,
    Backend,
    Kept,
    capture_random,
    restore_random,
)
from watchdog_app.agent.adapters.named import SavedState
from watchdog_app.agent.identity import attributes, environment, keras_facts
from watchdog_app.agent.identity.attributes import Attributes
from watchdog_app.agent.snapshot.change_marker import FitMarker, OnTorch
from watchdog_app.agent.state import matching, own_random, randomness, rows
from watchdog_app.agent.state.keras_model import (
    build_optimizers,
    optimizer_targets,
    optimizers_of,
)
from watchdog_app.agent.state.rows import NamedVariable, Row
from watchdog_app.rescue.checkpoint.format import Capture

KIND = "keras.fit"
_OF_CALLBACKS = "callback_attributes"


class FitState:
    """The state of one running `fit`."""

    def __init__(
        self, model: Any, callbacks: Sequence[Any], progress: position.FitProgress, backend: Backend
    ) -> None:
        self.backend = backend
        self.model = model
        self.callbacks = callbacks
        self.progress = progress
        self.order: Any = None  # our order of the data if Keras's cannot be repeated, or None
        self.logs: dict[str, Any] = {}  # logs of the last batch, as Keras gave them to callbacks
        # What its passes change, at the epoch's start.
        self.training = own_random.DataState(_epoch_source(progress.iterator, backend))
        self.validation = own_random.DataState(position.read_fit_variable("validation_data"))
        self._lost_of_validation = position.unrepeatable_validation(self.validation.source)
        self.used_by_callbacks = callback_state.outside(callbacks)
        self._state_holders = [*callback_state.unknown(callbacks), *self.used_by_callbacks]
        self._kept_before = callback_state.baseline(self._state_holders)
        self.of_callbacks = Attributes(self._state_holders)
        self._random_at_epoch: randomness.State | None = None
        self._extra: list[Any] | None = None
        self._left_over = False
        self._training_metrics: dict[int, Kept] | None = None
        self._random_at_validation: randomness.State | None = None
        # A PyDataset, whose methods may draw numbers, and whether a batch of it was read.
        self._checks_validation = not backend.reads_in_python and hasattr(
            self.validation.source, "on_epoch_end"
        )
        self._validation_is_checked = False
        # Gather the identity now, because callbacks may change learning rates later.
        self.identity = identity.gather(model, progress.iterator, backend.name)
        self._identity = self.identity.to_json()
        self.attributes = Attributes(identity.holders_of(model, progress.iterator))
        # Random operations of the traced step whose state cannot be read; None: unknown.
        self._stateful: list[str] | None = None
        self.lost: list[str] = []  # values that the last capture could not hold, as texts

    def variables(self) -> list[NamedVariable]:
        """All variables that the training has now."""
        if self._extra is None:
            self._extra = self.backend.own_variables(self.model)
        return self.backend.variables(self.model, self._extra)

    def epoch_begins(self, epoch: int) -> None:
        """Record random states at the start of an epoch; call it in `on_epoch_begin`."""
        self.progress.epoch_begins(epoch)
        self._left_over = self._left_over or position.has_leftover_batches(self.progress.iterator)
        if self.order is not None:
            self.order.epoch_begins(epoch)
        iterator = self.progress.iterator
        if position.shuffles_with_python(iterator):
            self.progress.python_random = randomness.random_to_json(random.getstate())
        if position.reads_in_background(iterator, in_python=self.backend.reads_in_python):
            self._random_at_epoch = randomness.capture()
        self.training.capture()
        self.validation.capture()
        # The first batch of a training creates variables (slots, metrics, lazy layers).
        self._extra = None

    def validation_prepared(self) -> None:
        """Record what a resume restores at this moment: it repeats the whole validation."""
        self.progress.epoch_done = True
        self.validation.capture()
        self._random_at_validation = capture_random()
        self._validation_is_checked = False

    def validation_begins(self) -> None:
        """Keep the training's metrics, which the validation will overwrite."""
        self._training_metrics = {
            id(item.holder): self.backend.keep_metric(item)
            for item in self.backend.metrics(self.model)
        }

    def validation_reads(self) -> None:
        """Find out whether reading the data draws numbers; call it once a batch was read."""
        if self._validation_is_checked or not self._checks_validation:
            return
        self._validation_is_checked = True
        own = own_random.capture_all(own_random.find_generators(self.validation.source))
        before, now = self._random_at_validation or {}, randomness.capture()
        if own != self.validation.held["random"] or any(
            before.get(each) != now.get(each) for each in ("python", "numpy")
        ):
            self._lost_of_validation = position.VALIDATION_DRAWS

    def validation_ends(self) -> None:
        """Release the values that were kept."""
        try:
            self.validation_reads()  # it may have one batch only
            if self._checks_validation:
                self.validation.capture()
        finally:
            self._training_metrics = self._random_at_validation = None

    def capture(self) -> Capture:
        """
        Capture the tensors, to read one by one, and the rest as JSON values.

        The key `not_restored` of the JSON values lists texts about what a resume cannot restore.
        """
        held = self.variables()
        states, arrays, lost = callback_state.capture(self.callbacks)
        entries = [rows.entry(item.row, item.nbytes, self._reader(item)) for item in held]
        listed = [item.row for item in held]
        for name, array in arrays.items():
            row = (name, array.dtype.name, array.shape)
            entries.append(rows.entry(row, array.nbytes, partial(np.asarray, array)))
            listed.append(row)
        changing = self._changing(states)
        self.lost = lost = lost + self.not_restored(changing["random"])
        meta = {
            "kind": KIND,
            "backend": self.backend.name,
            "variables": listed,
            "callback_arrays": len(arrays),
            "optimizers": optimizer_targets(self.model),
            "identity": self.attributes.identity(self._identity),
            "settings": keras_facts.recorded_settings(keras_facts.named_optimizers(self.model)),
            **changing,
            "environment": self.backend.environment_record(),
            "not_restored": lost,
        }
        return Capture(entries, meta)

    def changing(self) -> dict[str, Any] | None:
        """The JSON values that change with each batch; None if arrays change as well."""
        if self._training_metrics is not None:
            return None
        states, arrays, lost = callback_state.capture(self.callbacks)
        if arrays:
            return None
        changing = self._changing(states)
        return {**changing, "not_restored": lost + self.not_restored(changing["random"])}

    def _changing(self, callbacks: list[dict[str, Any]]) -> dict[str, Any]:
        random_now = self._random_at_validation or capture_random()
        return {
            "position": self.progress.position(),
            "order_seed": None if self.order is None else self.order.seed,
            "callbacks": callbacks,
            attributes.KEY: self.attributes.changed_values(),
            _OF_CALLBACKS: self.of_callbacks.changed_values(),
            "training_data": self.training.held,
            "validation_data": self.validation.held,
            "validation_begun": self._random_at_validation is not None,
            "logs": dict(_scalar_logs(self.logs)),
            "random": random_now,
            "restore_python_random": not self._drawn_in_background(random_now),
        }

    def marker(self) -> FitMarker:
        """The marker that shows other processes that a step has begun to change the weights."""
        if self.backend.name == TENSORFLOW:
            from watchdog_app.agent.snapshot.tensorflow_marker import OnTensorFlow

            return OnTensorFlow(self)
        return (OnTorch if self.backend.name == "torch" else FitMarker)(self)

    @property
    def compiled(self) -> bool:
        """Whether XLA or a distribution strategy may reorder the operations of a step."""
        strategy = getattr(self.model, "_distribute_strategy", None)
        return strategy is not None or bool(getattr(self.model, "jit_compile", False))

    def optimizers(self) -> list[Any]:
        """The optimizers of the model."""
        return optimizers_of(self.model)

    def not_restored(self, random_now: randomness.State) -> list[str]:
        """The values that a resume from here would not restore, as texts; empty: none."""
        iterator = self.progress.iterator
        lost = []
        if iterator is None:
            lost.append("the place within the epoch: its batches are trained again")
        elif self.order is None:
            order = self.backend.unrepeatable_order_reason(iterator)
            if order is not None:
                lost.append(order)
            order = None if self.progress.passes is None else self.progress.passes.lost()
            if order is not None:
                lost.append(order)
            if self._left_over:
                lost.append(position.LEFTOVER_BATCHES)
        if self._lost_of_validation is not None and self._lost_of_validation not in lost:
            lost.append(self._lost_of_validation)
        if self._drawn_in_background(random_now):
            lost.append(
                "Python's and NumPy's global random numbers, which the data pipeline draws ahead "
                "of the training (give the data set a generator of its own)"
            )
        if self._stateful is None:
            self._stateful = self.backend.stateful_operations(self.model)
        if self._stateful:
            lost.append(
                f"random numbers that the training step draws with {', '.join(self._stateful)} "
                f"({self.backend.stateful_remedy})"
            )
        lost += self.attributes.lost()
        return lost + callback_state.changed_since(
            self._kept_before,
            self._state_holders,
            self.progress.epoch,
            self.of_callbacks.changed_values(),
        )

    def _drawn_in_background(self, random_now: randomness.State) -> bool:
        before = self._random_at_epoch
        if before is None:
            return False
        if before.get("numpy") != random_now.get("numpy"):
            return True
        replayed = position.after_shuffles(self.progress.iterator, before["python"])
        return random_now["python"] not in (before["python"], *replayed)

    def _reader(self, item: NamedVariable) -> Callable[[], np.ndarray[Any, Any]]:
        return (self._training_metrics or {}).get(id(item.holder), item.array)


class SavedFit(SavedState):
    """A rescue of a `fit`, opened to restore a new fit from it."""

    kind = KIND, "a Keras fit"
    rows_key = "variables"

    def __init__(self, path: str, meta: Mapping[str, Any], read: Callable[[str], Any]) -> None:
        super().__init__(path, meta, read)
        of_model = [*self._rows.values()][: len(self._rows) - meta["callback_arrays"]]
        self._variables = [row for row in of_model if not _is_metric(row)]
        self._metrics = [row for row in of_model if _is_metric(row)]

    def build(self, model: Any, state: FitState) -> None:
        """
        Create the variables that Keras creates with the first batch: metrics, slots, lazy layers.

        Draws no data. Variables that cannot be created this way stay missing.
        """
        state.backend.build(model, state.progress.iterator)
        build_optimizers(model, self.meta["optimizers"])

    def differences(self, current: Sequence[NamedVariable]) -> list[str]:
        """Why this rescue does not fit the program, as texts; metrics may differ."""
        return matching.differences(self._variables, _non_metrics(current))

    def only_lacks_variables(self, current: Sequence[NamedVariable]) -> bool:
        """Whether the only difference is that the program lacks variables of the rescue."""
        found = self.differences(current) + matching.differences(self._metrics, _metrics(current))
        return bool(found) and all(text.endswith(rows.RESCUE_ONLY) for text in found)

    def load_variables(self, current: Sequence[NamedVariable]) -> list[str]:
        """Load all variables, one at a time; returns the metrics that start over."""
        matching.load(self._variables, _non_metrics(current), self.read)
        return matching.load_matching(self._metrics, _metrics(current), self.read)

    def merge_settings(self, model: Any, state: FitState) -> tuple[str, ...]:
        """Apply settings that the user edited, after the variables; returns messages about them."""
        optimizers = keras_facts.named_optimizers(model)
        return keras_facts.merge(optimizers, self.meta, state.identity.settings)

    def load_data(self, state: FitState) -> bool:
        """Restore what passes over the data change; False if other generators are there."""
        same = state.validation.restore(self.meta["validation_data"])
        return state.training.restore(self.meta["training_data"]) and same

    def load_validation(self, state: FitState) -> None:
        """Restore what a validation that had begun will draw; call it in `on_test_begin`."""
        if self.meta["validation_begun"]:
            state.validation.restore(self.meta["validation_data"])
            self._load_random()

    def load_callbacks_and_random(self, state: FitState) -> list[str]:
        """Restore callbacks and global random states; returns callbacks that are missing."""
        state.attributes.restore(self.meta.get(attributes.KEY))
        absent = callback_state.restore(state.callbacks, self.meta["callbacks"], self.read)
        self._load_random()
        return absent

    def _load_random(self) -> None:
        restore_random(
            self.meta["random"], python_and_numpy=bool(self.meta["restore_python_random"])
        )

    def load_callback_attributes(self, state: FitState, callbacks: Sequence[Any]) -> None:
        """Restore what those of the fit's callbacks keep that the program defines."""
        saved = self.meta.get(_OF_CALLBACKS, {})
        wanted = {id(each) for each in callbacks}
        labels = [
            label for label, each in callback_state.unknown(state.callbacks) if id(each) in wanted
        ]
        if wanted.issuperset(map(id, state.callbacks)):
            labels += [label for label, _ in state.used_by_callbacks]
        state.of_callbacks.restore({label: saved.get(label) for label in labels})

    def changed(self, state: FitState) -> list[str]:
        """Changes of the environment since the save, as texts."""
        return environment.differences(self.meta["environment"], state.backend.environment_record())

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read one tensor of the rescue."""
        return rows.from_bytes(self._rows[name], self._read_raw(name))


def _epoch_source(iterator: Any, backend: Backend) -> Any:
    """
    The data set that each epoch iterates over again, which may own random generators.

    None if one iterator serves the whole fit, because a resume draws that one from its start. None
    also if Python draws the batches: module `passes` handles that.
    """
    if iterator is None or iterator.steps_per_epoch:
        return None
    name = position.adapter_name(iterator)
    if name == "PyDatasetAdapter":
        return iterator.data_adapter.py_dataset
    if name == "TFDatasetAdapter" and not backend.reads_in_python:
        return iterator.data_adapter.get_tf_dataset()
    return None


def _is_metric(row: Row) -> bool:
    return row[0].startswith(f"{rows.METRIC}/")


def _metrics(current: Sequence[NamedVariable]) -> list[NamedVariable]:
    return [item for item in current if _is_metric(item.row)]


def _non_metrics(current: Sequence[NamedVariable]) -> list[NamedVariable]:
    return [item for item in current if not _is_metric(item.row)]


def _scalar_logs(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The scalar logs as floats: Keras may give callbacks tensors and nested metrics."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _scalar_logs(value)
        elif hasattr(value, "__float__") and getattr(value, "shape", ()) == ():
            yield name, float(value)
