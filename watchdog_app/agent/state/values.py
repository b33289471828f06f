"""
Convert values of a program to JSON and back with their original types.

It uses no pickle: a rescue must be readable after a class has moved, and must not run code when it
is read. Numbers, words and the usual containers go into JSON, with floats that keep every bit.
Other types become an object with one tagged key. A `Leaf` encodes tensors and arrays:
`torch_tensors` those of PyTorch, `encode_arrays` those of NumPy and TensorFlow.
"""

from __future__ import annotations

import base64
import itertools
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

# (value, name) -> the JSON of a framework's value, with a tag of LEAVES; None: another value.
Leaf = Callable[[Any, str], "dict[str, Any] | None"]
Unleaf = Callable[[str, Any], Any]  # (tag, content) -> the value
Arrays = dict[str, np.ndarray[Any, Any]]

TENSOR, ARRAY, TORCH, SIZE = "__tensor__", "__array__", "__torch__", "__size__"
METRIC = "__metric__"
LEAVES = frozenset({TENSOR, ARRAY, TORCH, SIZE, METRIC})
_SCALAR, _FLOAT, _COMPLEX, _BYTES = "__scalar__", "__float__", "__complex__", "__bytes__"
_TUPLE, _SET, _DEQUE = "__tuple__", "__set__", "__deque__"
_NAMED, _OBJECTS, _FLOATS = "__named__", "__objects__", "__floats__"
_PAIRS, _ORDERED, _COUNTER = "__pairs__", "__ordered__", "__counter__"
_DEFAULT = "__default__"
_TAGS = LEAVES | {
    *(_SCALAR, _FLOAT, _COMPLEX, _BYTES, _TUPLE, _SET, _DEQUE, _PAIRS, _ORDERED, _COUNTER),
    *(_NAMED, _OBJECTS, _FLOATS, _DEFAULT),
}
VARIABLES = "variables/"  # before the names of the arrays and tensors in variables of a loop
PLAIN = (bool, int, str, type(None))
_MAPPINGS: dict[Any, str] = {
    dict: _PAIRS,
    OrderedDict: _ORDERED,
    Counter: _COUNTER,
    defaultdict: _PAIRS,
}
_FACTORIES = {each.__name__: each for each in (list, dict, set, tuple, int, float, bool, str)}
_MANY = 1024  # floats of a list whose bytes are faster than their digits
_SPECIAL_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(value: Any, name: str, leaf: Leaf) -> Any:
    """
    The value in JSON's types.

    Args:
        value: numbers, strings, None, bytes, containers, arrays and tensors.
        name: name of the value, for the names of its tensors.
        leaf: encodes the values of the framework.

    Raises:
        TypeError: the value contains something else; the message says where.
    """

    def inner(item: Any, place: Any) -> Any:
        return encode(item, f"{name}/{place}", leaf)

    def each(items: Any) -> list[Any]:
        if _are_plain(items):
            return list(items)
        rows = _plain_rows(items)
        return [inner(item, index) for index, item in enumerate(items)] if rows is None else rows

    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    found = leaf(value, name)
    if found is not None:
        return found
    if isinstance(value, np.generic) and value.dtype.kind in "biufc" and value.dtype.itemsize <= 16:
        native = value.dtype.newbyteorder("=")
        return {_SCALAR: [native.str, _base64_text(value.astype(native).tobytes())]}
    if kind is complex:
        return {_COMPLEX: [inner(value.real, "real"), inner(value.imag, "imag")]}
    if kind in (bytes, bytearray):
        return {_BYTES: _base64_text(value)}
    if kind is list and len(value) >= _MANY and set(map(type, value)) == {float}:
        return {_FLOATS: _base64_text(np.array(value, "<f8").tobytes())}
    if kind is list:
        return each(value)
    if kind is tuple:
        return {_TUPLE: each(value)}
    if kind is np.ndarray and value.dtype.kind == "O":
        return {_OBJECTS: [list(value.shape), each(value.reshape(-1).tolist())]}
    if _named_tuple(kind.__module__, kind.__qualname__) is kind:
        return {_NAMED: [kind.__module__, kind.__qualname__, each(value)]}
    if _is_plain(kind):
        return {_NAMED: [kind.__module__, kind.__name__, each(value), list(kind._fields)]}
    if kind in (set, frozenset):
        return {_SET: [kind is frozenset, each(value)]}
    if kind is deque:
        return {_DEQUE: [value.maxlen, each(value)]}
    if kind is defaultdict and value.default_factory in _FACTORIES.values():
        return {_DEFAULT: [value.default_factory.__name__, encode(dict(value), name, leaf)]}
    if kind in _MAPPINGS:
        named = all(type(key) is str for key in value) and not _TAGS & set(value)
        if named and _MAPPINGS[kind] == _PAIRS:
            return {key: inner(item, key) for key, item in value.items()}
        return {
            _MAPPINGS[kind]: [[inner(key, "key"), inner(item, key)] for key, item in value.items()]
        }
    raise TypeError(f"{name} is a {kind.__name__}, which a rescue cannot hold")


