"""
What differs between the backends of Keras 3, behind one face.

Everything else of a `fit` that a rescue holds is the same on all of them. A
backend's framework is imported by its own module alone, when Keras runs on it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.identity import environment
from watchdog_app.agent.state import randomness
from watchdog_app.agent.state.rows import NamedVariable

Kept = Callable[[], np.ndarray[Any, Any]]

TENSORFLOW = "tensorflow"
UNKNOWN = "This Keras runs on a backend that a rescue knows nothing of."
_KERAS_SEED = "keras_seed"
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end")


class Backend(ABC):
    """One framework under Keras."""

    name: str  # as `keras.backend.backend()` says it
    data_ended: tuple[type[BaseException], ...] = (StopIteration,)
    # A tf.data iterator of TensorFlow's is drawn from by the training step, in the graph.
    reads_in_python = True
    # The next batch is drawn before `on_train_batch_begin`: a place between two batches is behind
    # the hooks of the one, not before those of the other.
    draws_before_hooks = False
    stateful_remedy = "draw them with keras.random and a SeedGenerator"
    replay: Any = position.Replay  # how a fresh fit gets to a place in its data

    def obstacle(self) -> str | None:
        """Why this training cannot be saved at all, in words; None when it can."""
        return None

    def own_variables(self, model: Any) -> list[Any]:  # noqa: ARG002
        """The framework's own variables that hang on the model beside Keras's."""
        return []

    @abstractmethod
    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:
        """Every variable of a model, in an order that its program repeats."""

    @abstractmethod
    def metrics(self, model: Any) -> list[NamedVariable]:
        """Those of its metrics alone."""

    def keep_metric(self, item: NamedVariable) -> Kept:
        """A function that returns the values a metric has now, also after they changed."""
        value = item.array().copy()
        return lambda: value

    def environment_record(self) -> dict[str, Any]:
        """See `environment.record`."""
        return environment.record()

    def build(self, model: Any, iterator: Any) -> None:  # noqa: B027 - most have no need of it
        """
        Make the variables that come with the first batch, without drawing data.

        Fits on PyTorch and JAX make them before `on_train_begin`.
        """

    def repeatable_order(self, iterator: Any, model: Any) -> Any:  # noqa: ARG002
        """An order of ours where Keras's own could not be repeated; None where it can."""
        return None

    def unrepeatable_order_reason(self, iterator: Any) -> str | None:
        """What makes the order of this data impossible to repeat, if anything does."""
        if self.reads_in_python and position.adapter_name(iterator) == "TorchDataLoaderAdapter":
            from watchdog_app.agent.adapters.torch_data import (
                PERSISTENT,  # the program has PyTorch then
            )

            loader = iterator.data_adapter._dataloader
            return PERSISTENT if loader.num_workers and loader.persistent_workers else None
        return position.unrepeatable_order(iterator)

    def stateful_operations(self, model: Any) -> list[str]:  # noqa: ARG002
        """Random operations of the training step whose state nobody can read, by name."""
        return []

    @abstractmethod
    def train_on(self, model: Any, source: Any) -> None:
        """One training step on what the iterator of a pass gives next."""

    def without_training(
        self,
        model: Any,  # noqa: ARG002
        callbacks: Any,  # noqa: ARG002
        logs: dict[str, Any],  # noqa: ARG002
    ) -> AbstractContextManager[None] | None:
        """
        Within it Keras's step trains nothing; None where an epoch may do without any step.

        Args:
            model: that is fitted.
            callbacks: the CallbackList, which is not to hear of the step.
            logs: what the step gives.
        """
        return None

    def record(self, model: Any) -> Any:  # noqa: ARG002
        """An `oom.record.Record` of what a step may change; None where there is none."""
        return None

    def undo_step(self, model: Any, args: tuple[Any, ...]) -> bool | None:  # noqa: ARG002
        """
        Put the state back that a failed step was given; None where only a record can tell it.

        Args:
            model: that is fitted.
            args: of the step.

        Returns:
            Whether the weights are those before the step.
        """
        return None

    def micro_batch_obstacle(self, model: Any) -> str | None:  # noqa: ARG002
        """Why a batch cannot be trained in parts, in words; None where it can."""
        return f"it works with Keras on TensorFlow, and this is {self.name}"

    def parts(self, model: Any, micro: Any) -> Any:
        """The `oom.micro_keras.Parts` of a model, where `micro_batch_obstacle` returns None."""
        raise NotImplementedError


@contextmanager
def one_empty_step(model: Any, callbacks: Any, step: Callable[..., Any]) -> Iterator[None]:
    """
    Replace the model's training step with `step`, and call no batch hooks of callbacks.

    For a resume of an epoch whose batches are all trained, where Keras fails without any.
    """
    trains = model.train_function
    before = {} if callbacks is None else {h: vars(callbacks).get(h) for h in _BATCH_HOOKS}

    def ignore(*_: Any, **__: Any) -> None:
        return None

    model.train_function = step
    for hook in before:
        vars(callbacks)[hook] = ignore
    try:
        yield
    finally:
        model.train_function = trains
        for hook, own in before.items():
            if own is None:
                vars(callbacks).pop(hook, None)
            else:  # what `background_hooks` has put there
                vars(callbacks)[hook] = own


def capture_random() -> randomness.State:
    """Python's, NumPy's, TensorFlow's, PyTorch's and Keras's global random numbers, as JSON."""
    state = randomness.capture()
    seeds = _keras_seeds()
    if seeds is not None:
        numbers = sys.modules["keras"].ops.convert_to_numpy(seeds.value)
        state[_KERAS_SEED] = [int(word) for word in numbers]
    return state


def restore_random(state: randomness.State, *, python_and_numpy: bool) -> None:
    """Set what `capture_random` returned, of the frameworks that are loaded here too."""
    randomness.restore(state, python_and_numpy=python_and_numpy)
    if _KERAS_SEED in state:
        seeds = _keras_seeds(make=True)
        if seeds is not None:
            seeds.assign(np.array(state[_KERAS_SEED], dtype=seeds.dtype))


def _keras_seeds(*, make: bool = False) -> Any:
    """The variable of the seed generator that Keras's random functions use when given none."""
    module = sys.modules.get("keras.src.random.seed_generator")
    states = sys.modules.get("keras.src.backend.common.global_state")
    name = getattr(module, "GLOBAL_SEED_GENERATOR", None)
    if states is None or name is None:
        return None
    found = states.get_global_attribute(name)
    if found is None and make and module is not None:
        found = module.global_seed_generator()
    return None if found is None else found.state
