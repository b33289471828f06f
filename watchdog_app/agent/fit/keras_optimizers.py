"""The optimizers of a Keras model: which there are, what they train, their slots in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from watchdog_app.agent.fit.keras_kinds import is_a

_OPTIMIZERS = ("Optimizer", "OptimizerV2")  # the second: `tf_keras.optimizers.legacy`


def optimizers_of(model: Any) -> list[Any]:
    """The compiled optimizer first, then others that the model holds (as a GAN does)."""
    found: list[Any] = []
    compiled = getattr(model, "optimizer", None)
    if is_a(compiled, *_OPTIMIZERS):
        found.append(compiled)
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            for candidate in _members(value):
                if is_a(candidate, *_OPTIMIZERS) and not any(candidate is known for known in found):
                    found.append(candidate)
    return found


def optimizer_targets(model: Any) -> list[list[int] | None]:
    """
    For each optimizer, the positions in `model.variables` of what it trains.

    None for an optimizer that has not seen its variables yet. Recorded with a
    rescue: a fresh process needs it to make the slots before it can fill them.
    """
    known = model.variables
    return [targets_of(optimizer, known) for optimizer in optimizers_of(model)]


def targets_of(optimizer: Any, known: Sequence[Any]) -> list[int] | None:
    """The positions in `known` of what an optimizer trains; None when it was not built for them."""
    trained = getattr(optimizer, "_trainable_variables", None)
    # Those of Keras 2 are made by its own part of the agent.
    if not getattr(optimizer, "built", False) or trained is None:
        return None
    position = {id(variable): index for index, variable in enumerate(known)}
    found = [position[id(item)] for item in trained if id(item) in position]
    return found if len(found) == len(trained) else None


def build_optimizers(model: Any, targets: Sequence[Sequence[int] | None]) -> None:
    """Make the slots of optimizers that have none yet, for the variables they trained."""
    variables = model.variables
    for optimizer, indices in zip(optimizers_of(model), targets, strict=False):
        if indices is None or optimizer.built:
            continue
        if max(indices, default=-1) < len(variables):
            optimizer.build([variables[index] for index in indices])


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value
