"""
The parts of a Keras model: classes of objects, named variables, optimizers.

This module imports neither `keras` nor `tf_keras`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any

from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER

PACKAGES = ("keras", "tf_keras")
_OPTIMIZERS = ("Optimizer", "OptimizerV2")  # OptimizerV2 is of `tf_keras.optimizers.legacy`

Named = tuple[str, Any]
Grouped = tuple[str, str, Any]  # unique name, group, Keras's variable


def is_keras_instance(thing: Any, *names: str) -> bool:
    """Whether an object is an instance of a Keras class of these names, e.g. "EarlyStopping"."""
    return any(
        kind.__name__ in names for kind in type(thing).__mro__ if is_keras_module(kind.__module__)
    )


def is_keras_module(module: object, packages: Iterable[str] = PACKAGES) -> bool:
    """Whether a module of this name is part of Keras."""
    return str(module).partition(".")[0] in packages


def variables_of(model: Any) -> list[Grouped]:
    """All variables of a model and its optimizers, without duplicates, in a stable order."""
    return list(_named_once(_all_variables(model)))


def metrics_of(model: Any) -> list[Grouped]:
    """The variables of a model's metrics."""
    return list(_named_once((METRIC, each) for each in model.metrics_variables))


def _all_variables(model: Any) -> Iterator[tuple[str, Any]]:
    yield from ((MODEL, each) for each in model.variables)
    yield from ((METRIC, each) for each in model.metrics_variables)
    for optimizer in optimizers_of(model):
        yield from ((OPTIMIZER, each) for each in optimizer.variables)


def _named_once(variables: Iterable[tuple[str, Any]]) -> Iterator[Grouped]:
    seen: set[int] = set()
    names: dict[str, int] = {}
    for group, variable in variables:
        if id(variable) in seen or variable.dtype == "string":
            continue
        seen.add(id(variable))
        name = f"{group}/{variable.path}"
        count = names.get(name, 0)
        names[name] = count + 1
        yield (name if count == 0 else f"{name}~{count}"), group, variable


def optimizers_of(model: Any) -> list[Any]:
    """The compiled optimizer, then others in attributes of the model (as in a GAN)."""
    found: list[Any] = []
    compiled = getattr(model, "optimizer", None)
    if is_keras_instance(compiled, *_OPTIMIZERS):
        found.append(compiled)
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            found += [each for each in _members(value) if is_keras_instance(each, *_OPTIMIZERS)]
    return list({id(each): each for each in found}.values())


def optimizer_targets(model: Any) -> list[list[int] | None]:
    """
    For each optimizer, the positions in `model.variables` of the variables that it trains.

    None for an optimizer that has not been built yet. A rescue holds the positions, because a new
    process must create the slots before it can fill them.
    """
    known = model.variables
    return [targets_of(optimizer, known) for optimizer in optimizers_of(model)]


def targets_of(optimizer: Any, known: Sequence[Any]) -> list[int] | None:
    """The positions in `known` of the variables that an optimizer trains; None: unknown."""
    trained = getattr(optimizer, "_trainable_variables", None)
    # Module `keras2` creates the slots of Keras 2.
    if not getattr(optimizer, "built", False) or trained is None:
        return None
    position = {id(variable): index for index, variable in enumerate(known)}
    found = [position[id(item)] for item in trained if id(item) in position]
    return found if len(found) == len(trained) else None


def build_optimizers(model: Any, targets: Sequence[Sequence[int] | None]) -> None:
    """Create the slots of optimizers that have none, for the variables that they trained."""
    variables = model.variables
    for optimizer, indices in zip(optimizers_of(model), targets, strict=False):
        if indices is None or optimizer.built:
            continue
        if max(indices, default=-1) < len(variables):
            optimizer.build([variables[index] for index in indices])


def build_configs(layer: Any) -> list[Any]:
    """How each layer in a layer was built, in order: its path and its configuration, as JSON."""
    found = []
    for each in layer._flatten_layers():
        told = None
        with suppress(Exception):  # a method of the program may raise, or return no JSON
            told = json.loads(json.dumps([each.path, each.get_build_config()]))
        found.append(told if each.built else None)
    return found


def build_layers(layer: Any, saved: Sequence[Any], keras: Any) -> None:
    """
    Build each layer in a layer as it was built before; what cannot be built stays without.

    Args:
        layer: a layer or model of Keras 3; a layer may make further ones when it is built.
        saved: what `build_configs` returned.
        keras: the module.
    """
    for index, told in enumerate(saved):
        each: Any = next(islice(layer._flatten_layers(), index, None), None)
        is_built = told is None or each is None or each.built
        if is_built or type(each).build is keras.Layer.build:
            continue
        with suppress(Exception), ExitStack() as scopes:
            for name in str(told[0]).split("/")[:-1]:
                scopes.enter_context(keras.name_scope(name))
            each.build_from_config(_with_tuples(told[1]))


def _with_tuples(config: Any) -> Any:
    """A configuration of shapes, which were tuples before they became JSON."""
    if isinstance(config, dict):
        return {name: _with_tuples(each) for name, each in config.items()}
    return tuple(map(_with_tuples, config)) if isinstance(config, list) else config


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    else:
        yield value
