"""
The interface to the backends of Keras.

The other parts of a rescue of a `fit` are the same on all backends. Only the module of a backend
imports its framework, and only if Keras runs on it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.adapters.together import Together
from watchdog_app.agent.identity import environment
from watchdog_app.agent.state import randomness
from watchdog_app.agent.state.rows import NamedVariable
from watchdog_app.agent.wrapping import Wrapped

Kept = Callable[[], np.ndarray[Any, Any]]

TENSORFLOW = "tensorflow"
UNKNOWN = "This Keras runs on a backend that a rescue knows nothing of."
_KERAS_SEED = "keras_seed"
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class Backend(ABC):
    """The framework on which Keras runs."""

    name: str  # the value of `keras.backend.backend()`
    data_ended: tuple[type[BaseException], ...] = (StopIteration,)
    # False: the training step draws from a tf.data iterator in TensorFlow's graph.
    reads_in_python = True
    # Whether Keras draws the next batch before `on_train_batch_begin`. Then the position between
    # two batches is after the end hooks of one batch, not before the begin hooks of the next.
    draws_before_hooks = False
    stateful_remedy = "draw them with keras.random and a SeedGenerator"
    replay: Any = position.Replay  # the class that brings a new fit to a position in its data

    def obstacle(self, model: Any) -> str | None:  # noqa: ARG002
        """
        Why this training cannot be saved at all, as a text; None if it can.

        Args:
            model: that is trained; None: not known yet.
        """
        return None

    def together(self, model: Any) -> Together | None:  # noqa: ARG002
        """The agreement of the processes of this training; None: it has one process."""
        return None

    def own_variables(self, model: Any) -> list[Any]:  # noqa: ARG002
        """The framework's own variables in the model, which Keras does not list."""
        return []

    @abstractmethod
    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:
        """All variables of a model, in an order that a new run of the program repeats."""

    @abstractmethod
    def metrics(self, model: Any) -> list[NamedVariable]:
        """The variables of the model's metrics."""

    def keep_metric(self, item: NamedVariable) -> Kept:
        """A function that returns the current values of a metric, also after they change."""
        value = item.array().copy()
        return lambda: value

    def environment_record(self) -> dict[str, Any]:
        """See `environment.record`."""
        return environment.record()

    def position_obstacle(self, iterator: Any, position: dict[str, Any]) -> str | None:  # noqa: ARG002
        """Why this fit's data cannot be brought to a saved position; None: nothing known."""
        return None

    def build(self, model: Any, iterator: Any) -> None:  # noqa: B027 - most do not need it
        """
        Create the variables of the first batch without drawing data.

        Fits on PyTorch and JAX create them before `on_train_begin`.
        """

    def repeatable_order(self, iterator: Any, model: Any) -> Any:  # noqa: ARG002
        """Our order of the data if Keras's order cannot be repeated; None if it can."""
        return None

    def unrepeatable_order_reason(self, iterator: Any) -> str | None:
        """Why the order of this data cannot be repeated, as a text; None if it can."""
        if self.reads_in_python and position.adapter_name(iterator) == "TorchDataLoaderAdapter":
            from watchdog_app.agent.adapters.torch_data import (
                PERSISTENT,  # with a DataLoader the program has PyTorch
            )

            loader = iterator.data_adapter._dataloader
            return PERSISTENT if loader.num_workers and loader.persistent_workers else None
        return position.unrepeatable_order(iterator)

    def stateful_operations(self, model: Any) -> list[str]:  # noqa: ARG002
        """Names of random operations of the training step whose state cannot be read."""
        return []

    @abstractmethod
    def train_on(self, model: Any, source: Any) -> None:
        """Run a training step on the next batch of a pass's iterator."""

    def without_training(
        self,
        model: Any,  # noqa: ARG002
        callbacks: Any,  # noqa: ARG002
        logs: dict[str, Any],  # noqa: ARG002
    ) -> AbstractContextManager[None] | None:
        """
        A context in which Keras's step trains nothing; None if an epoch needs no step.

        Args:
            model: the model of the fit.
            callbacks: the CallbackList, whose batch hooks are not called for the step.
            logs: the logs that the step returns.
        """
        return None

    def record(self, model: Any) -> Any:  # noqa: ARG002
        """The `oom.record.Record` of the values that a step may change; None if unsupported."""
        return None

    def undo_step(self, model: Any, args: tuple[Any, ...]) -> bool | None:  # noqa: ARG002
        """
        Restore the state that a failed step got as an argument.

        Args:
            model: the model of the fit.
            args: arguments of the step.

        Returns:
            Whether the weights are those before the step. None if the arguments do not hold the
            state, so that only a record can restore it.
        """
        return None

    def micro_batch_obstacle(self, model: Any) -> str | None:  # noqa: ARG002
        """Why a batch cannot be trained in parts, as a text; None if it can."""
        return f"it works with Keras on TensorFlow, and this is {self.name}"

    def parts(self, model: Any, micro: Any) -> Any:
        """The `oom.micro_keras.Parts` of a model for which `micro_batch_obstacle` returns None."""
        raise NotImplementedError


@contextmanager
def one_empty_step(model: Any, callbacks: Any, step: Callable[..., Any]) -> Iterator[None]:
    """
    Replace the model's training step with `step`, and call no batch hooks of callbacks.

    Use it to resume an epoch whose batches are all trained, because Keras fails on an epoch without
    a step.
    """
    trains = model.train_function
    hooks = Wrapped()

    def ignore(*_: Any, **__: Any) -> None:
        return None

    model.train_function = step
    for hook in _BATCH_HOOKS if callbacks is not None else ():
        hooks.wrap(callbacks, hook, lambda _: ignore)
    try:
        yield
    finally:
        model.train_function = trains
        hooks.unwrap()


def capture_random() -> randomness.State:
    """Global random states of Python, NumPy, TensorFlow, PyTorch and Keras, as JSON."""
    state = randomness.capture()
    seeds = _keras_seeds()
    if seeds is not None:
        numbers = sys.modules["keras"].ops.convert_to_numpy(seeds.value)
        state[_KERAS_SEED] = [int(word) for word in numbers]
    return state


def restore_random(state: randomness.State, *, python_and_numpy: bool) -> None:
    """Restore the states of `capture_random` for the frameworks that this process has loaded."""
    randomness.restore(state, python_and_numpy=python_and_numpy)
    if _KERAS_SEED in state:
        seeds = _keras_seeds(make=True)
        if seeds is not None:
            seeds.assign(np.array(state[_KERAS_SEED], dtype=seeds.dtype))


def _keras_seeds(*, make: bool = False) -> Any:
    """The state variable of Keras's global seed generator; None if it does not exist."""
    module = sys.modules.get("keras.src.random.seed_generator")
    states = sys.modules.get("keras.src.backend.common.global_state")
    if states is None or module is None:
        return None
    found = states.get_global_attribute("global_seed_generator")
    if found is None and make:
        found = module.global_seed_generator()
    return None if found is None else found.state
