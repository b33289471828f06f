"""
Markers for Keras fits: which tensors a step changes, and when it begins to change them.

On TensorFlow the step increments a counter in memory before it applies gradients. On PyTorch the
optimizer is Python code, so a wrapper sees that it begins. On JAX the step takes over the state and
draws its data itself, so our code cannot see when it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from watchdog_app.agent.snapshot.change_marker import ChangeMarker, KerasTraining
from watchdog_app.agent.state.rows import split_variables


class FitMarker(ChangeMarker):
    """For a training whose step does not show that it begins (JAX, Keras 2): never published."""

    is_supported = False

    def __init__(self, training: KerasTraining) -> None:
        self._training = training
        self._names: set[str] = set()

    def update(self, step: int) -> None:  # noqa: ARG002
        """See `ChangeMarker`: collect the names of tensors that only optimizers change."""
        trained = [
            each
            for optimizer in self._training.optimizers()
            for each in getattr(optimizer, "_trainable_variables", None) or ()
        ]
        _, changed = split_variables(self._training.variables(), trained)
        self._names = {item.name for item in changed}

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """See `ChangeMarker`."""
        return name in self._names


class OnTorch(FitMarker):
    """For Keras on PyTorch, where Python code calls the optimizers in each step."""

    is_supported = True

    def __init__(self, training: KerasTraining) -> None:
        super().__init__(training)
        self._wrapped: list[tuple[Any, Any]] = []

    def begin(self, step_begins: Callable[[], None]) -> None:
        """See `ChangeMarker`."""
        for optimizer in self._training.optimizers():
            apply = optimizer.apply

            def observed(*args: Any, _apply: Any = apply, **others: Any) -> Any:
                step_begins()
                return _apply(*args, **others)

            optimizer.apply = observed
            self._wrapped.append((optimizer, observed))

    def end(self) -> None:
        """See `ChangeMarker`."""
        for optimizer, observed in self._wrapped:
            if vars(optimizer).get("apply") is observed:
                del optimizer.apply
        self._wrapped = []