class SavedMetric(tuple[Any, ...]):
    """The arrays of the variables of a Keras metric."""

    def restore(self, metric: Any) -> Any:
        """The program's own metric with these values."""
        for variable, array in zip(metric.variables, self, strict=True):
            variable.assign(array)
        return metric


def put_back(now: Any, saved: Any) -> Any:
    """The saved value; containers and metrics in place, as other objects may hold them."""
    if isinstance(saved, SavedMetric):
        return saved.restore(now)
    if saved is now or not isinstance(saved, list | dict | set | deque):
        return saved
    kind: Any = type(saved)
    if not isinstance(now, kind):
        return saved
    held = saved.copy()
    now.clear()
    if type(held) is dict and getattr(now, "default_factory", None):  # it may make such dicts
        for key, each in held.items():
            now[key] = put_back(now[key], each) if type(each) is dict else each
    else:
        now.extend(held) if isinstance(now, list | deque) else now.update(held)
    return now


def is_metric(value: Any) -> bool:
    """Whether a value is a metric of Keras."""
    return hasattr(type(value), "update_state") and hasattr(value, "variables")


def _named_tuple(module: str, name: str) -> Any:
    """The named tuple of this name in a module that is loaded; None without one."""
    kind = getattr(sys.modules.get(module), name, None)
    is_tuple = isinstance(kind, type) and issubclass(kind, tuple)
    return kind if is_tuple and hasattr(kind, "_fields") else None


@cache
def _is_plain(kind: Any) -> bool:
    """Whether `namedtuple` could make this class again from its fields."""
    fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    return (
        bool(fields) and vars(kind).keys() == vars(namedtuple("Plain", fields, rename=True)).keys()
    )


@cache
def _made_again(module: str, name: str, fields: tuple[str, ...]) -> Any:
    """A named tuple that the program keeps elsewhere than in its module."""
    return namedtuple(name, fields, rename=True, module=module)


def _are_plain(items: Iterable[Any]) -> bool:
    """Whether JSON holds all these items as they are."""
    kinds = set(map(type, items))
    if float in kinds:
        floats = items if len(kinds) == 1 else [each for each in items if type(each) is float]
        if not math.isfinite(sum(floats)):  # of a few large numbers it is not: they take longer
            return False
    return kinds.issubset((*PLAIN, float))


def _plain_rows(items: Iterable[Any]) -> list[Any] | None:
    """The JSON of tuples, lists or dicts of plain values, such as a history; None: not these."""
    kinds, chained = set(map(type, items)), itertools.chain.from_iterable
    if kinds == {dict}:
        if set(map(type, chained(items))) != {str} or not _TAGS.isdisjoint(chained(items)):
            return None
        return (
            list(map(dict, items)) if _are_plain(list(chained(map(dict.values, items)))) else None
        )
    if kinds not in ({tuple}, {list}) or not _are_plain(list(chained(items))):
        return None
    return [{_TUPLE: list(each)} if type(each) is tuple else list(each) for each in items]


def without_graph(value: Any) -> Any:
    """A value whose tensors keep no autograd graph alive."""
    if type(value) is tuple:
        return tuple(map(without_graph, value))
    return value.detach() if getattr(value, "grad_fn", None) is not None else value


def encode_each(
    variables: Mapping[str, Any], encode_one: Callable[[Any, str], Any], lost: list[str]
) -> dict[str, Any]:
    """
    The variables of a loop in JSON's types, see `encode`.

    Args:
        variables: by name.
        encode_one: encodes a value under a name.
        lost: receives a text for each variable that a rescue cannot hold.
    """
    found = {}
    for name, value in variables.items():
        try:
            found[name] = encode_one(value, f"{VARIABLES}{name}")
        except TypeError as error:
            lost.append(str(error))
    return found


