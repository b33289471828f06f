"""
Keras on JAX, where the state is outside the variables during an epoch.

`fit` takes the arrays out of the variables at the start of an epoch and passes them from step to
step. Each step takes over the memory of the one before. `fit` assigns the arrays to the variables
at the epoch's end, or when code calls `jax_state_sync`. A rescue reads the arrays where they are,
and moves nothing.

Source: `JAXTrainer.fit`, `_get_jax_state` and `jax_state_sync`, Keras 3.0 to 3.15.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from watchdog_app.agent.adapters.keras.backend import Backend, one_empty_step
from watchdog_app.agent.adapters.together import Together, from_numbers, to_numbers
from watchdog_app.agent.state.keras_model import metrics_of, variables_of
from watchdog_app.agent.state.rows import NamedVariable

_SPREAD = (
    "Each process of this training holds a part of the model (ModelParallel), which a rescue of "
    "Keras does not support. Use Orbax."
)
# In the order in which Keras assigns them: for a variable in two of them, the last one counts.
_PARTS = ("trainable_variables", "non_trainable_variables", "optimizer_variables")
_METRICS = "metrics_variables"


class _StateArrays:
    """Finds the array of each variable of a model in the state of the step."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._at: dict[int, tuple[str, int]] = {}
        optimizer = getattr(model, "optimizer", None)
        lists = {
            "trainable_variables": model.trainable_variables,
            "non_trainable_variables": model.non_trainable_variables,
            "optimizer_variables": getattr(optimizer, "variables", ()),
            _METRICS: model.metrics_variables,
        }
        for part in (*_PARTS, _METRICS):
            self._at.update((id(each), (part, index)) for index, each in enumerate(lists[part]))

    def value(self, variable: Any) -> Any:
        """The current array of a variable."""
        state = getattr(self._model, "_jax_state", None)
        if state and not self._model._jax_state_synced:
            part, index = self._at.get(id(variable), ("", 0))
            held = state.get(part)
            if held:  # during a validation the state has no optimizer variables
                return held[index]
        return variable.value


@dataclass(frozen=True, slots=True)
class JaxVariable(NamedVariable):
    """One array of the training's state; `holder` is Keras's variable."""

    arrays: _StateArrays

    def array(self) -> np.ndarray[Any, Any]:
        """
        The values: the array's own memory on a CPU, or a copy from a GPU.

        Release it before the next step: JAX cannot reuse memory while a view of it exists.
        """
        return _to_numpy(self.arrays.value(self.holder))

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Set the variable; call it only while Keras has the arrays in the variables."""
        self.holder.assign(value)


class JaxRanks(Together):
    """The agreement of this process with the others of `jax.distributed`."""

    ignores_sigterm = True  # for its preemption service

    def __init__(self) -> None:
        super().__init__(jax.process_index(), jax.process_count())

    def _send(self, value: Any) -> Any:
        from jax.experimental import multihost_utils

        return from_numbers(multihost_utils.broadcast_one_to_all(to_numbers(value)))


class OnJax(Backend):
    """See `Backend`."""

    name = "jax"

    def obstacle(self, model: Any) -> str | None:
        """See `Backend`; the obstacle is a model whose parts are in several processes."""
        arrays = [] if model is None else [each.value for each in model.variables]
        whole = (each.is_fully_addressable or each.is_fully_replicated for each in arrays)
        return None if all(whole) else _SPREAD

    def together(self, model: Any) -> JaxRanks | None:  # noqa: ARG002
        """See `Backend`; the processes of `jax.distributed`."""
        return JaxRanks() if jax.process_count() > 1 else None

    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:  # noqa: ARG002
        """See `Backend`; the variables of Keras."""
        arrays = _StateArrays(model)
        return [JaxVariable(*each, arrays) for each in variables_of(model)]

    def metrics(self, model: Any) -> list[NamedVariable]:
        """The variables of the model's metrics."""
        arrays = _StateArrays(model)
        return [JaxVariable(*each, arrays) for each in metrics_of(model)]

    def environment_record(self) -> dict[str, Any]:
        """See `environment.record`; adds JAX's devices and flags."""
        return {
            **super().environment_record(),
            "jax": jax.__version__,
            "JAX devices": [device.platform for device in jax.devices()],
            "JAX matmul precision": str(jax.config.jax_default_matmul_precision),
            "JAX 64-bit types": bool(jax.config.jax_enable_x64),
        }

    def train_on(self, model: Any, source: Any) -> None:
        """Run a step on the state in the variables, and assign the new state to them."""
        state = model._get_jax_state(
            trainable_variables=True,
            non_trainable_variables=True,
            optimizer_variables=True,
            metrics_variables=True,
        )
        _logs, after = model.train_function(state, source)
        self._set_jax_state(model, after)
        model.jax_state_sync()

    def without_training(
        self, model: Any, callbacks: Any, logs: dict[str, Any]
    ) -> AbstractContextManager[None] | None:
        """See `Backend`; Keras's fit on JAX fails on an epoch without a step."""
        return one_empty_step(model, callbacks, lambda state, _iterator: (dict(logs), state))

    def undo_step(self, model: Any, args: tuple[Any, ...]) -> bool | None:
        """See `Backend`: restore the state unless the step has taken over its memory."""
        state = args[0] if args else None
        if not isinstance(state, tuple) or len(state) != len((*_PARTS, _METRICS)):
            return False
        if any(each.is_deleted() for part in state for each in part):
            return False
        self._set_jax_state(model, state)
        return True

    def _set_jax_state(self, model: Any, state: Any) -> None:
        model._jax_state = dict(zip((*_PARTS, _METRICS), state, strict=True))
        model._jax_state_synced = False


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    # The data of one device is a separate object. NumPy's view keeps only that object alive.
    if getattr(value, "is_fully_replicated", False):
        value = value.addressable_data(0)
    return np.asarray(value)
