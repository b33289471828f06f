"""
All of a Keras `fit` that a rescue holds: taken at a batch boundary, given back in a fresh fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from watchdog_app.agent import (
    callback_state,
    environment,
    matching,
    own_random,
    position,
    program,
    randomness,
    shuffling,
    step_random,
    variables,
)
from watchdog_app.agent.session import Capture
from watchdog_app.agent.variables import Row, StateVariable

Read = Callable[[str], Any]  # name of a tensor in the rescue to its raw bytes
KIND = "keras.fit"


class FitState:
    """The state of one running `fit`."""

    def __init__(self, model: Any, callbacks: Sequence[Any], course: position.Course) -> None:
        self.model = model
        self.callbacks = callbacks
        self.course = course
        self.order: shuffling.EpochOrder | None = None  # where Keras's own cannot be repeated
        self.logs: dict[str, Any] = {}  # of the last batch, as Keras gave them to the callbacks
        self._sources = _sources(course.iterator)
        self._sketch = own_random.sketch(self._sources)
        self._own_orders: own_random.Orders = {}
        self._own_random: own_random.States | None = None  # of the data, as the epoch began
        self._callbacks_before = callback_state.baseline(callbacks)
        self._random_at_epoch: randomness.State | None = None
        self._extra: list[Any] | None = None
        self._training_metrics: dict[int, Any] | None = None
        self._optimizer = _configured(model)
        self.program = program.record(model)  # now: callbacks may change rates as they go
        self._stateful: list[str] | None = None  # operations of the step, once it is traced
        self.lost: list[str] = []  # what the last capture could not take, in words

    def variables(self) -> list[StateVariable]:
        """Every variable of the training, as they are now."""
        if self._extra is None:
            self._extra = variables.plain_variables(self.model)
        return variables.of_model(self.model, self._extra)

    def epoch_begins(self, epoch: int) -> None:
        """Call in `on_epoch_begin`."""
        self.course.epoch_begins(epoch)
        if self.order is not None:
            self.order.epoch_begins(epoch)
        iterator = self.course.iterator
        if position.shuffles_with_python(iterator):
            self.course.python_random = randomness.take_python()
        if position.reads_in_background(iterator):
            self._random_at_epoch = randomness.take()
        if self._sources is not None:
            self._own_random = own_random.take(own_random.find(self._sources)) or None
            if self._own_random:
                self._own_orders = own_random.changed_orders(self._sources, self._sketch)
        # The first batch of a training makes variables (slots, metrics, lazy layers).
        self._extra = None

    def validation_begins(self) -> None:
        """
        Keep the training's metrics, which validation is about to overwrite.

        The references cost nothing: TensorFlow gives a variable a new buffer when it is written
        while one is held.
        """
        self.course.epoch_done = True
        self._training_metrics = {
            id(item.holder): item.holder.read_value() for item in variables.metrics_of(self.model)
        }

    def validation_ends(self) -> None:
        """Let go of what `validation_begins` kept."""
        self._training_metrics = None

    def capture(self) -> Capture:
        """
        The tensors, to be read one by one, and the rest as JSON values.

        `not_restored` in the latter lists in words what a resume cannot bring back.
        """
        held = self.variables()
        states, arrays, lost = callback_state.take(self.callbacks)
        entries = [variables.entry(item.row, item.nbytes, self._reader(item)) for item in held]
        rows = [item.row for item in held]
        for name, array in arrays.items():
            row = (name, array.dtype.name, array.shape)
            entries.append(variables.entry(row, array.nbytes, partial(np.asarray, array)))
            rows.append(row)
        random_now = randomness.take()
        self.lost = lost = lost + self.not_restored(random_now)
        meta = {
            "kind": KIND,
            "position": self.course.position(),
            "order_seed": None if self.order is None else self.order.seed,
            "variables": rows,
            "callback_arrays": len(arrays),
            "optimizers": variables.optimizer_targets(self.model),
            "optimizer": self._optimizer,
            "program": self.program,
            "callbacks": states,
            "random": random_now,
            "own_random": self._own_random,
            "own_orders": self._own_orders,
            "restore_python_random": not self._drawn_in_background(random_now),
            "logs": {name: float(value) for name, value in self.logs.items() if _number(value)},
            "environment": environment.record(),
            "not_restored": lost,
        }
        return Capture(entries, meta)

    def not_restored(self, random_now: randomness.State) -> list[str]:
        """What a resume from here would start anew, in words; empty when nothing."""
        iterator = self.course.iterator
        lost = []
        if iterator is None:
            lost.append(
                "the place within the epoch: its batches are trained again (this works with "
                "Keras 3.8 and later)"
            )
        elif self.order is None:
            order = position.unrepeatable_order(iterator)
            if order is not None:
                lost.append(order)
        if self._drawn_in_background(random_now):
            lost.append(
                "Python's and NumPy's global random numbers, which the data pipeline draws ahead "
                "of the training (give the data set a generator of its own)"
            )
        if self._stateful is None:
            self._stateful = step_random.stateful_operations(self.model.train_function)
        if self._stateful:
            lost.append(
                f"random numbers that the training step draws with {', '.join(self._stateful)} "
                "(draw them with keras.random and a SeedGenerator)"
            )
        return lost + callback_state.changed_since(
            self._callbacks_before, self.callbacks, self.course.epoch
        )

    def _drawn_in_background(self, random_now: randomness.State) -> bool:
        before = self._random_at_epoch
        if before is None:
            return False
        if before.get("numpy") != random_now.get("numpy"):
            return True
        # Keras itself shuffles a PyDataset with Python's generator, which is replayed.
        shuffled = position.shuffles_with_python(self.course.iterator)
        return not shuffled and before["python"] != random_now["python"]

    def _reader(self, item: StateVariable) -> Callable[[], np.ndarray[Any, Any]]:
        kept = (self._training_metrics or {}).get(id(item.holder))
        if kept is None:
            return item.array
        return lambda: np.asarray(kept._numpy())


class SavedFit:
    """A rescue of a `fit`, to be given back to a fresh one."""

    def __init__(self, path: str, meta: Mapping[str, Any], read: Read) -> None:
        self.path = path
        self.meta = meta
        self.position: dict[str, Any] = meta["position"]
        rows = [(name, dtype, tuple(shape)) for name, dtype, shape in meta["variables"]]
        self._rows: dict[str, Row] = {row[0]: row for row in rows}
        self._variables = rows[: len(rows) - meta["callback_arrays"]]
        self._read_raw = read

    def differences(self, current: Sequence[StateVariable]) -> list[str]:
        """What keeps this rescue from fitting the program, in words."""
        return matching.differences(self._variables, current)

    def only_missing(self, current: Sequence[StateVariable]) -> bool:
        """The program lacks variables of the rescue, and differs in nothing else."""
        found = self.differences(current)
        return all(text.endswith(matching.RESCUE_ONLY) for text in found)

    def load_variables(self, current: Sequence[StateVariable]) -> None:
        """Set all variables, one at a time."""
        matching.load(self._variables, current, self.read)

    def load_own_random(self, state: FitState) -> bool:
        """Set the data's own generators as the epoch began; False: they are others now."""
        before = self.meta.get("own_random")
        if not before or state._sources is None:
            return not before
        own_random.put_orders(state._sources, self.meta["own_orders"])
        return own_random.put(own_random.find(state._sources), before)

    def load_rest(self, callbacks: Sequence[Any]) -> list[str]:
        """Give callbacks and global random numbers back; returns callbacks that are not there."""
        absent = callback_state.put(callbacks, self.meta["callbacks"], self.read)
        randomness.put(
            self.meta["random"], python_and_numpy=bool(self.meta["restore_python_random"])
        )
        return absent

    def changed(self, model: Any) -> list[str]:
        """Circumstances that are not as they were, in words."""
        changed = environment.differences(self.meta["environment"], environment.record())
        before, now = self.meta["optimizer"], _configured(model)
        for key in before:
            if key in now and before[key] != now[key]:
                # A schedule is no variable, so there is nothing to be given back.
                goes_on = "the program's" if str(now[key]).startswith("{") else "the saved value"
                changed.append(
                    f"the optimizer's {key} was {before[key]}, is {now[key]} in the program: "
                    f"{goes_on} goes on"
                )
        return changed

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """One tensor of the rescue."""
        return variables.from_bytes(self._rows[name], self._read_raw(name))


