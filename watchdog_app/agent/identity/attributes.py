"""
Plain attributes of the program's own modules, models and data sets that training changes.

`self.calls += 1` in a forward pass and `model.temperature *= 0.97` in a loop change what the
program computes next. No state_dict contains them.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from watchdog_app.agent.identity import code
from watchdog_app.agent.state.values import put_back, without_graph

KEY, HELD = "attributes", "held_attributes"  # in a rescue's metadata: JSON values, and others
Values = dict[str, dict[str, Any]]  # label of an object -> attribute name -> value
_LONGEST_WORD = 64
_MOST_ITEMS, _MOST_FLOATS = 1000, 1 << 17
_DEEPEST = 4  # levels of lists and dictionaries
# attributes of Keras and PyTorch, or attributes that each program sets again
_NOT_OURS = frozenset(
    (
        *("training", "trainable", "built", "compiled", "stop_training", "run_eagerly", "name"),
        *("jit_compile", "steps_per_execution", "autotune", "supports_masking", "dtype"),
        *("supports_jit", "auto_scale_loss", "batch_size", "num_workers"),
    )
)


_FLAGS = frozenset(("track_running_stats",))  # of PyTorch's layers, which fine-tuning switches


class Attributes:
    """Attributes of some objects: their first and their current values."""

    def __init__(
        self,
        objects: Iterable[tuple[str, Any]],
        *,
        begins: bool = True,
        holds: Callable[[Any], bool] = lambda _: False,
        elsewhere: bool = False,
    ) -> None:
        """
        Args:
            objects: pairs of a label for messages and the object.
            begins: whether the training starts now. If not, only attributes count that the
                program's text sets.
            holds: whether the rescue also has a value, see `held_values`.
            elsewhere: whether it has these in another place, so that `held_values` gives none.
        """
        self._holds, self._elsewhere = holds, elsewhere
        self._objects: list[tuple[str, Callable[[], Any], frozenset[str]]] = []
        self._set: dict[str, frozenset[str]] = {}  # by label: those that the program's text sets
        known: dict[type, frozenset[str]] = {}
        for label, thing in objects:
            kind = type(thing)
            if kind not in known:
                names = code.attributes_named(kind) - _NOT_OURS
                names |= frozenset(vars(thing)) if kind is SimpleNamespace else frozenset()
                names = names if begins or not names else names & code.attributes_set(kind)
                known[kind] = names | _FLAGS.intersection(getattr(kind, "__constants__", ()))
            if known[kind]:
                self._objects.append((label, weak_reference(thing), known[kind]))
                self._set[label] = code.attributes_set(kind)
        self._first = self._json_values() if begins else {}
        self._first_items = self._items() if begins else {}

    def changed_values(self) -> Values:
        """The attributes whose values differ from the first values."""
        found: Values = {}
        for label, values in self._json_values().items():
            first = self._first.get(label, {})
            changed = {
                name: value
                for name, value in values.items()
                if name not in first or not _is_same(first[name], value)
            }
            if changed:
                found[label] = changed
        return found

    def held_values(self) -> Values:
        """Copies of the other values that the program's text sets and that `holds` accepts."""
        return {} if self._elsewhere else self._current_values(self._is_held)

    def kept_values(self) -> list[Values]:
        """The current values that `changed_values` may return, and those of `held_values`."""
        return [self._json_values(), self.held_values()]

    def lost(self) -> list[str]:
        """
        Names of attributes that changed but that a resume will not restore.

        These are containers that neither JSON nor `held_values` has.
        """
        first = self._first_items
        return [
            f"{label}.{name}, which training changes (make it a buffer, or name it)"
            for (label, name), items in self._items().items()
            if items and items != first.get((label, name), ())
        ]

    def identity(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Add the names of the changed attributes to an identity in JSON form."""
        moved = {name for values in self.changed_values().values() for name in values}
        return {**found, "moved": sorted(moved)}

    def restore(self, saved: object) -> None:
        """Set such values; skip attributes that this program does not have."""
        told = saved if isinstance(saved, Mapping) else {}
        for label, thing, names in self._held():
            values = told.get(label)
            for name, value in values.items() if isinstance(values, Mapping) else ():
                if name in names and (_is_json_value(value) or self._holds(value)):
                    with suppress(Exception):  # a property of the program may raise
                        setattr(thing, name, put_back(getattr(thing, name, None), value))

    def _held(self) -> Iterator[tuple[str, Any, frozenset[str]]]:
        """Label, object, and names of its attributes, of the objects that still exist."""
        for label, get, names in self._objects:
            if (thing := get()) is not None:
                yield label, thing, names

    def _items(self) -> dict[tuple[str, str], tuple[int, ...] | None]:
        """The ids of the items of each container, or its length; None: it is restored."""
        known = {id(thing) for _, thing, _ in self._held()}

        def is_restored(label: str, name: str, value: Any) -> bool:
            inside = value.values() if isinstance(value, dict) else value
            is_kept = _is_json_value(value) or self._is_held(label, name, value)
            return is_kept or known.issuperset(map(id, inside))

        return {
            (label, name): None
            if value and is_restored(label, name, value)
            else (len(value),)
            if len(value) > _MOST_ITEMS
            else tuple(map(id, value))
            for label, thing, names in self._held()
            for name, value in getattr(thing, "__dict__", {}).items()
            if name in names and not name.startswith("_")
            if type(value) in (list, dict, OrderedDict, set, deque, tuple)
        }

    def _is_held(self, label: str, name: str, value: Any) -> bool:
        is_ours = name in self._set[label] and not _is_json_value(value)
        return is_ours and self._holds(without_graph(value))

    def _json_values(self) -> Values:
        return self._current_values(lambda *found: _is_json_value(found[-1]))

    def _current_values(self, keeps: Callable[[str, str, Any], bool]) -> Values:
        found = {
            label: {
                name: copy.deepcopy(without_graph(value))
                for name, value in getattr(thing, "__dict__", {}).items()
                if name in names and keeps(label, name, value)
            }
            for label, thing, names in self._held()
        }
        return {label: values for label, values in found.items() if values}


def is_many_floats(value: object) -> bool:
    """Whether a value is a list of floats that is too long for `changed_values`."""
    is_long = type(value) is list and _MOST_ITEMS < len(value) <= _MOST_FLOATS
    return is_long and set(map(type, cast(list[object], value))) == {float}


def weak_reference(thing: Any) -> Callable[[], Any]:
    """A weak reference; a strong one if the object does not allow weak references."""
    try:
        return weakref.ref(thing)
    except TypeError:  # lists and some kinds of generators allow no weak references
        return lambda: thing


def _is_json_value(value: object, depth: int = 0) -> bool:
    """Whether a round trip through JSON returns an equal value."""
    kind = type(value)
    if isinstance(value, str):
        return kind is str and len(value) <= _LONGEST_WORD
    if isinstance(value, list | dict):
        if kind not in (list, dict) or len(value) > _MOST_ITEMS or depth == _DEEPEST:
            return False
        items = value.values() if isinstance(value, dict) else value
        keys = value if isinstance(value, dict) else ()
        return all(type(key) is str for key in keys) and all(
            _is_json_value(each, depth + 1) for each in items
        )
    if isinstance(value, float):
        return kind is float and math.isfinite(value)
    return kind is bool or kind is int


def _is_same(first: object, now: object) -> bool:
    return type(first) is type(now) and first == now
