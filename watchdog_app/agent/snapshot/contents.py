"""
Sort the tensors of a capture: the snapshot holds the bytes of some and the addresses of others.

The process that copies reads large tensors at their addresses, after the snapshot was written.
That is safe for two kinds of tensors. A step changes the first kind only after it sets a mark: the
optimizer's slots and the weights that it trains. The second kind has not changed for some steps,
such as frozen layers: the copying process compares a few of their elements. All other tensors must
be small, and the snapshot holds their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from watchdog_app.agent.state.values import VARIABLES
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.segment import SEGMENT_BYTES
from watchdog_app.rescue.segment.snapshot import Gathering

SMALL_BYTES = 2048  # up to this size the snapshot always holds the bytes of a tensor
_LARGEST_BYTES = 256 * 1024  # largest tensor whose bytes the snapshot can hold
_MOST_BYTES = SEGMENT_BYTES // 4  # limit for the bytes of all tensors in a snapshot
_SETTLED = 3  # equal samples in a row after which a tensor counts as unchanged

# Takes name and address of a tensor: whether a step changes it only after it sets the mark.
Covers = Callable[[str, int], bool]


class CannotPublish(Exception):
    """Another process cannot read this state. The message tells the user why."""


@dataclass
class Contents:
    """The tensors of one snapshot."""

    rows: list[tuple[str, str, Sequence[int], int, int | None]] = field(default_factory=list)
    addresses: bytes = b""
    samples: bytes | bytearray = b""
    values: bytes | bytearray = b""
    state_bytes: int = 0
    large: list[tuple[int, int]] = field(default_factory=list)  # address, bytes
    # Address and length of the tensors in `values`; None if one of them has no stable address.
    small: list[tuple[int, int]] | None = field(default_factory=list)


class Sorter:
    """Sorts the captures of one training, and remembers which tensors stay unchanged."""

    def __init__(self) -> None:
        # By name of the tensor: sampled elements, and how many times in a row they were equal.
        self._seen: dict[str, tuple[bytes, int]] = {}

    def sort(self, entries: Sequence[TensorEntry], covers: Covers) -> Contents:
        """
        The rows of the snapshot, the addresses of large tensors and the bytes of small ones.

        Args:
            entries: the tensors of a capture, which was made at a boundary.
            covers: says which tensors a step changes only after it sets the mark.

        Raises:
            CannotPublish: the snapshot can hold neither the bytes nor the address of a tensor.
        """
        found = Contents()
        values = bytearray()
        too_large: str | None = None  # name of the first one; `_seen` needs the rest, too
        held: list[tuple[int, TensorEntry, int | None]] = []  # row number, tensor, address
        for place, entry in enumerate(entries):
            found.state_bytes += entry.nbytes
            about = (entry.name, entry.dtype, entry.shape, entry.nbytes)
            address = _stable_address(entry)
            if (
                entry.nbytes > SMALL_BYTES
                and address is not None
                and (
                    covers(entry.name, address)
                    # A few elements do not show whether a loop writes into a buffer.
                    or (not entry.name.startswith(VARIABLES) and self._is_unchanged(entry, address))
                )
            ):
                found.rows.append((*about, None))
                found.large.append((address, entry.nbytes))
            elif entry.nbytes <= _LARGEST_BYTES:
                found.rows.append((*about, 0))
                held.append((place, entry, address))
            elif address is None:
                raise CannotPublish(
                    f"{entry.name} does not lie in the memory of this machine as a rescue holds it "
                    "(a GPU, or elements that are strewn): it is saved by the training itself"
                )
            else:
                too_large = too_large or entry.name
        if too_large is not None:
            raise CannotPublish(
                f"{too_large} may change within a step, and is too large to be published: it is "
                "saved by the training itself"
            )
        # Sort by element type: TensorFlow concatenates the tensors of one type.
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
        found.addresses = np.array([at for at, _ in found.large], np.uint64).tobytes()
        found.samples = bytes(Gathering(tables.sample_ranges(found.large)).take())
        return found

    def _is_unchanged(self, entry: TensorEntry, address: int) -> bool:
        noted = bytes(Gathering(tables.sample_ranges([(address, entry.nbytes)])).take())
        before, times = self._seen.get(entry.name, (b"", 0))
        times = times + 1 if before == noted else 0
        self._seen[entry.name] = noted, times
        return times >= _SETTLED


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
    """The address of a tensor; None if each view of it is a new copy."""
    if not entry.nbytes:
        return 0
    with entry.view() as first, entry.view() as second:
        address = _address(first)
        return address if address == _address(second) else None


def _address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
