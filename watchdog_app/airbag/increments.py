"""
What of a table is another a step later, where all the rest of it holds.

A table is dear, and as of one step. So one can say beside what it is how later ones are told in a
few hundred bytes, its *plan*: which values of the description are another with each step; where
the words are that say where each tensor lies; and which words were to be the same for as long as
the training stands at that boundary. Of some tensors an element is noted as well: what a callback
writes into a tensor where it lies moves no word. Whoever copies compares both, and finds the
tensors by the words. Where tensors stay (PyTorch) their addresses are in the plan, and there are no
words.

    two lengths, 4 bytes each | values, 8 bytes each | words of memory, 8 bytes each
    | noted elements, 8 bytes each | bytes of the tensors that are held
    | unsigned numbers, 4 bytes each, or none; where they are there, the raw bytes
    | JSON of what else is another, or nothing

As a table, an increment was written by somebody else's process: nothing in it is believed.
"""

from __future__ import annotations

import binascii
import json
import math
import struct

from watchdog_app.airbag import table as tables
from watchdog_app.airbag.table import TableDamaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Bytes = bytes | memoryview

    from watchdog_app.airbag.foreign_memory import ForeignMemory
    from watchdog_app.airbag.page_contents import Increment
    from watchdog_app.airbag.table import News, Table

WHOLE, TRUTH, NUMBER, FINITE = "whole", "truth", "number", "finite"  # kinds of values
_HEAD = struct.Struct("<2I")
_MOST_VALUES = 1024
_DAMAGES = (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)
_MOST_WORDS = 65536
_LONGEST_HOP = 4096
_LONGEST_RAW = 65536
NOTED_BYTES = 8


def plan(  # noqa: PLR0917 - in the order of an increment
    values: Sequence[tuple[Sequence[str | int], str]],
    numbers: Sequence[tuple[Sequence[str | int], int | None]],
    places: Sequence[int],
    counters: Sequence[int],
    hop: int,
    noted: Sequence[tuple[int, int]] = (),
    *,
    addresses: Sequence[int] | None = None,
    held: Sequence[int] = (),
    raw: Sequence[tuple[Sequence[str | int], int]] = (),
) -> dict[str, Any]:
    """
    As JSON, for the static part of a table.

    Args:
        values: path in the meta and kind of each: "whole", "truth", "number", or "finite" for one
            that is null where it is no finite number.
        numbers: path and count of each list of unsigned numbers; None: it is one number.
        places: for each tensor of the table, in its order, the address of the word that says where
            its buffer is told of.
        counters: addresses of words that a step changes before anything else.
        hop: bytes from where a buffer is told of to its address.
        noted: which tensors, by their place in the table, and at which byte of each.
        addresses: of each tensor, where they stay; there are no `places` then.
        held: tensors whose bytes are in each increment, by their place in the table.
        raw: path and length of what comes as bytes beside the numbers, and is base64 in the meta.
    """
    said: dict[str, Any] = {
        "values": list(values),
        "numbers": list(numbers),
        "places": list(places),
        "counters": list(counters),
        "hop": hop,
        "noted": list(noted),
        "held": list(held),
        "raw": list(raw),
    }
    if addresses is not None:
        said["addresses"] = list(addresses)
    return said


def body(values: bytes, words: Bytes, numbers: bytes, text: bytes) -> bytes:
    """
    An increment.

    Args:
        values: packed, in the order of the plan.
        words: likewise, and the noted elements and the tensors that are held after them.
        numbers: likewise, and the raw bytes behind them; empty where all are what they were.
        text: of `News`, as JSON; empty for none. The values win over it.
    """
    return b"".join((_HEAD.pack(len(numbers), len(text)), values, words, numbers, text))


