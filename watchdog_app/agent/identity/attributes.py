"""
Plain attributes of the program's own modules, models and data sets that training changes.

`self.calls += 1` in a forward pass and `model.temperature *= 0.97` in a loop decide what is
computed next, and no state_dict holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from watchdog_app.agent.identity import code

KEY = "attributes"  # of a rescue's description
Values = dict[str, dict[str, Any]]  # label of an object: name: value
_LONGEST_WORD = 64
# Of Keras and PyTorch, or set anew by each program.
_NOT_OURS = frozenset(
    (
        *("training", "trainable", "built", "compiled", "stop_training", "run_eagerly", "name"),
        *("jit_compile", "steps_per_execution", "autotune", "supports_masking", "dtype"),
        *("supports_jit", "auto_scale_loss", "batch_size", "num_workers"),
    )
)


class Attributes:
    """Of some objects, as they were at first and as they are now."""

    def __init__(self, objects: Iterable[tuple[str, Any]], *, begins: bool = True) -> None:
        """
        Args:
            objects: what a person calls them, and they themselves.
            begins: the training does; else those count that the program's text sets.
        """
        self._objects: list[tuple[str, Any, frozenset[str]]] = []
        known: dict[type, frozenset[str]] = {}
        for label, thing in objects:
            kind = type(thing)
            if kind not in known:
                names = code.attributes_named(kind) - _NOT_OURS
                known[kind] = names if begins or not names else names & code.attributes_set(kind)
            if known[kind]:
                self._objects.append((label, thing, known[kind]))
        self._first = self._take() if begins else {}

    def moved(self) -> Values:
        """Those that are not as they were at first."""
        found: Values = {}
        for label, values in self._take().items():
            first = self._first.get(label, {})
            changed = {
                name: value
                for name, value in values.items()
                if name not in first or not _same(first[name], value)
            }
            if changed:
                found[label] = changed
        return found

    def identity(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """An identity as JSON that says which of them have moved."""
        moved = {name for values in self.moved().values() for name in values}
        return {**found, "moved": sorted(moved)}

    def put(self, saved: object) -> None:
        """Set them to what `moved` gave; what this program does not have is left out."""
        told = saved if isinstance(saved, Mapping) else {}
        for label, thing, names in self._objects:
            values = told.get(label)
            for name, value in values.items() if isinstance(values, Mapping) else ():
                if name in names and _is_taken(value):
                    with suppress(Exception):  # a property of the program's own
                        setattr(thing, name, value)

    def _take(self) -> Values:
        return {
            label: {
                name: value
                for name, value in getattr(thing, "__dict__", {}).items()
                if name in names and _is_taken(value)
            }
            for label, thing, names in self._objects
        }


def _is_taken(value: object) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _LONGEST_WORD  # type: ignore[arg-type]
    return kind is bool or kind is int or (kind is float and math.isfinite(value))  # type: ignore[arg-type]


def _same(first: object, now: object) -> bool:
    return type(first) is type(now) and first == now
