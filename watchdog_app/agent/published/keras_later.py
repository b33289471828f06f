"""
A Keras fit on TensorFlow: each of its steps told in a few hundred bytes.

Where all tensors lie is told by the words of memory that say so (`tensorflow_places`), which stay;
what they say now is noted with each step, and with it the numbers that a step counts before it
changes anything (`tensorflow_mark`). As long as these words are the same, the tensors are what
they were when the step had returned, but for what somebody else writes into a weight where it lies:
a callback that steps an optimizer of its own, or trains another model of the same layers. So an
element of each weight is noted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from watchdog_app.agent.fit import batch_values
from watchdog_app.agent.fit.fit_state import FitState
from watchdog_app.agent.published import tensorflow_mark, tensorflow_places
from watchdog_app.agent.published.contents import Contents
from watchdog_app.agent.published.tensorflow_places import Buffers, Moving, Places
from watchdog_app.agent.saving.rows import OPTIMIZER
from watchdog_app.airbag import increments
from watchdog_app.airbag.foreign_memory import Gathering

_MOST_NOTED = 256  # of more weights some are left out: whoever changes one most often changes all


class Unknown(Exception):
    """Later boundaries can only be told whole."""


class KerasLater:
    """See `guards.Later`."""

    def __init__(
        self,
        fit: FitState,
        meta: Mapping[str, Any],
        contents: Contents,
        also: Sequence[str],
        waits: Callable[[], bool],
    ) -> None:
        """
        Args:
            fit: that is published.
            meta, contents: as they are being published whole.
            also: see `BatchValues`.
            waits: whether its steps write nothing before their data has come.

        Raises:
            Unknown: of some of this it is not known where it lies, or what changes.
            OSError: as `Gathering`.
        """
        variables = fit.variables()
        held = {item.name: item.holder for item in variables}
        trained = {item.name for item in variables if item.group != OPTIMIZER}
        noted = [
            (at, row[3] // 2 // 8 * 8)
            for at, row in enumerate(contents.rows)
            if row[0] in trained and row[3] >= 2 * increments.NOTED_BYTES
        ]
        noted = noted[:: len(noted) // _MOST_NOTED + 1]
        try:
            tensors = Places([held[row[0]] for row in contents.rows])
            weights = Places([held[contents.rows[at][0]] for at, _ in noted])
            counters = Places([tensorflow_mark.APPLIED.variable, tensorflow_mark.ARRIVED.variable])
            self._values = batch_values.BatchValues(fit, meta, also)
        except (KeyError, tensorflow_places.Unknown, batch_values.Unknown) as error:
            raise Unknown from error
        self._fit = fit
        self._waits = waits
        self._buffers = Buffers(tensors)
        self._large = [
            (at, address)
            for at, address in zip(
                (at for at, row in enumerate(contents.rows) if row[4] is None),
                (address for _name, address, _nbytes in contents.large),
                strict=True,
            )
        ]
        self._counted = Buffers(counters)
        self._counters = [int(each) for each in self._counted.addresses()]
        self._compare(contents)
        words = [*tensors.words, *counters.words, *self._counters]
        self._words = Gathering([(each, 8) for each in words])
        self._weights = Buffers(weights)
        self._offsets = np.array([offset for _, offset in noted], np.uint64)
        self._noted = Moving([increments.NOTED_BYTES] * len(noted))
        self.plan = increments.plan(
            self._values.values,
            self._values.numbers,
            tensors.words,
            words[len(tensors.words) :],
            tensors.hop,
            noted,
        )

    def published(self) -> bool:
        """See `guards.Later`."""
        same = self._counters == [int(each) for each in self._counted.addresses()]
        return same and self._waits() and self._values.published()

    def now(self) -> bool:
        """See `guards.Later`: not in a validation."""
        return self._fit.whole_epoch

    def take(self, also: Mapping[str, Any]) -> bytes | None:
        """See `guards.Later`."""
        found = self._values.take(also)
        if found is None:
            return None
        values, numbers, text = found
        elements = self._noted.take(self._weights.addresses() + self._offsets)
        words = b"".join((self._words.take(), elements))
        return increments.body(values, words, numbers, text)

    def _compare(self, contents: Contents) -> None:
        """
        Whether what is known of memory is what TensorFlow has said just now.

        Raises:
            Unknown: it is not.
        """
        addresses = self._buffers.addresses()
        if any(int(addresses[at]) != address for at, address in self._large):
            raise Unknown
        small = [(at, row) for at, row in enumerate(contents.rows) if row[4] is not None and row[3]]
        taken = bytes(Gathering([(int(addresses[at]), row[3]) for at, row in small]).take())
        at = 0
        for _, (_name, _dtype, _shape, nbytes, offset) in small:
            if taken[at : at + nbytes] != contents.values[offset or 0 :][:nbytes]:
                raise Unknown
            at += nbytes
