"""
What a training publishes at a boundary: the contents of a rescue, or their addresses.

For large tensors the snapshot has the address. Small tensors are in it with their bytes, because a
step changes them before it touches the large ones. The rest is the JSON of a rescue in two texts.
One has the values that hardly ever change; the other has those that change with each step, and
takes precedence. Of each large tensor a few elements are recorded as well. The copier compares
them, and so detects changes that the agent did not see.

    head | static JSON | changing JSON | addresses | noted elements | bytes of small tensors

The reader must not trust a snapshot: another process wrote it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import re
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.rescue.checkpoint.format import ITEM_BYTES

# Path in the meta, and its new value. A path that ends in [n] means the items of a list from n on.
News = tuple[Sequence[str | int | list[int]], Any]

SAMPLE_BYTES = 16
_SAMPLES = 4  # per large tensor: its first and last elements, and two between
_HEAD = struct.Struct("<4s5I")
_MARK = b"WDT1"
_OWNER = re.compile(r"\d{1,10}\.\d{1,20}\.[0-9a-f]{8}")
_MOST_TENSORS = 1_000_000
_MOST_MARKERS = 8
_LONGEST_PATH = 4096
_MOST_PIECES = 1024  # IOV_MAX


class SnapshotDamaged(WatchdogError):
    """A snapshot has invalid contents. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the state, in the form of the rescue's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    address: int | None  # in the training's memory; None: `value` has its bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Marker:
    """A number in the training's memory that keeps this value while no large tensor changes."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot whose numbers are consistent."""

    owner: str  # pid.start_time.namespace
    directory: str
    keep: int
    tensors: tuple[Tensor, ...]
    markers: tuple[Marker, ...]
    samples: bytes  # of each tensor with an address, one after the other
    step: int
    meta: dict[str, Any]