class Followed:
    """A table brought to a later boundary."""

    def __init__(self, table: Table, plan_: Mapping[str, Any], added: Increment) -> None:
        """
        Args:
            table: as published.
            plan_: that it came with.
            added: of the boundary.

        Raises:
            TableDamaged: they are not as this module writes them.
        """
        self._tensors = table.tensors
        try:
            self._stay = _stay(plan_, table.tensors)
            self._addresses = _addresses(plan_, 0 if self._stay else len(table.tensors))
            self._hop = tables.whole(plan_["hop"], 0, _LONGEST_HOP)
            self._noted = _noted(plan_, self._tensors)
            which = _held(plan_, len(self._tensors))
            sizes = [self._tensors[each].nbytes for each in which]
            length = 8 * (len(self._addresses) + len(self._noted))
            news, words = _split(plan_, length + sum(sizes), added.body)
            end = 8 * len(self._addresses)
            self._words, self._elements = words[:end], words[end:length]
            self._held: dict[int, bytes] = {}
            for each, size in zip(which, sizes, strict=True):
                self._held[each] = words[length : length + size]
                length += size
            self._meta = table.meta
            for path, value in (*news, (("step",), added.step)):
                tables.put(self._meta, path, value)
        except TableDamaged:
            raise
        except _DAMAGES as error:
            raise TableDamaged(
                f"its increment cannot be read ({type(error).__name__}: {error})"
            ) from error
        self._step = tables.whole(added.step, 0, 2**62)
        self._about = table

    def moved(self, memory: ForeignMemory) -> bool:
        """
        Whether a word, or a noted element, is another than it was at the boundary.

        Raises:
            OSError: one cannot be read.
            TableDamaged: a tensor cannot lie where a word says.
        """
        if memory.read([(each, 8) for each in self._addresses]) != self._words:
            return True
        if not self._noted:
            return False
        places = self._places(memory, [which for which, _ in self._noted])
        elements = [
            (_address(place) + offset, NOTED_BYTES)
            for place, (_, offset) in zip(places, self._noted, strict=True)
        ]
        return memory.read(elements) != self._elements

    def table(self, memory: ForeignMemory) -> Table:
        """
        The table as the training itself would have published it here, tensors told by address.

        Raises:
            OSError: a word cannot be read.
            TableDamaged: a tensor cannot lie there.
        """
        places = self._places(memory, range(len(self._tensors)))
        tensors = []
        for which, (each, address) in enumerate(zip(self._tensors, places, strict=True)):
            if not 4096 <= address < 2**63 - each.nbytes:
                raise TableDamaged(f"tensor {each.name!r} cannot lie at {address:#x}")
            value = self._held.get(which, None if each.nbytes else b"")
            tensors.append(
                tables.Tensor(
                    each.name,
                    each.dtype,
                    each.shape,
                    each.nbytes,
                    address if value is None else None,
                    value,
                )
            )
        about = self._about
        return tables.Table(
            about.owner,
            about.directory,
            about.keep,
            tuple(tensors),
            (),
            b"",
            self._step,
            self._meta,
        )

    def _places(self, memory: ForeignMemory, which: Sequence[int]) -> Sequence[int]:
        if self._stay:
            return [self._stay[each] for each in which]
        told = struct.unpack_from(f"<{len(self._tensors)}Q", self._words)
        hops = memory.read([(_address(told[each]) + self._hop, 8) for each in which])
        return struct.unpack(f"<{len(which)}Q", hops)


def _stay(plan_: Mapping[str, Any], tensors: Sequence[tables.Tensor]) -> list[int]:
    addresses = plan_.get("addresses")
    if addresses is None:
        return []
    if len(addresses) != len(tensors):
        raise TableDamaged("its plan tells of other tensors than its table")
    return [_address(each) for each in addresses]


def _held(plan_: Mapping[str, Any], tensors: int) -> list[int]:
    found = [tables.whole(each, 0, tensors - 1) for each in plan_.get("held", ())]
    if len(set(found)) != len(found):
        raise TableDamaged("its plan holds a tensor twice")
    return found


def _addresses(plan_: Mapping[str, Any], tensors: int) -> list[int]:
    places, counters = plan_["places"], plan_["counters"]
    if len(places) != tensors or tensors + len(counters) > _MOST_WORDS:
        raise TableDamaged("its plan tells of other tensors than its table")
    return [_address(each) for each in (*places, *counters)]


def _noted(plan_: Mapping[str, Any], tensors: Sequence[tables.Tensor]) -> list[tuple[int, int]]:
    found = []
    for which, offset in plan_.get("noted", ()):
        each = tensors[tables.whole(which, 0, len(tensors) - 1)]
        found.append((which, tables.whole(offset, 0, each.nbytes - NOTED_BYTES)))
    if len(found) > _MOST_WORDS:
        raise TableDamaged("its plan notes more elements than there can be")
    return found


def _address(value: Any) -> int:
    return tables.whole(value, 4096, 2**63 - _LONGEST_HOP - 9)


def _split(plan_: Mapping[str, Any], length: int, body: bytes) -> tuple[list[News], bytes]:
    """`length`: of the words, and of all that is behind them up to the numbers."""
    values, numbers, raw = plan_["values"], plan_["numbers"], plan_.get("raw", ())
    of_numbers, of_text = _HEAD.unpack_from(body)
    counts = [1 if count is None else tables.whole(count, 1, 65536) for _, count in numbers]
    sizes = [tables.whole(size, 1, _LONGEST_RAW) for _, size in raw]
    at = _HEAD.size + 8 * tables.whole(len(values), 0, _MOST_VALUES)
    end = at + length
    there = of_numbers in (0, 4 * sum(counts) + sum(sizes))
    if not there or len(body) != end + of_numbers + of_text:
        raise TableDamaged("an increment is not as long as its plan says")
    news: list[News] = json.loads(body[end + of_numbers :]) if of_text else []
    for place, (path, kind) in enumerate(values):
        begin = _HEAD.size + 8 * place
        news.append((path, _KINDS[kind](body[begin : begin + 8])))
    if of_numbers:
        each = struct.unpack_from(f"<{sum(counts)}I", body, end)
        begin = 0
        for (path, count), size in zip(numbers, counts, strict=True):
            some = each[begin : begin + size]
            news.append((path, some[0] if count is None else list(some)))
            begin += size
        begin = end + 4 * sum(counts)
        for (path, _), size in zip(raw, sizes, strict=True):
            news.append((path, _text(body[begin : begin + size])))
            begin += size
    return news, body[at:end]


def _text(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def _whole(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _truth(raw: bytes) -> bool:
    return bool(tables.whole(_whole(raw), 0, 1))


def _number(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


def _finite(raw: bytes) -> float | None:
    number = _number(raw)
    return number if math.isfinite(number) else None


_KINDS: dict[str, Callable[[bytes], Any]] = {
    WHOLE: _whole,
    TRUTH: _truth,
    NUMBER: _number,
    FINITE: _finite,
}
