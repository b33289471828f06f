"""Keras on TensorFlow: its variables, its own order of shuffled arrays, its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.agent.fit import shuffling, step_random
from watchdog_app.agent.fit.keras_backend import TENSORFLOW, Backend, Kept
from watchdog_app.agent.loops import variables
from watchdog_app.agent.state.rows import Holding


class OnTensorFlow(Backend):
    """See `Backend`."""

    name = TENSORFLOW
    data_ended = (StopIteration, tf.errors.OutOfRangeError)
    reads_in_python = False

    def own_variables(self, model: Any) -> list[Any]:
        """Plain `tf.Variable`s."""
        return variables.plain_variables(model)

    def variables(self, model: Any, extra: Iterable[Any]) -> list[Holding]:
        """See `variables.of_model`."""
        return [*variables.of_model(model, extra)]

    def metrics(self, model: Any) -> list[Holding]:
        """See `variables.metrics_of`."""
        return [*variables.metrics_of(model)]

    def keep(self, item: Holding) -> Kept:
        """
        Free of cost: a reference.

        TensorFlow gives a variable a new buffer when it is written while one is held.
        """
        value = item.holder.read_value()
        return lambda: np.asarray(value._numpy())

    def build(self, model: Any, iterator: Any) -> None:
        """What a model does not let be made this way stays missing."""
        spec = getattr(getattr(iterator, "_distributed_dataset", None), "element_spec", None)
        if spec is not None and model._distribute_strategy is None:
            try:
                model._symbolic_build(data_batch=spec)
            except Exception:  # noqa: S110 - a model with a step of its own is built by that step
                pass

    def own_order(self, iterator: Any, model: Any) -> shuffling.EpochOrder | None:
        """See `shuffling`."""
        return shuffling.make_repeatable(iterator, model)

    def lost_order(self, iterator: Any) -> str | None:
        """Arrays that are shuffled without a seed are drawn by the machine's entropy."""
        return shuffling.unrepeatable(iterator) or super().lost_order(iterator)

    def stateful_operations(self, model: Any) -> list[str]:
        """See `step_random`."""
        return step_random.stateful_operations(model.train_function)

    def train_on(self, model: Any, source: Any) -> None:
        """The step draws from the iterator itself."""
        model.train_function(source)