def sample_places(nbytes: int) -> list[int]:
    """Offsets of the recorded elements of a large tensor."""
    last = nbytes - SAMPLE_BYTES
    return [last * each // (_SAMPLES - 1) // 8 * 8 for each in range(_SAMPLES - 1)] + [last]


def sample_ranges(large: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """
    Address and length of the recorded elements of large tensors.

    Args:
        large: address and bytes of each tensor.
    """
    return [
        (address + offset, SAMPLE_BYTES)
        for address, nbytes in large
        for offset in sample_places(nbytes)
    ]


def static_text(
    *,
    owner: str,
    directory: str,
    keep: int,
    tensors: Iterable[tuple[str, str, Sequence[int], int, int | None]],
    meta: Mapping[str, Any],
) -> bytes:
    """
    The part that hardly ever changes.

    Args:
        owner: the process, as in names of rescues.
        directory: folder of its rescues.
        keep: number of complete rescues to keep.
        tensors: name, format's element type, shape, bytes, and the offset of its value among the
            bytes of small tensors. The offset is None for a tensor with an address.
        meta: all keys of a rescue's meta, in their order.

    Raises:
        TypeError: `meta` contains a value that JSON cannot represent.
    """
    said = {"owner": owner, "directory": directory, "keep": keep}
    return json.dumps({**said, "tensors": list(tensors), "meta": meta}).encode("ascii")


def changing_text(step: int, markers: Iterable[Marker], news: Sequence[News]) -> bytes:
    """
    The part that changes with each step.

    Args:
        step: the last complete step.
        markers: at most eight.
        news: values of the static part's `meta` that have changed.
    """
    marked = [[each.address, each.value] for each in markers]
    return json.dumps({"step": step, "markers": marked, "news": news}).encode("ascii")


def snapshot_bytes(parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """Size of the snapshot that `write` makes of the five parts."""
    return _HEAD.size + sum(map(len, parts))


def write(view: memoryview, parts: Sequence[bytes | bytearray | memoryview]) -> int:
    """
    Write a snapshot into `view`; return its CRC-32.

    Args:
        view: of `snapshot_bytes(parts)` bytes.
        parts: the five parts after the head, in their order.
    """
    head = _HEAD.pack(_MARK, *map(len, parts))
    view[: len(head)] = head
    crc = zlib.crc32(head)
    at = len(head)
    for part in parts:
        view[at : at + len(part)] = part
        crc = zlib.crc32(part, crc)
        at += len(part)
    return crc


def read(body: bytes, *, most_bytes: int) -> Snapshot:
    """
    The snapshot in `body`.

    Args:
        body: as published.
        most_bytes: upper limit of the state, from the size of the training's process.

    Raises:
        SnapshotDamaged: any part is not as this module writes it.
    """
    try:
        static, changing, addresses, samples, values = _split(body)
        known, news = json.loads(static), json.loads(changing)
        meta = known["meta"]
        for path, value in news["news"]:
            set_value(meta, path, value)
        tensors = tuple(_read_tensors(known["tensors"], addresses, values, most_bytes))
        large = sum(each.address is not None for each in tensors)
        checked_int(len(addresses), large, large)
        checked_int(len(samples), large * _SAMPLES * SAMPLE_BYTES, large * _SAMPLES * SAMPLE_BYTES)
        return Snapshot(
            _checked_text(_OWNER, known["owner"]),
            _checked_path(known["directory"]),
            checked_int(known["keep"], 1, 10**6),
            tensors,
            tuple(_read_markers(news["markers"])),
            samples,
            checked_int(news["step"], 0, 2**62),
            meta,
        )
    except SnapshotDamaged:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
    ) as error:
        raise SnapshotDamaged(f"it cannot be read ({type(error).__name__}: {error})") from error


def _split(body: bytes) -> tuple[bytes, bytes, tuple[int, ...], bytes, bytes]:
    mark, *lengths = _HEAD.unpack_from(body)
    if mark != _MARK or _HEAD.size + sum(lengths) != len(body) or lengths[2] % 8:
        raise SnapshotDamaged("its parts are not as long as it says")
    at, found = _HEAD.size, []
    for length in lengths:
        found.append(body[at : at + length])
        at += length
    return found[0], found[1], struct.unpack(f"<{lengths[2] // 8}Q", found[2]), found[3], found[4]


def _read_tensors(
    listed: Any, addresses: Sequence[int], values: bytes, most_bytes: int
) -> Iterable[Tensor]:
    if not isinstance(listed, list) or len(listed) > _MOST_TENSORS:
        raise SnapshotDamaged("it has no list of tensors")
    places, total = iter(addresses), 0
    for name, dtype, shape, nbytes, offset in listed:
        if not isinstance(name, str) or len(shape) > 254:
            raise SnapshotDamaged("a tensor without a name, or with too many dimensions")
        numbers = tuple(checked_int(each, 0, 2**62) for each in shape)
        if checked_int(nbytes, 0, 2**62) != ITEM_BYTES[dtype] * math.prod(numbers):
            raise SnapshotDamaged(f"tensor {name!r} cannot be {nbytes} bytes long")
        total += nbytes
        if total > most_bytes:
            raise SnapshotDamaged(f"it tells of {total} bytes, more than the process has")
        if offset is None:
            address = next(places, 0)
            if not 4096 <= address < 2**63 - nbytes or nbytes < SAMPLE_BYTES:
                raise SnapshotDamaged(f"tensor {name!r} cannot lie at {address:#x}")
            yield Tensor(name, dtype, numbers, nbytes, address, None)
        else:
            value = values[checked_int(offset, 0, len(values)) :][:nbytes]
            if len(value) != nbytes:
                raise SnapshotDamaged(f"the bytes of tensor {name!r} are not there")
            yield Tensor(name, dtype, numbers, nbytes, None, value)


def _read_markers(listed: Any) -> Iterable[Marker]:
    if not isinstance(listed, list) or len(listed) > _MOST_MARKERS:
        raise SnapshotDamaged("it has no list of markers")
    for address, value in listed:
        yield Marker(checked_int(address, 4096, 2**63 - 9), checked_int(value, 0, 2**63))


def set_value(meta: Any, path: Any, value: Any) -> None:
    """
    Set a value at an existing place of the meta.

    Raises:
        SnapshotDamaged, LookupError, TypeError: the place does not exist.
    """
    place = meta
    for key in path[:-1]:
        place = place[key]
    if not path or type(place) not in (dict, list):
        raise SnapshotDamaged(f"there is no {path!r:.80} that could have changed")
    last = path[-1]
    if type(last) is list is type(place):
        (start,) = last
        place[checked_int(start, 0, len(place)) :] = value
    else:
        place[last] = value


def checked_int(value: Any, least: int, most: int) -> int:
    """
    `value`, if it is an integer within these bounds.

    Raises:
        SnapshotDamaged: it is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise SnapshotDamaged(f"{value!r:.80} where a number from {least} to {most} belongs")
    return value


def _checked_text(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise SnapshotDamaged(f"{value!r:.80} is no owner of rescues")
    return value


def _checked_path(value: Any) -> str:
    good = isinstance(value, str) and value.startswith("/") and len(value) < _LONGEST_PATH
    if not good or "\0" in value:
        raise SnapshotDamaged(f"{value!r:.80} is no folder for rescues")
    return str(value)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class ProcessMemory:
    """
    The memory of one process, which may be frozen or short of memory.

    The process has opened its memory itself and handed the descriptor over, see `exchange`. The
    kernel checks the permission when the file is opened, not when it is read. After the process has
    ended or become another program, a read gets no bytes. Source: proc(5) on /proc/PID/mem.

    Args:
        fd: of its /proc/PID/mem; it stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_into(self, place: memoryview, address: int) -> None:
        """
        Fill the writable `place` with the bytes at `address`.

        Raises:
            OSError: the address is not mapped, or not readable.
        """
        done = 0
        while done < len(place):
            with place[done:] as rest:
                got = os.preadv(self._fd, [rest], address + done)
            if got <= 0:
                raise OSError(errno.EFAULT, "the memory ends there")
            done += got

    def read(self, pieces: Sequence[tuple[int, int]]) -> bytes:
        """
        Several pieces, one after the other.

        Args:
            pieces: address and length of each.

        Raises:
            OSError: see `read_into`.
        """
        found = bytearray(sum(length for _, length in pieces))
        with memoryview(found) as whole:
            at = 0
            for address, length in pieces:
                with whole[at : at + length] as place:
                    self.read_into(place, address)
                at += length
        return bytes(found)


class Gathering:
    """
    Pieces of this process's own memory, which one call copies as often as needed.

    It uses pwritev(2) into a file in memory. For hundreds of small pieces that takes a tenth of the
    time of process_vm_readv(2), which looks up the pages of each.
    """

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        """
        Args:
            pieces: address and length of each.

        Raises:
            OSError: not enough memory, or this system does not support it.
        """
        total = sum(length for _, length in pieces)
        self._fd = os.memfd_create("watchdog-gathering")
        self._memory = mmap.mmap(self._fd, total) if _allocate(self._fd, total) else bytearray()
        weakref.finalize(self, os.close, self._fd).atexit = False
        self._calls: list[tuple[int, int, ctypes.Array[_IoVec], int]] = []
        at = 0
        for first in range(0, len(pieces), _MOST_PIECES):
            some = pieces[first : first + _MOST_PIECES]
            places = (_IoVec * len(some))(*(_IoVec(address, size) for address, size in some))
            length = sum(size for _, size in some)
            self._calls.append((length, at, places, len(some)))
            at += length
        self._call = _pwritev()

    def move(self, addresses: Iterable[int]) -> None:
        """Set new addresses of the pieces; their lengths stay the same."""
        new = iter(addresses)
        for _length, _at, places, _count in self._calls:
            for place in places:
                place.base = next(new)

    def take(self) -> memoryview:
        """
        The current bytes of the pieces, one after the other; the next call overwrites them.

        Raises:
            OSError: a piece is not mapped.
        """
        for length, at, places, count in self._calls:
            if self._call(self._fd, places, count, at) != length:
                raise OSError(ctypes.get_errno() or errno.EFAULT, "a tensor is not where it was")
        return memoryview(self._memory)


def _allocate(fd: int, size: int) -> bool:
    if size:
        os.posix_fallocate(fd, 0, size)  # allocate now, not when memory is short
    return size > 0


@lru_cache(maxsize=1)
def _pwritev() -> Callable[..., int]:
    call = ctypes.CDLL(None, use_errno=True).pwritev
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong)
    call.restype = ctypes.c_ssize_t
    return call
