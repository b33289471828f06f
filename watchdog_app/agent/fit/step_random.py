"""
Random operations inside a compiled training step whose counters nobody can read.

`tf.random.normal` or `tf.nn.dropout` in a step of the user's own keep their
state in TensorFlow's kernels. They are found in the step's graph, so that a
rescue can name them. Keras's layers draw from seed generators, which are
variables and are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_STATEFUL = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)


def stateful_operations(train_function: Callable[..., Any] | None) -> list[str]:
    """
    Names of such operations in a traced training function, sorted; empty when there are none.

    Also empty where the function cannot be looked into (run eagerly, not traced yet).
    Source: `TensorFlowTrainer._make_function` closes over its tf.functions, Keras 3.
    """
    seen: set[int] = set()
    found = {
        operation
        for concrete in _concrete_functions(train_function)
        for operation in _operations(concrete.graph, seen)
        if operation in _STATEFUL
    }
    return sorted(found)


def is_traced(train_function: Callable[..., Any] | None) -> bool:
    """Whether a training function has been run before."""
    return any(True for _ in _concrete_functions(train_function))


def _concrete_functions(function: Any) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        inner = cell.cell_contents
        listing = getattr(inner, "_list_all_concrete_functions", None)
        if listing is not None:
            yield from listing()
        elif getattr(inner, "__closure__", None):
            yield from _concrete_functions(inner)


def _operations(graph: Any, seen: set[int]) -> Iterator[str]:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    for operation in graph.get_operations():
        yield operation.type
    for nested in getattr(graph, "_functions", {}).values():
        inner = getattr(nested, "graph", None)
        if inner is not None:
            yield from _operations(inner, seen)
