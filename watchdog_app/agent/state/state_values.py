"""
Values that a TensorFlow program keeps besides its variables, as JSON and arrays; see `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from watchdog_app.agent.state import values

Arrays = dict[str, np.ndarray[Any, Any]]


def encode(value: Any, name: str, arrays: Arrays, *, tensors_as_arrays: bool = False) -> Any:
    """
    The value in JSON's types, see `values.encode`.

    Args:
        value: may contain arrays and tensors.
        name: name of the value, for the names of its arrays.
        arrays: receives the arrays by name, without copies.
        tensors_as_arrays: accept tensors and variables; `decode` returns them as arrays.

    Raises:
        TypeError: the value contains something else.
    """

    def leaf(item: Any, place: str) -> Any:
        if isinstance(item, np.generic):
            return None
        if isinstance(item, np.ndarray):
            return {values.ARRAY: _add_array(item, place, arrays)}
        if tensors_as_arrays and isinstance(item, Mapping):
            return values.encode(dict(item), place, leaf) if type(item) is not dict else None
        if tensors_as_arrays and hasattr(item, "__array__"):
            return {values.ARRAY: _add_array(np.asarray(item), place, arrays)}
        if hasattr(item, "numpy"):
            if not hasattr(item, "assign"):
                return {values.TENSOR: _add_array(np.asarray(item.numpy()), place, arrays)}
            raise TypeError(
                f"{place} is a variable: give it to Rescue(...) under a name of its own"
            )
        return None

    return values.encode(value, name, leaf)


def decode(value: Any, read: Callable[[str], np.ndarray[Any, Any]]) -> Any:
    """
    The value that was given to `encode`.

    Args:
        value: the result of `encode`, after JSON.
        read: returns the array for a name.
    """

    def unleaf(tag: str, content: Any) -> Any:
        if tag == values.TENSOR:
            import tensorflow as tf  # loaded already: the value had a TensorFlow tensor

            return tf.constant(read(content))
        return np.array(read(content))

    return values.decode(value, unleaf)


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
