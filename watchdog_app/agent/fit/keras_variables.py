"""A Keras model's variables under names, where every variable of the training is one of Keras's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from watchdog_app.agent.fit.keras_optimizers import optimizers_of
from watchdog_app.agent.state.rows import METRIC, MODEL, OPTIMIZER

Named = tuple[str, Any]
Grouped = tuple[str, str, Any]  # unique name, group, Keras's variable


def of_model(model: Any) -> list[Grouped]:
    """Weights, statistics, seeds, metrics and every optimizer's, once each, in a steady order."""
    return list(_once(_all(model)))


def of_metrics(model: Any) -> list[Grouped]:
    """Those of a model's metrics."""
    return list(_once((METRIC, each) for each in model.metrics_variables))


def _all(model: Any) -> Iterator[tuple[str, Any]]:
    yield from ((MODEL, each) for each in model.variables)
    yield from ((METRIC, each) for each in model.metrics_variables)
    for optimizer in optimizers_of(model):
        yield from ((OPTIMIZER, each) for each in optimizer.variables)


def _once(variables: Iterable[tuple[str, Any]]) -> Iterator[Grouped]:
    seen: set[int] = set()
    names: dict[str, int] = {}
    for group, variable in variables:
        if id(variable) in seen or variable._dtype == "string":
            continue
        seen.add(id(variable))
        name = f"{group}/{variable.path}"
        count = names.get(name, 0)
        names[name] = count + 1
        yield (name if count == 0 else f"{name}~{count}"), group, variable
