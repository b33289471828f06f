"""
The description of a variable in a rescue, for every framework: name, element type, shape.

This module imports no framework.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from watchdog_app.rescue.checkpoint import format
from watchdog_app.rescue.checkpoint.format import TensorEntry

MODEL = "model"
METRIC = "metric"
OPTIMIZER = "optimizer"
OTHER = "other"

RESCUE_ONLY = "is in the rescue only"

Row = format.Row  # its element type is NumPy's name


@dataclass(frozen=True, slots=True)
class NamedVariable(ABC):
    """One tensor of a training's state; each framework has its own subclass."""

    name: str  # unique within a list, e.g. "model/dense/kernel"
    group: str  # MODEL, METRIC, OPTIMIZER or OTHER
    holder: Any  # the variable of the framework or of Keras

    @property
    def row(self) -> Row:
        """The row of the variable in a rescue, which a resume compares."""
        return self.name, str(self.holder.dtype), tuple(self.holder.shape)

    @property
    def nbytes(self) -> int:
        """Size of the raw elements."""
        _name, dtype, shape = self.row
        return math.prod(shape) * int(numpy_type(dtype).itemsize)

    @abstractmethod
    def array(self) -> np.ndarray[Any, Any]:
        """The current elements; no copy if they are in this machine's memory."""

    @abstractmethod
    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Set the elements."""


def format_row(row: Row) -> str:
    """ "float32 (3, 4)"."""
    _name, dtype, shape = row
    return f"{dtype} ({', '.join(str(size) for size in shape)})"


def row_differences(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[str]:
    """
    A phrase for each tensor that a rescue and a program do not share.

    Args:
        before: the rows of the rescue, by keys that are the same in the program.
        after: the rows of the program.
    """
    found = []
    for key, row in before.items():
        saved = format_row(row)
        if key not in after:
            found.append(f"{row[0]} {saved} {RESCUE_ONLY}")
        elif (now := format_row(after[key])) != saved:
            found.append(f"{after[key][0]} is {now} in the program, {saved} in the rescue")
    for key, row in after.items():
        if key not in before:
            found.append(f"{row[0]} {format_row(row)} is in the program only")
    return found


def split_variables(
    variables: Iterable[NamedVariable], trained: Iterable[Any]
) -> tuple[list[NamedVariable], list[NamedVariable]]:
    """
    Split variables into the small ones and those that only an optimizer writes to.

    Args:
        variables: all variables of a training.
        trained: the variables that gradients are applied to, of the framework or of Keras.
    """
    weights = {id(part) for each in trained for part in (each, getattr(each, "value", each))}
    small, written = list[NamedVariable](), list[NamedVariable]()
    for item in variables:
        slot = item.group == OPTIMIZER and item.row[2] != ()
        (written if slot or id(item.holder) in weights else small).append(item)
    return small, written


def entry(row: Row, nbytes: int, array: Callable[[], np.ndarray[Any, Any]]) -> TensorEntry:
    """A tensor for the rescue's file; `array` is called when its bytes are needed."""
    return format.tensor_entry(
        row, nbytes, lambda: np.ascontiguousarray(array()).reshape(-1).view(np.uint8).data
    )


def from_bytes(row: Row, raw: Any) -> np.ndarray[Any, Any]:
    """The array that `entry` wrote, over the same memory."""
    _name, dtype, shape = row
    return np.frombuffer(raw, numpy_type(dtype)).reshape(shape)


def numpy_type(name: str) -> Any:
    """
    NumPy's type for a name; ml_dtypes adds the types that NumPy lacks, as in every framework.

    Raises:
        TypeError: the name is unknown.
    """
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        found = getattr(ml_dtypes, name, None)
        if found is not None:
            return np.dtype(found)
        if "tensorflow" in sys.modules:  # its quantized types
            return sys.modules["tensorflow"].dtypes.as_dtype(name).as_numpy_dtype
        raise
