"""
Values of a program as JSON and tensors, such that they come back with the types they had.

JSON alone would make text of the numbers that are keys, and lists of tuples and
arrays. What JSON has no word for is written as an object of one tagged key;
arrays are not written out but handed on, for the stream of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

_PLAIN = (bool, int, float, str, type(None))
_ARRAY = "__array__"
_SCALAR = "__scalar__"
_TENSOR = "__tensor__"
_TUPLE = "__tuple__"
_SET = "__set__"
_PAIRS = "__pairs__"
_TAGS = {_ARRAY, _SCALAR, _TENSOR, _TUPLE, _SET, _PAIRS}


def encode(value: Any, name: str, arrays: Arrays, *, tensors_as_arrays: bool = False) -> Any:
    """
    The value in JSON's types.

    Args:
        value: of numbers, strings, None, lists, tuples, sets, dicts, arrays and tensors.
        name: of the value, for the names of its arrays.
        arrays: receives the arrays by name, themselves and not copies.
        tensors_as_arrays: take tensors and variables, and give them back as arrays.

    Raises:
        TypeError: it holds something else.
    """

    def inner(item: Any, place: Any) -> Any:
        return encode(item, f"{name}/{place}", arrays, tensors_as_arrays=tensors_as_arrays)

    kind = type(value)
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
            raise TypeError(f"{name} is a {kind.__name__}, which a rescue cannot hold")
        return {_SCALAR: [value.dtype.name, value.item()]}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return {_ARRAY: _keep(value, name, arrays)}
    if kind is list:
        return [inner(item, index) for index, item in enumerate(value)]
    if kind is tuple:
        return {_TUPLE: [inner(item, index) for index, item in enumerate(value)]}
    if kind in (set, frozenset):
        items = [inner(item, index) for index, item in enumerate(value)]
        return {_SET: [kind is frozenset, items]}
    if kind is dict or (tensors_as_arrays and isinstance(value, Mapping)):
        if all(type(key) is str for key in value) and not _TAGS & set(value):
            return {key: inner(item, key) for key, item in value.items()}
        return {_PAIRS: [[inner(key, "key"), inner(item, key)] for key, item in value.items()]}
    if tensors_as_arrays and hasattr(value, "__array__"):
        return {_ARRAY: _keep(np.asarray(value), name, arrays)}
    if hasattr(value, "numpy"):
        if not hasattr(value, "assign"):
            return {_TENSOR: _keep(np.asarray(value.numpy()), name, arrays)}
        raise TypeError(f"{name} is a variable: give it to Rescue(...) under a name of its own")
    raise TypeError(f"{name} is a {kind.__name__}, which a rescue cannot hold")


def decode(value: Any, read: Callable[[str], np.ndarray[Any, Any]]) -> Any:
    """
    The value that `encode` was given.

    Args:
        value: what `encode` returned, after JSON.
        read: name to array.
    """
    if isinstance(value, list):
        return [decode(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, held),) = value.items()
        if tag == _ARRAY:
            return np.array(read(held))
        if tag == _TENSOR:
            import tensorflow as tf  # the program had a tensor of it

            return tf.constant(read(held))
        if tag == _SCALAR:
            return np.dtype(held[0]).type(held[1])
        if tag == _TUPLE:
            return tuple(decode(item, read) for item in held)
        if tag == _SET:
            items = [decode(item, read) for item in held[1]]
            return frozenset(items) if held[0] else set(items)
        if tag == _PAIRS:
            return {decode(key, read): decode(item, read) for key, item in held}
    return {key: decode(item, read) for key, item in value.items()}


def _keep(array: np.ndarray[Any, Any], name: str, arrays: Arrays) -> str:
    usual = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
    # TensorFlow's own types have no kind of NumPy's.
    if not usual and array.dtype.name not in ("bfloat16", "complex64"):
        raise TypeError(f"{name} is an array of {array.dtype}, which a rescue cannot hold")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    while name in arrays:
        name += "+"
    arrays[name] = array
    return name
