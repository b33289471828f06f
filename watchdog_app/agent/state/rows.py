"""
How a rescue speaks of a variable, whatever framework it belongs to: name, element type, shape.

Nothing of a framework is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from watchdog_app.rescue.checkpoint import format
from watchdog_app.rescue.checkpoint.format import TensorEntry

MODEL = "model"
METRIC = "metric"
OPTIMIZER = "optimizer"
OTHER = "other"

Row = format.Row  # its element type by NumPy's name


class NamedVariable(Protocol):
    """One tensor of a training's state, in whatever framework."""

    @property
    def name(self) -> str:
        """Unique within a list, e.g. "model/dense/kernel"."""

    @property
    def group(self) -> str:
        """MODEL, METRIC, OPTIMIZER or OTHER."""

    @property
    def holder(self) -> Any:
        """The framework's or Keras's variable."""

    @property
    def row(self) -> Row:
        """What a rescue says of it, to be compared at the resume."""

    @property
    def nbytes(self) -> int:
        """Size of the raw elements."""

    def array(self) -> np.ndarray[Any, Any]:
        """The elements as they are now; without a copy where they lie in this machine's memory."""

    def assign(self, value: np.ndarray[Any, Any]) -> None:
        """Set the elements."""


def entry(row: Row, nbytes: int, array: Callable[[], np.ndarray[Any, Any]]) -> TensorEntry:
    """A tensor for the rescue's file; `array` is called when its bytes are wanted."""
    return format.tensor_entry(
        row, nbytes, lambda: np.ascontiguousarray(array()).reshape(-1).view(np.uint8).data
    )


def from_bytes(row: Row, raw: Any) -> np.ndarray[Any, Any]:
    """The array that `entry` wrote, over the same memory."""
    _name, dtype, shape = row
    return np.frombuffer(raw, numpy_type(dtype)).reshape(shape)


def numpy_type(name: str) -> Any:
    """
    NumPy's type for a name; those that NumPy lacks come from ml_dtypes, as in every framework.

    Raises:
        TypeError: nobody knows the name.
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
