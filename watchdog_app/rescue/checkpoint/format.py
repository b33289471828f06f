"""
The two files of a rescue: `state.safetensors` with the tensors, `rescue.json` with the rest.

state.safetensors: an 8-byte little-endian length, a JSON header padded with spaces, and the raw
bytes of the tensors without holes. The padding puts the first byte of data on a multiple of 4096,
so that a file can be mapped and written directly. Tensors are in order of falling element size. So
each one is aligned to its own elements although holes are forbidden.

rescue.json has its own checksum:

    {"crc32": "0f3a...", "rescue":
    { ... }}

The checksum covers the bytes between `"rescue":` and the last brace. It finds a flipped bit in an
epoch number as surely as one in a weight. Any JSON reader can read the file.

Source: the safetensors format specification (0.4 and later readers).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.errors import RescueDamaged, RescueError

FORMAT_VERSION = 2
# zlib's CRC-32 runs at 6 GB/s here, three times a SHA and faster than any disk. It finds the errors
# of disks and truncated writes. It does not protect against forgery.
CHECKSUM = "crc32"
_READ_VERSIONS = (1, FORMAT_VERSION)
# Fields of every rescue: outside of `meta` on disk, inside of it in memory.
_TOP_LEVEL_FIELDS = ("reason", "run", "identity", "position")
NOT_RESTORED = "not_restored"
RANKS = "ranks"  # in a rescue's metadata: the number of processes that wrote it
MOST_BYTES = 256 * 1024 * 1024  # a million tensors; a longer file is not a rescue.json
STATE_FILE = "state.safetensors"
MANIFEST_FILE = "rescue.json"

_HEAD = b'{"crc32": "%08x", "rescue":\n'
_HEAD_BYTES = len(_HEAD % 0)
_TAIL = b"}\n"
_PARSE_ERRORS = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    OverflowError,  # an infinite number instead of an integer
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an undamaged rescue.json."""

    format: int
    created_unix_s: float
    step: int
    meta: Mapping[str, Any]
    layout: Layout  # of the file with the tensors
    crc32: Mapping[str, int]  # of each tensor's bytes


def build_manifest(
    plan: Layout,
    checksums: Mapping[str, int],
    *,
    step: int,
    created_unix_s: float,
    meta: Mapping[str, Any],
    writer: str,
) -> bytes:
    """
    The bytes of rescue.json.

    Raises:
        RescueError: `meta` contains a value that JSON cannot represent.
    """
    missing = list(meta.get(NOT_RESTORED) or ())
    body = {
        "format": FORMAT_VERSION,
        "created_unix_s": created_unix_s,
        "writer": writer,
        "step": step,
        "exact": not missing,
        "missing": missing,
        **{key: meta.get(key) for key in _TOP_LEVEL_FIELDS},
        "meta": {
            key: value
            for key, value in meta.items()
            if key not in (*_TOP_LEVEL_FIELDS, NOT_RESTORED)
        },
        "state": {
            # `bytes` and `header` are for other tools: here the list of tensors determines both.
            "file": STATE_FILE,
            "bytes": plan.file_bytes,
            "checksum": CHECKSUM,
            "header": f"{zlib.crc32(plan.header):08x}",
            "tensors": [
                {
                    "name": entry.name,
                    "dtype": entry.dtype,
                    "shape": entry.shape,
                    "bytes": entry.nbytes,
                    CHECKSUM: f"{checksums.get(entry.name, 0):08x}",
                }
                for entry in plan.entries
            ],
        },
    }
    try:
        text = json.dumps(body).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise RescueError(
            f"What is to be saved with the tensors cannot be written as JSON: {error}. "
            "Nothing was saved."
        ) from error
    return b"".join((_HEAD % zlib.crc32(text), text, _TAIL))


def read_manifest(data: bytes) -> Manifest:
    """
    The manifest in the bytes of a rescue.json.

    Raises:
        RescueDamaged: a byte has changed.
        RescueError: a newer version of watchdog wrote it.
    """
    text = data[_HEAD_BYTES : -len(_TAIL)]
    if data != b"".join((_HEAD % zlib.crc32(text), text, _TAIL)):
        raise RescueDamaged(f"{MANIFEST_FILE} does not match its checksum")
    try:
        body = json.loads(text)
        version = body["format"]
        if version not in _READ_VERSIONS:
            raise RescueError(
                f"it is of format {version} and this watchdog reads format {FORMAT_VERSION}: "
                "update watchdog-app"
            )
        state = body["state"]
        tensors = state["tensors"]
        meta = dict(body["meta"])
        if version == FORMAT_VERSION:
            meta |= {key: body[key] for key in _TOP_LEVEL_FIELDS if body[key] is not None}
            meta[NOT_RESTORED] = list(body["missing"])
        return Manifest(
            format=version,
            created_unix_s=float(body["created_unix_s"]),
            step=int(body["step"]),
            meta=meta,
            layout=_read_layout(tensors),
            crc32={item["name"]: int(item[state["checksum"]], 16) for item in tensors},
        )
    except _PARSE_ERRORS as error:
        raise RescueDamaged(f"{MANIFEST_FILE} lacks something ({error!r})") from error