def decode(value: Any, unleaf: Unleaf) -> Any:
    """The value that was given to `encode`, from the result of `encode` after JSON."""
    if isinstance(value, list):
        return [decode(item, unleaf) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag in LEAVES:
            return unleaf(tag, content)
        if tag in _TAGS:
            return _decode_tagged(tag, content, unleaf)
    return {key: decode(item, unleaf) for key, item in value.items()}


def encode_arrays(value: Any, name: str, arrays: Arrays, *, tensors_as_arrays: bool = False) -> Any:
    """
    The value of a TensorFlow program in JSON's types, see `encode`.

    Args:
        value: may contain arrays and tensors.
        name: name of the value, for the names of its arrays.
        arrays: receives the arrays by name, without copies.
        tensors_as_arrays: accept tensors and variables; `decode_arrays` returns them as arrays.

    Raises:
        TypeError: the value contains something else.
    """

    def leaf(item: Any, place: str) -> Any:
        if isinstance(item, np.generic) or (
            isinstance(item, np.ndarray) and item.dtype.kind == "O"
        ):
            return None
        if isinstance(item, np.ndarray):
            return {ARRAY: _add_array(item, place, arrays)}
        if is_metric(item):
            held = enumerate(item.variables)
            return {METRIC: [_add_array(np.asarray(v), f"{place}/{n}", arrays) for n, v in held]}
        if tensors_as_arrays and isinstance(item, Mapping):
            return encode(dict(item), place, leaf) if type(item) is not dict else None
        if tensors_as_arrays and hasattr(item, "__array__"):
            return {ARRAY: _add_array(np.asarray(item), place, arrays)}
        if hasattr(item, "numpy"):
            if not hasattr(item, "assign"):
                return {TENSOR: _add_array(np.asarray(item.numpy()), place, arrays)}
            raise TypeError(
                f"{place} is a variable: give it to Rescue(...) under a name of its own"
            )
        return None

    return encode(value, name, leaf)


def decode_arrays(value: Any, read: Callable[[str], np.ndarray[Any, Any]]) -> Any:
    """
    The value that was given to `encode_arrays`.

    Args:
        value: the result of `encode_arrays`, after JSON.
        read: returns the array for a name.
    """

    def unleaf(tag: str, content: Any) -> Any:
        if tag == TENSOR:
            import tensorflow as tf  # loaded already: the value had a TensorFlow tensor

            return tf.constant(read(content))
        if tag == METRIC:
            return SavedMetric(np.array(read(each)) for each in content)
        return np.array(read(content))

    return decode(value, unleaf)


def _decode_tagged(tag: str, content: Any, unleaf: Unleaf) -> Any:
    if tag == _SCALAR:
        return np.frombuffer(base64.b64decode(content[1]), np.dtype(content[0]))[0]
    if tag == _FLOAT:
        return _SPECIAL_FLOATS[content]
    if tag == _BYTES:
        return base64.b64decode(content)
    if tag == _FLOATS:
        return np.frombuffer(base64.b64decode(content), "<f8").tolist()
    if tag == _DEQUE:
        return deque(decode(content[1], unleaf), content[0])
    if tag == _DEFAULT:
        return defaultdict(_FACTORIES[content[0]], decode(content[1], unleaf))
    if tag == _OBJECTS:
        if math.prod(content[0]) != len(content[1]):
            raise ValueError("an array of objects does not have the items of its shape")
        array = np.empty(len(content[1]), object)
        for index, item in enumerate(content[1]):
            array[index] = decode(item, unleaf)
        return array.reshape(content[0])
    if tag == _NAMED:
        module, name, _, *fields = content
        kind = _named_tuple(module, name)
        if fields:
            kind = _made_again(module, name, tuple(*fields))
        if kind is None:
            raise ValueError(f"the program has no named tuple {content[1]}, as the rescue does")
        return tuple.__new__(kind, decode(content[2], unleaf))
    if tag == _SET:
        items = decode(content[1], unleaf)
        return frozenset(items) if content[0] else set(items)
    items = decode(content, unleaf)
    if tag == _COMPLEX:
        return complex(*items)
    if tag == _TUPLE:
        return tuple(items)
    if tag == _COUNTER:
        return Counter(dict(items))
    return OrderedDict(items) if tag == _ORDERED else dict(items)


def _base64_text(raw: bytes | bytearray) -> str:
    return base64.b64encode(raw).decode("ascii")


def _add_array(array: np.ndarray[Any, Any], name: str, arrays: Arrays) -> str:
    usual = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
    # TensorFlow's own types have no NumPy kind.
    if not usual and array.dtype.name not in ("bfloat16", "complex64"):
        raise TypeError(f"{name} is an array of {array.dtype}, which a rescue cannot hold")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    while name in arrays:
        name += "+"
    arrays[name] = array
    return name