def _sources(iterator: Any) -> Any:
    """
    What is iterated over anew in each epoch, for the generators that it draws from.

    None where one iterator lasts for the whole fit: that one draws its past again.
    """
    if iterator is None or iterator.steps_per_epoch:
        return None
    name = position.adapter_name(iterator)
    if name == "PyDatasetAdapter":
        return iterator.data_adapter.py_dataset
    return iterator.data_adapter.get_tf_dataset() if name == "TFDatasetAdapter" else None


def build(model: Any, saved: SavedFit, iterator: Any) -> None:
    """
    Make the variables that Keras makes with the first batch: metrics, slots, lazy layers.

    Draws no data. What a model does not let be made this way stays missing.
    """
    spec = getattr(getattr(iterator, "_distributed_dataset", None), "element_spec", None)
    if spec is not None and model._distribute_strategy is None:
        try:
            model._symbolic_build(data_batch=spec)
        except Exception:  # noqa: S110 - a model with a step of its own is built by that step
            pass
    variables.build_optimizers(model, saved.meta["optimizers"])


def _configured(model: Any) -> dict[str, Any]:
    """The optimizer as the program set it up: what a user changes and then wonders about."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return {}
    config = optimizer.get_config()
    return {
        "name": type(optimizer).__name__,
        "learning_rate": _said(config.get("learning_rate")),
    }


def _said(value: Any) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic))
