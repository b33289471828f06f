"""Tensors of any framework as the rescue's file holds them: element types by the format's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from watchdog_app.agent.saving.layout import TensorEntry

Row = tuple[str, str, tuple[int, ...]]  # name, the framework's name of the element type, shape

# By the safetensors format's names; every other type is kept as raw bytes.
_FORMAT_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def entry(row: Row, nbytes: int, view: Callable[[], Any]) -> TensorEntry:
    """A tensor for the rescue's file; `view` is called when its bytes are wanted."""
    name, type_, shape = row
    known = _FORMAT_NAMES.get(type_)
    return TensorEntry(
        name=name,
        dtype=known or "U8",
        shape=shape if known else (nbytes,),
        nbytes=nbytes,
        view=view,
    )
