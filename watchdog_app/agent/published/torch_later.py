"""
A PyTorch loop: each of its steps told in a few hundred bytes.

Its tensors stay where they are, and the optimizers tell before they change one. So beside the table
that names the addresses a step needs the numbers that it has changed: where the loop stands, random
numbers that were drawn, learning rates; and the bytes of the small tensors that are changed by no
optimizer (statistics of batch norm). An element of each weight is noted, as in `keras_later`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from watchdog_app.agent.loops import raw_random
from watchdog_app.agent.published.contents import Contents
from watchdog_app.agent.published.news import news
from watchdog_app.agent.published.torch_places import Unknown
from watchdog_app.agent.published.torch_refresh import Path, TorchRefresh
from watchdog_app.airbag import increments
from watchdog_app.airbag import table as tables
from watchdog_app.airbag.foreign_memory import Gathering
from watchdog_app.airbag.increments import FINITE, NUMBER, WHOLE
from watchdog_app.airbag.page_layout import INCREMENT_BYTES
from watchdog_app.airbag.table import News

_MOST_NOTED = 256  # of more weights some are left out: whoever changes one most often changes all
_MOST_HELD_BYTES = INCREMENT_BYTES // 2
_LONGEST_TEXT = 65536
_LONG = 64  # of what is encoded once as long as it is the same object
# TensorFlow's, where a program has it beside: whoever draws from those has the whole told.
_KNOWN_RANDOM = {"python", "numpy", "torch", "devices", "tensorflow_seed", "tensorflow_rng"}
_NUMBERS: list[tuple[Path, int | None]] = [
    (("random", "python", 1), 625),
    (("random", "numpy", 1), 624),
    (("random", "numpy", 2), None),
]
_NONE = float("nan")


class TorchLater:
    """See `guards.Later`."""

    def __init__(
        self,
        refresh: TorchRefresh,
        meta: Mapping[str, Any],
        contents: Contents,
        also: Sequence[str],
        guarded: Callable[[str, int], bool],
    ) -> None:
        """
        Args:
            refresh: of the same state.
            meta, contents: as they are being published whole.
            also: names of numbers beside the loop's own, at the top of the meta.
            guarded: which tensors are changed by optimizers alone.

        Raises:
            Unknown: some of this is told in another way, or is too much.
            OSError: as `Gathering`.
        """
        if meta["random"].keys() - _KNOWN_RANDOM or meta["random"]["devices"]:
            raise Unknown
        try:
            self._random = raw_random.RawRandom()
        except raw_random.Unknown as error:
            raise Unknown from error
        self._refresh = refresh
        self._also = tuple(also)
        places = _places(contents)
        held = [
            at
            for at, row in enumerate(contents.rows)
            if row[4] is not None and row[3] and not guarded(row[0], places[at])
        ]
        pieces = [(places[at], contents.rows[at][3]) for at in held]
        if sum(size for _, size in pieces) > _MOST_HELD_BYTES:
            raise Unknown
        noted = _noted(contents, places, guarded)
        self._gathering = Gathering(
            [*((places[at] + offset, increments.NOTED_BYTES) for at, offset in noted), *pieces]
        )
        self._pack = struct.Struct(f"<q{2 + len(self._also)}d").pack
        self._base: list[tuple[Path, Any]] = []
        self._compared: dict[Path, tuple[Any, Any, Sequence[News]]] = {}
        self._encoded: dict[Any, tuple[Any, str]] = {}
        self._drawn: tuple[int, ...] = ()
        self._beside: Any = None
        self._torch = b""
        self.plan = increments.plan(
            [
                (("random", "numpy", 3), WHOLE),
                (("random", "python", 2), FINITE),
                (("random", "numpy", 4), NUMBER),
                *(((name,), FINITE) for name in self._also),
            ],
            _NUMBERS,
            (),
            (),
            0,
            noted,
            addresses=places,
            held=held,
            raw=[(("random", "torch"), len(_torch_random()))],
        )

    def published(self) -> bool:
        """See `guards.Later`."""
        now = self._refresh.values()
        self._drawn = self._random.sketch()
        self._beside = raw_random.tensorflow_draws()
        self._torch = _torch_random()
        self._base = now or []
        return now is not None

    def now(self) -> bool:
        """See `guards.Later`."""
        return True

    def take(self, also: Mapping[str, Any]) -> bytes | None:
        """See `guards.Later`."""
        now = self._refresh.values()
        if now is None or len(now) != len(self._base):
            return None
        if raw_random.tensorflow_draws() != self._beside:
            return None
        found = [
            each
            for (path, value), (_, before) in zip(now, self._base, strict=True)
            for each in self._news(before, value, path)
        ]
        text = self._text(found)
        if len(text) > _LONGEST_TEXT:
            return None
        numbers, drawn = b"", _torch_random()
        if drawn != self._torch or self._random.sketch() != self._drawn:
            numbers = self._random.words() + drawn
            if len(drawn) != len(self._torch):
                return None
        spare, there, number = self._random.spare()
        values = self._pack(
            there,
            _NONE if spare is None else spare,
            number,
            *[_NONE if (each := also[name]) is None else each for name in self._also],
        )
        return increments.body(values, self._gathering.take(), numbers, text)

    def _news(self, before: Any, now: Any, path: Path) -> Sequence[News]:
        """As `news`, of which long things that stay for an epoch are compared once."""
        if before is now:
            return ()
        if type(before) is not dict or type(now) is not dict or before.keys() != now.keys():
            return tuple(news(before, now, path))
        known = self._compared.get(path)
        if known is not None and known[0] is before and known[1] is now:
            return known[2]
        found = [
            each
            for key, value in now.items()
            for each in self._news(before[key], value, (*path, key))
        ]
        self._compared[path] = before, now, found
        return found

    def _text(self, found: Sequence[News]) -> bytes:
        """JSON; the random numbers that an epoch began with are encoded once."""
        if not found:
            return b""
        said = []
        for path, value in found:
            known = self._encoded.get(path)
            if known is None or known[0] is not value:
                text = json.dumps([path, value])
                known = value, text
                if isinstance(value, (list, str)) and len(value) > _LONG:
                    self._encoded[path] = known
            said.append(known[1])
        return f"[{','.join(said)}]".encode("ascii")


def _torch_random() -> bytes:
    return bytes(torch.get_rng_state().numpy())


def _places(contents: Contents) -> list[int]:
    """
    The address of each tensor; of an empty one, of anything.

    Raises:
        Unknown: one lies nowhere.
    """
    if contents.small is None:
        raise Unknown
    large = iter(address for _name, address, _nbytes in contents.large)
    small = [(row[4], at) for at, row in enumerate(contents.rows) if row[4] is not None and row[3]]
    places = [next(large) if row[4] is None else 4096 for row in contents.rows]
    for (_, at), (address, nbytes) in zip(sorted(small), contents.small, strict=True):
        if contents.rows[at][3] != nbytes:
            raise Unknown
        places[at] = address
    return places


def _noted(
    contents: Contents, places: Sequence[int], guarded: Callable[[str, int], bool]
) -> list[tuple[int, int]]:
    """What is changed by an optimizer alone is noted at one place, anything else at several."""
    found, others = list[tuple[int, int]](), list[tuple[int, int]]()
    for at, row in enumerate(contents.rows):
        if row[4] is None and not guarded(row[0], places[at]):
            others += [(at, min(each, row[3] - 8)) for each in tables.sample_places(row[3])]
        elif row[3] >= 2 * increments.NOTED_BYTES and guarded(row[0], places[at]):
            found.append((at, row[3] // 2 // 8 * 8))
    return found[:: len(found) // _MOST_NOTED + 1] + others
