"""
The safetensors layout: what the header says, and where each tensor's bytes lie.

A file is an 8-byte little-endian length, a JSON header padded with spaces, and
the raw bytes of the tensors without holes. The padding puts the first byte of
data on a multiple of 4096, so that a file can be mapped and written directly.
Tensors are laid out by falling element size, so that each one is aligned to
its own elements although holes are forbidden.

Source: the safetensors format specification (0.4 and later readers).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.base.errors import RescueDamaged, RescueError

# Element sizes in bytes, by the names that the format uses.
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}

ALIGN_BYTES = 4096  # a page, and the largest logical block of common disks
MAX_HEADER_BYTES = 100_000_000  # readers refuse more
_PREFIX_BYTES = 8
_MOST_DIMENSIONS = 254  # TensorFlow's limit; NumPy's is 64
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """
    One tensor to be saved.

    `view()` is called once, when it is this tensor's turn, and the view is
    released before the next tensor's is taken: a zero-copy look at `nbytes`
    bytes, C-contiguous. It is not called for an empty tensor.
    """

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    nbytes: int
    view: Callable[[], memoryview]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: what it is and where its bytes are, counted from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the raw bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Layout:
    """A file as it will be written: the header, then `entries` in this order."""

    header: bytes  # with its length in front and its padding behind
    entries: tuple[TensorEntry, ...]
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + self.data_bytes


def plan(entries: Iterable[TensorEntry], metadata: Mapping[str, str] | None = None) -> Layout:
    """
    The header and the order in which tensors are to be written.

    Args:
        entries: names must differ; `nbytes` must fit dtype and shape.
        metadata: texts for the header's own `__metadata__`.

    Raises:
        RescueError: an entry cannot be laid out; the message names it.
    """
    # sorted() is stable: within one element size the caller's order is kept.
    ordered = tuple(sorted(entries, key=lambda entry: -ITEM_BYTES.get(entry.dtype, 0)))
    table: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for entry in ordered:
        _check(entry, table)
        end = offset + entry.nbytes
        table[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    padded = text + b" " * (-(_PREFIX_BYTES + len(text)) % ALIGN_BYTES)
    if len(padded) > MAX_HEADER_BYTES:
        raise RescueError(
            f"The list of {len(ordered)} tensors takes {len(padded)} bytes; readers take no more "
            f"than {MAX_HEADER_BYTES}. Nothing was saved; give the variables shorter names."
        )
    return Layout(len(padded).to_bytes(_PREFIX_BYTES, "little") + padded, ordered, offset)


def _check(entry: TensorEntry, table: Mapping[str, object]) -> None:
    if entry.name == _METADATA or entry.name in table:
        raise RescueError(f"Two tensors are called {entry.name!r}; nothing was saved.")
    size = ITEM_BYTES.get(entry.dtype)
    if size is None:
        raise RescueError(
            f"Tensor {entry.name!r} has elements of type {entry.dtype!r}, which the safetensors "
            f"layout cannot hold. Nothing was saved; it knows {', '.join(ITEM_BYTES)}."
        )
    if any(length < 0 for length in entry.shape) or entry.nbytes != size * math.prod(entry.shape):
        raise RescueError(
            f"Tensor {entry.name!r} of type {entry.dtype} and shape {entry.shape} cannot be "
            f"{entry.nbytes} bytes long. Nothing was saved."
        )


def header_bytes(prefix: bytes, file_bytes: int) -> int:
    """
    Length of the whole header, prefix included, from a file's first eight bytes.

    Raises:
        RescueDamaged: the file is shorter than it says, or says nonsense.
    """
    if len(prefix) < _PREFIX_BYTES:
        raise RescueDamaged(f"the file ends after {len(prefix)} bytes")
    length = int.from_bytes(prefix[:_PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES or _PREFIX_BYTES + length > file_bytes:
        raise RescueDamaged(
            f"its header claims {length} bytes, the file has {file_bytes} in all: it was cut off"
        )
    return _PREFIX_BYTES + length


def parse(header: bytes, file_bytes: int) -> dict[str, TensorInfo]:
    """
    The tensors of a file by name, in the order of their bytes.

    Args:
        header: the file's first `header_bytes(...)` bytes.
        file_bytes: size of the whole file.

    Raises:
        RescueDamaged: the header is not what this layout allows, or the file is too short or long.
    """
    try:
        table = json.loads(header[_PREFIX_BYTES:].decode("utf-8"), object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise RescueDamaged(f"its header is no JSON ({error})") from error
    if not isinstance(table, dict):
        raise RescueDamaged("its header is no JSON object")
    table.pop(_METADATA, None)
    found = sorted(
        (_info(name, body, len(header)) for name, body in table.items()),
        key=lambda info: (info.begin, info.end),
    )
    at = len(header)
    for info in found:
        if info.begin != at:
            raise RescueDamaged(f"tensor {info.name!r} does not begin where the one before ends")
        at = info.end
    if at != file_bytes:
        raise RescueDamaged(f"it should be {at} bytes long and is {file_bytes}")
    return {info.name: info for info in found}


def _no_twins(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _info(name: str, body: object, base: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = body["dtype"], body["shape"], body["data_offsets"]  # type: ignore[index]
        numbers = [begin, end, *shape]
        # Bounded before they are multiplied: a stranger's file must not cost hours.
        fits = len(numbers) <= _MOST_DIMENSIONS + 2
        fits = fits and all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        fits = fits and end - begin == ITEM_BYTES[dtype] * math.prod(shape)
    except (TypeError, KeyError, ValueError):
        fits = False
    if not fits:
        raise RescueDamaged(f"its header describes tensor {name!r} wrongly")
    return TensorInfo(name, dtype, tuple(shape), base + begin, base + end)
