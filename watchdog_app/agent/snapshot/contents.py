"""
The tensors of a capture, sorted into those that a table holds and those that it tells the place of.

Whoever copies reads large tensors where they lie, later than the table was made. That is right
for those which nothing changes before a mark is set (the optimizer's, and what it trains), and
for those that have not changed for some steps (frozen layers; a few of their elements are compared
at the copy). Everything else must be small, and goes into the table with its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.memory import Gathering
from watchdog_app.rescue.segment.segment import SEGMENT_BYTES

SMALL_BYTES = 2048  # goes into the table in any case
_LARGEST_BYTES = 256 * 1024  # that goes there where it must
_MOST_BYTES = SEGMENT_BYTES // 4  # of all of them
_SETTLED = 3  # looks that see the same elements

Covers = Callable[[str, int], bool]  # name and address of a tensor: changed behind a mark alone


class CannotPublish(Exception):
    """This state cannot be read from outside. The message says why, to be shown to people."""


@dataclass
class Contents:
    """The tensors of one table."""

    rows: list[tuple[str, str, Sequence[int], int, int | None]] = field(default_factory=list)
    addresses: bytes = b""
    samples: bytes | bytearray = b""
    values: bytes | bytearray = b""
    state_bytes: int = 0
    large: list[tuple[str, int, int]] = field(default_factory=list)  # name, address, bytes
    # Address and length of those whose bytes are in `values`; None where one lies nowhere.
    small: list[tuple[int, int]] | None = field(default_factory=list)


class Sorter:
    """Sorts the captures of one training, and remembers what has not changed between them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, int]] = {}  # noted elements, and how often they were so

    def sort(self, entries: Sequence[TensorEntry], covers: Covers) -> Contents:
        """
        Where each tensor is told, and the bytes of the small ones as they are now.

        Args:
            entries: of a capture, all at a boundary.
            covers: which are changed only after a mark was set.

        Raises:
            CannotPublish: one of them can neither be held nor be told.
        """
        found = Contents()
        values = bytearray()
        addresses: list[int] = []
        waiting: list[str] = []
        held: list[tuple[int, TensorEntry, int | None]] = []  # place among the rows, where it lies
        for place, entry in enumerate(entries):
            found.state_bytes += entry.nbytes
            about = (entry.name, entry.dtype, entry.shape, entry.nbytes)
            address = _stable_address(entry)
            if entry.nbytes <= SMALL_BYTES:
                found.rows.append((*about, 0))
                held.append((place, entry, address))
                continue
            if address is not None and (
                covers(entry.name, address) or self._is_unchanged(entry, address)
            ):
                found.rows.append((*about, None))
                found.large.append((entry.name, address, entry.nbytes))
                addresses.append(address)
            elif entry.nbytes <= _LARGEST_BYTES:
                found.rows.append((*about, 0))
                held.append((place, entry, address))
            elif address is None:
                raise CannotPublish(
                    f"{entry.name} does not lie in the memory of this machine as a rescue holds it "
                    "(a GPU, or elements that are strewn): it is saved by the training itself"
                )
            else:
                waiting.append(entry.name)
        if waiting:
            raise CannotPublish(
                f"{waiting[0]} may change within a step, and is too large to be published: it is "
                "saved by the training itself"
            )
        # By element type, as a framework puts them together.
        for place, entry, address in sorted(held, key=lambda one: one[1].dtype):
            found.rows[place] = (*found.rows[place][:4], len(values))
            _append(values, entry)
            _add_small_address(found, entry, address)
        if len(values) > _MOST_BYTES:
            raise CannotPublish(
                f"{len(values)} bytes may change within a step, which is too much to be published: "
                "they are saved by the training itself"
            )
        found.values = values
        found.addresses = np.array(addresses, np.uint64).tobytes()
        found.samples = bytes(Gathering(sample_ranges(found.large)).take())
        return found

    def _is_unchanged(self, entry: TensorEntry, address: int) -> bool:
        noted = bytes(Gathering(sample_ranges([(entry.name, address, entry.nbytes)])).take())
        before, times = self._seen.get(entry.name, (b"", 0))
        times = times + 1 if before == noted else 0
        self._seen[entry.name] = noted, times
        return times >= _SETTLED


def sample_ranges(large: Sequence[tuple[str, int, int]]) -> list[tuple[int, int]]:
    """Address and length of the noted elements of large tensors."""
    return [
        (address + offset, tables.SAMPLE_BYTES)
        for _name, address, nbytes in large
        for offset in tables.sample_places(nbytes)
    ]


def _append(values: bytearray, entry: TensorEntry) -> None:
    if entry.nbytes:
        with entry.view() as view:
            values += view.cast("B") if view.ndim != 1 or view.format != "B" else view


def _add_small_address(found: Contents, entry: TensorEntry, address: int | None) -> None:
    if address is None:
        found.small = None
    elif found.small is not None and entry.nbytes:
        found.small.append((address, entry.nbytes))


def _stable_address(entry: TensorEntry) -> int | None:
    """Where a tensor lies; None where its view is a copy, of which each look makes another."""
    if not entry.nbytes:
        return 0
    with entry.view() as first, entry.view() as second:
        address = _address(first)
        return address if address == _address(second) else None


def _address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