# Element types: the framework's name, the format's name, bytes. Others are stored as raw bytes.
_TYPES = (
    ("float64", "F64", 8),
    ("float32", "F32", 4),
    ("float16", "F16", 2),
    ("bfloat16", "BF16", 2),
    ("float8_e4m3fn", "F8_E4M3", 1),
    ("float8_e5m2", "F8_E5M2", 1),
    ("int64", "I64", 8),
    ("int32", "I32", 4),
    ("int16", "I16", 2),
    ("int8", "I8", 1),
    ("uint64", "U64", 8),
    ("uint32", "U32", 4),
    ("uint16", "U16", 2),
    ("uint8", "U8", 1),
    ("bool", "BOOL", 1),
)
ITEM_BYTES: Mapping[str, int] = {name: size for _, name, size in _TYPES}
_FORMAT_NAMES = {name: short for name, short, _ in _TYPES}

ALIGN_BYTES = 4096  # a page, and the largest logical block of common disks
MAX_HEADER_BYTES = 100_000_000  # readers refuse more
_PREFIX_BYTES = 8
_MOST_DIMENSIONS = 254  # TensorFlow's limit; NumPy's is 64
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """
    One tensor to save.

    `view()` returns a zero-copy view of `nbytes` bytes, C-contiguous. It is called once, when the
    tensor is written, and the view is released before the next one is taken. It is not called for
    an empty tensor. `fill(place, offset)` copies the bytes from an offset into a place, for tensors
    without a view; `view` is not called then.
    """

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    nbytes: int
    view: Callable[[], memoryview]
    fill: Callable[[memoryview, int], None] | None = None

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> TensorEntry:
        """An entry for bytes in memory, such as a header."""
        return cls(name, "U8", (len(data),), len(data), lambda: memoryview(data))


@dataclass(frozen=True, slots=True)
class Capture:
    """The state of a training between two steps, without a copy of it."""

    entries: Sequence[TensorEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)  # JSON values; the step is added


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: its type, and the position of its bytes from the file's start."""

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
    """The file to write: the header, then `entries` in this order."""

    header: bytes  # with its length in front and its padding at the end
    entries: tuple[TensorEntry, ...]
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return len(self.header) + self.data_bytes

    def tensors(self) -> dict[str, TensorInfo]:
        """The place of each tensor in the file, by name, in the order of the file."""
        found, at = {}, len(self.header)
        for each in self.entries:
            end = at + each.nbytes
            found[each.name] = TensorInfo(each.name, each.dtype, each.shape, at, end)
            at = end
        return found


def plan_layout(entries: Iterable[TensorEntry]) -> Layout:
    """
    The header, and the order in which to write the tensors.

    Args:
        entries: names must differ; `nbytes` must fit dtype and shape.

    Raises:
        RescueError: an entry cannot be laid out; the message names it.
    """
    # sorted() is stable: entries of one element size keep the caller's order.
    ordered = tuple(sorted(entries, key=lambda entry: -ITEM_BYTES.get(entry.dtype, 0)))
    table: dict[str, object] = {}
    offset = 0
    for entry in ordered:
        _check_entry(entry, table)
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


def _check_entry(entry: TensorEntry, table: Mapping[str, object]) -> None:
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


def _read_layout(listed: Iterable[Mapping[str, Any]]) -> Layout:
    """
    The layout of the file with the tensors of a manifest, which anybody may have written.

    Raises:
        RescueDamaged: no file can have these tensors.
    """
    entries = []
    for item in listed:
        name, shape, nbytes = item["name"], tuple(item["shape"]), item["bytes"]
        numbers = (nbytes, *shape)
        # Check the limits before the multiplication: an untrusted file must not cost hours.
        known = all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        if not known or not isinstance(name, str) or len(shape) > _MOST_DIMENSIONS:
            raise RescueDamaged(f"{MANIFEST_FILE} describes tensor {name!r:.80} wrongly")
        entries.append(TensorEntry(name, item["dtype"], shape, nbytes, lambda: memoryview(b"")))
    try:
        return plan_layout(entries)
    except RescueError as error:
        raise RescueDamaged(f"{MANIFEST_FILE} describes its tensors wrongly: {error}") from error


Row = tuple[str, str, tuple[int, ...]]  # name, the framework's name of the element type, shape


def tensor_entry(row: Row, nbytes: int, view: Callable[[], Any]) -> TensorEntry:
    """A tensor for the rescue's file; `view` is called when its bytes are needed."""
    name, type_, shape = row
    known = _FORMAT_NAMES.get(type_)
    return TensorEntry(
        name=name,
        dtype=known or "U8",
        shape=shape if known else (nbytes,),
        nbytes=nbytes,
        view=view,
    )
