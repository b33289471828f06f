"""
What of a fit's description is another with each batch, at the cost of a few comparisons.

`FitState.changing` makes all of it anew. Within an epoch little of that changes, and in a few
known places: where it stands, what its metrics say, random numbers. What an epoch changes beside
them is told once. Where anything else can have changed there are no batch values, and the
description is made as ever.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from watchdog_app.agent.fit import callback_state
from watchdog_app.agent.loops import randomness, raw_random
from watchdog_app.agent.published.news import news
from watchdog_app.airbag.increments import FINITE, NUMBER, TRUTH, WHOLE
from watchdog_app.airbag.table import News

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.fit.fit_state import FitState

Path = tuple[str | int, ...]

_NUMBERS: list[tuple[Path, int | None]] = [
    (("random", "python", 1), 625),
    (("random", "numpy", 1), 624),
    (("random", "numpy", 2), None),
]
_KNOWN_RANDOM = {"python", "numpy", "tensorflow_seed", "tensorflow_rng"}
_NONE = float("nan")
_LONGEST_TEXT = 4096


class Unknown(Exception):
    """Something else of this fit may change with each batch."""


class Draws:
    """The global random numbers of a fit, taken again only where some were drawn."""

    def __init__(self) -> None:
        try:
            self._raw: raw_random.RawRandom | None = raw_random.RawRandom()
        except raw_random.Unknown:
            self._raw = None
        self._seen: tuple[Any, ...] | None = None
        self._taken: randomness.State = {}

    def take(self, take: Callable[[], randomness.State]) -> randomness.State:
        """What `take` gives: the same object where nothing was drawn."""
        raw = self._raw
        if raw is None:
            return take()
        seen = (raw.sketch(), repr(raw.spare()), raw_random.tensorflow_draws())
        if seen != self._seen:
            self._taken = take()
            known = not self._taken.keys() - _KNOWN_RANDOM
            self._seen = seen if known else None
        return self._taken


class BatchValues:
    """Of one fit, from a description on that was made at one of its boundaries."""

    def __init__(self, state: FitState, meta: Mapping[str, Any], also: Sequence[str]) -> None:
        """
        Args:
            state: of the fit.
            meta: as it was described now.
            also: names of numbers beside the fit's own, at the top of the meta.

        Raises:
            Unknown: not all that changes is known, or it is told in another way.
        """
        if meta["random"].keys() - _KNOWN_RANDOM:
            raise Unknown
        self._counts = callback_state.counts(state.callbacks)
        if self._counts is None:
            raise Unknown
        try:
            self._random = raw_random.RawRandom()
        except raw_random.Unknown as error:
            raise Unknown from error
        self._state = state
        self._also = tuple(also)
        self._logs = tuple(meta["logs"])
        self._meta = meta
        labels = [each["callback"] for each in meta["callbacks"]]
        self._own: list[tuple[Path, Any, Any]] = []
        for label, one in callback_state.own_states(state.callbacks):
            place = labels.index(label) if label in labels else -1
            if place < 0 or "state" not in meta["callbacks"][place]:  # it could not be taken
                raise Unknown
            said = meta["callbacks"][place]["state"]
            self._own.append((("callbacks", place, "state"), one, said))
        self.values: list[tuple[Path, str]] = [
            (("position", "next_batch"), WHOLE),
            (("position", "epoch_done"), TRUTH),
            (("position", "callbacks_to_hear"), TRUTH),
            (("random", "numpy", 3), WHOLE),
            *(
                (("callbacks", labels.index(label), "fields", name), WHOLE)
                for label, _, name in self._counts
            ),
            (("random", "python", 2), FINITE),
            (("random", "numpy", 4), NUMBER),
            *(((name,), FINITE) for name in self._also),
            *((("logs", name), NUMBER) for name in self._logs),
        ]
        self.numbers = _NUMBERS
        whole = 4 + len(self._counts)
        self._pack = struct.Struct(f"<{whole}q{len(self.values) - whole}d").pack
        self._mark: tuple[Any, ...] | None = None
        self._drawn: tuple[int, ...] = ()
        self._not_yet_ahead = False
        self._news: list[News] = []  # since the description was made
        self._said = b""  # the same as JSON
        self._fit: tuple[Any, ...] = ()

    def published(self) -> bool:
        """The whole was told just now: later values are told from here; whether they can be."""
        self._drawn = self._random.sketch()
        return self._epoch(self._at())

    def take(self, also: Mapping[str, float | None]) -> tuple[bytes, bytes, bytes] | None:
        """
        The values now, the numbers where they are others, and JSON of what else is another.

        None where the whole is to be told.

        Args:
            also: those of that name.
        """
        state = self._state
        if not state.whole_epoch:
            return None
        at = self._at()
        if at != self._mark and (at[0] != self._fit or not self._epoch(at)):
            return None
        logs = state.logs
        if tuple(logs) != self._logs:
            return None
        numbers = b""
        if self._random.sketch() != self._drawn:
            if self._not_yet_ahead:
                return None
            numbers = self._random.words()
        course = state.course
        spare, there, number = self._random.spare()
        try:
            values = self._pack(
                course.next_batch,
                course.last_batch_trained,
                course.callbacks_to_hear,
                there,
                *[getattr(one, name) for _, one, name in self._counts or ()],
                _NONE if spare is None else spare,
                number,
                *[_NONE if (each := also[name]) is None else each for name in self._also],
                *logs.values(),
            )
        except (struct.error, KeyError):  # a log that is no number
            return None
        try:
            return values, numbers, self._text()
        except Exception:  # of a callback's own: it is told where the whole is taken
            return None

    def _epoch(self, at: tuple[Any, ...]) -> bool:
        """Another epoch: what is another throughout it; whether all of that can be told."""
        state = self._state
        found = state.of_epoch() if state.whole_epoch and tuple(state.logs) == self._logs else None
        self._mark = None
        if found is None:
            return False
        # Where the data draws ahead of the training a rescue does not give random numbers back, as
        # soon as they are others than when the epoch began.
        ahead = state.drawn_ahead()
        self._not_yet_ahead = ahead is False
        found["restore_python_random"] = not ahead
        self._news = [
            each for key, now in found.items() for each in news(self._meta[key], now, (key,))
        ]
        self._fit, self._mark = at[0], at
        self._said = json.dumps(self._news).encode("ascii") if self._news else b""
        return len(self._said) <= _LONGEST_TEXT

    def _text(self) -> bytes:
        """Of callbacks that give a state of themselves: it is asked each time."""
        if not self._own:
            return self._said
        now = [(path, callback_state.own_state(one)) for path, one, _ in self._own]
        if all(value == said for (_, value), (_, _, said) in zip(now, self._own, strict=True)):
            return self._said
        return json.dumps([*self._news, *now]).encode("ascii")

    def _at(self) -> tuple[Any, ...]:
        course, model = self._state.course, self._state.model
        return (
            (model.train_function, model.optimizer, raw_random.tensorflow_draws()),
            course.epoch,
            len(course.ended),
        )
