"""
Where TensorFlow's variables lie, found without asking TensorFlow.

A variable gets another buffer now and then (each assignment gives it one), so an address holds for
one step. What holds for as long as the variable lives is the word in it that says where its buffer
is told of. TensorFlow has no name for that word. So it is found: from a handle on, pointers are
followed to the buffer whose address is known, and the way there is the same for all variables. It
is tried on variables that move, and whoever uses it compares what it leads to with what TensorFlow
says, for every variable; where that differs nothing is read this way. All reading is done by system
calls, which fail where there is no memory.

Source: none but the comparison. With TensorFlow 2.21: the tensor of a handle at 296, its resource
at 192, the buffer of a variable at 64, the address in a buffer at 16.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.airbag.foreign_memory import ForeignMemory, Gathering

_WORDS = {"handle": 32, "tensor": 64, "resource": 40, "variable": 40, "buffer": 4}  # looked at
_PIECES = 1024  # of one call of a `Gathering`


class Unknown(Exception):
    """The way to a variable's buffer is not known here."""


class Places:
    """Where the buffers of some variables are told of."""

    def __init__(self, variables: Sequence[Any]) -> None:
        """
        Args:
            variables: of TensorFlow, on this machine's CPU.

        Raises:
            Unknown: there is no way, or not to each of these.
        """
        way = _way()
        if way is None or not variables:
            raise Unknown
        *hops, last, self.hop = way
        with ForeignMemory(os.getpid()) as memory:
            found = [id(_handle(each)) for each in variables]
            for hop in hops:
                found = [_word(memory, each + hop) for each in found]
        self.words = [each + last for each in found]


class Moving:
    """Pieces of memory that lie elsewhere each time, copied together."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """
        Args:
            lengths: of the pieces, in bytes.

        Raises:
            OSError: as `Gathering`.
        """
        self._gathering = Gathering([(0, length) for length in lengths])
        self._places = [
            np.frombuffer(memoryview(each), np.uint64).reshape(-1, 2)[:, 0]
            for each in self._gathering.pieces
        ]

    def take(self, addresses: Any) -> memoryview:
        """
        What lies at `addresses` now, one after the other; the next call writes over it.

        Raises:
            OSError: one of them is no memory.
        """
        for place, each in enumerate(self._places):
            each[:] = addresses[place * _PIECES : (place + 1) * _PIECES]
        return self._gathering.take()


class Buffers:
    """Where the elements of some variables lie, asked anew each time."""

    def __init__(self, places: Places) -> None:
        """Raises OSError: as `Gathering`."""
        count = len(places.words)
        self._hop = np.uint64(places.hop)
        self._words = np.array(places.words, np.uint64)
        self._told, self._hops = Moving([8] * count), Moving([8] * count)

    def addresses(self) -> Any:
        """
        As an array of NumPy's, of the present moment.

        Raises:
            OSError: a variable is gone.
        """
        told = np.frombuffer(self._told.take(self._words), np.uint64)
        return np.frombuffer(self._hops.take(told + self._hop), np.uint64).copy()


def address_of(tensor: Any) -> int:
    """Of the elements of an eager tensor on the CPU, of more than none dimensions."""
    return int(tensor._numpy().__array_interface__["data"][0])


def _handle(variable: Any) -> Any:
    handle = getattr(variable, "handle", None)
    if handle is None or not hasattr(handle, "_numpy"):
        raise Unknown
    return handle


def _word(memory: ForeignMemory, address: int) -> int:
    if not 4096 <= address < 2**47:
        raise Unknown
    try:
        return int.from_bytes(memory.read([(address, 8)]), "little")
    except OSError as error:
        raise Unknown from error


@lru_cache(maxsize=1)
def _way() -> tuple[int, ...] | None:
    """Offsets from the object of a handle to the elements of its variable; None: none is found."""
    with tf.init_scope(), tf.device("CPU:0"):
        plain = tf.range(64.0) * 2.0
        some = [tf.Variable(tf.range(64.0) + float(each)) for each in range(3)]
        with ForeignMemory(os.getpid()) as memory:
            ways = set(_ways(memory, plain, some[0]))
            for _ in range(3):
                for each in some:
                    ways = {way for way in ways if _leads(memory, way, each)}
                    each.assign(each * 2.0)  # gives it another buffer
    return min(ways, default=None)


def _ways(memory: ForeignMemory, plain: Any, variable: Any) -> Iterator[tuple[int, ...]]:
    """Those from a handle to the buffer of this variable, by the way to a tensor's."""
    here, there = address_of(plain), address_of(variable.read_value())
    for to_handle, handle in _pointers(memory, id(plain), "handle"):
        for to_tensor, buffer in _pointers(memory, handle, "tensor"):
            for to_data, address in _pointers(memory, buffer, "buffer"):
                if address != here:
                    continue
                start = (to_handle, to_tensor, to_data)
                for to_resource, resource in _pointers(
                    memory, _follow(memory, id(variable.handle), start), "resource"
                ):
                    for to_buffer, told in _pointers(memory, resource, "variable"):
                        found = _words(memory, told + to_data, 1)
                        if found and found[0] == there:
                            yield (*start, to_resource, to_buffer, to_data)


def _leads(memory: ForeignMemory, way: Sequence[int], variable: Any) -> bool:
    return _follow(memory, id(variable.handle), way) == address_of(variable.read_value())


def _follow(memory: ForeignMemory, address: int, way: Iterable[int]) -> int:
    for hop in way:
        found = _words(memory, address + hop, 1)
        if not found:
            return 0
        address = found[0]
    return address


def _pointers(memory: ForeignMemory, address: int, what: str) -> Iterator[tuple[int, int]]:
    for place, word in enumerate(_words(memory, address, _WORDS[what])):
        if 4096 <= word < 2**47 and word % 8 == 0:
            yield 8 * place, word


def _words(memory: ForeignMemory, address: int, count: int) -> tuple[int, ...]:
    """As many of them as there is memory for, at an address that may be none."""
    if not 4096 <= address < 2**47:
        return ()
    page = os.sysconf("SC_PAGE_SIZE")
    fit = min(count, (page - address % page) // 8 or 1)
    for some in (count, fit):
        try:
            return struct.unpack(f"<{some}Q", memory.read([(address, 8 * some)]))
        except OSError:
            continue
    return ()
