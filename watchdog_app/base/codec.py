"""Convert records to JSON values and back, by the annotations of their fields."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

NOT_KEPT = {"kept": False}  # metadata of a field that `encode` leaves out
_SEQUENCES: dict[Any, Any] = {tuple: tuple, list: list, set: set, frozenset: frozenset}


def encode(value: Any) -> Any:
    """
    Convert a value to JSON values: records to objects, mappings to lists of pairs.

    Infinite numbers become strings, because JSON has no infinite numbers. Fields with `NOT_KEPT`
    are left out.

    Raises:
        TypeError: a part is not a record, number, string, mapping or sequence.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: encode(getattr(value, each.name)) for each in _kept(type(value))}
    if isinstance(value, Mapping):
        return [[encode(key), encode(each)] for key, each in value.items()]
    if isinstance(value, tuple | list | set | frozenset):
        return [encode(each) for each in value]
    raise TypeError(f"a {type(value).__name__} cannot be kept")


def decode(kind: Any, value: Any) -> Any:
    """
    Convert the result of `encode` back.

    Args:
        kind: annotation of the value. A missing field gets its default; unknown keys are ignored.
        value: result of `encode`, directly or through JSON. A mapping may also be an object.

    Raises:
        ValueError: the value does not fit `kind`; the message names the field.
    """
    try:
        return _decode(kind, value)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise ValueError(f"not what was written down: {error}") from error


def objects(holder: Any, key: str) -> list[dict[str, Any]]:
    """
    The JSON objects in a list of a JSON object.

    Args:
        holder: the object with the list; any other value gives an empty list.
        key: key of the list; items that are not objects are left out.
    """
    found = holder.get(key) if isinstance(holder, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (each for each in arguments if each is not type(None))
        return _decode(kind, value)
    if origin in _SEQUENCES:
        return _sequence(origin, arguments, value)
    if origin is not None and issubclass(origin, Mapping):
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        return dict(_sequence(list, (types.GenericAlias(tuple, arguments),), pairs))
    if is_dataclass(kind):
        return _record(kind, value)
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{value!r:.100} is no {kind.__name__}")
    return value


def _sequence(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r:.100} is no list")
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return tuple(_decode(kind, each) for kind, each in zip(arguments, value, strict=True))
    return _SEQUENCES[origin](_decode(arguments[0], each) for each in value)


def _record(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    hints, found = _hints(kind), {}
    for each in _kept(kind):
        if each.name in value:
            try:
                found[each.name] = _decode(hints[each.name], value[each.name])
            except (ValueError, TypeError, LookupError, OverflowError) as error:
                raise ValueError(f"{kind.__name__}.{each.name}: {error}") from error
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{kind.__name__}.{each.name} is missing")
    return kind(**found)


_hints = functools.cache(get_type_hints)


@functools.cache
def _kept(kind: Any) -> tuple[Field[Any], ...]:
    return tuple(each for each in fields(kind) if each.metadata.get("kept", True))
