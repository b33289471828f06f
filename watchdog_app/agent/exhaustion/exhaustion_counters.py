"""
A Keras step on TensorFlow that ran out of memory while it fetched its batch: what it had moved.

Nothing that the batch goes into has run: weights, statistics and metrics are those of the step
before. But the graph counts the step and draws its random numbers beside the fetch, and may have
done so already. These counters grow by the same with each step, so that two looks at them tell
what they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from watchdog_app.agent.state.rows import MODEL, OPTIMIZER, Holding

_SEED = "seed_generator_state"  # as Keras calls them: a seed, and how often it was drawn from
_COUNT, _RATE = "/iteration", "/learning_rate"  # of optimizers; no step changes the second
_FETCH = ("[[IteratorGetNext", "[Op:IteratorGetNext")


def ran_out_in_fetch(error: BaseException) -> bool:
    """Whether TensorFlow says that it was the data of a step that did not come."""
    text = str(error)
    return any(each in text for each in _FETCH)


class StepCounters:
    """Of one fit. Steps are counted from wherever the caller likes."""

    def __init__(self) -> None:
        self._items: list[Holding] | None = None  # not known yet
        self._looks: list[tuple[int, list[Any]]] = []  # the last two: step, and what was there

    def of(self, variables: Iterable[Holding]) -> None:
        """The variables that the training has now; what was seen of others is forgotten."""
        items = list[Holding]()
        for each in variables:
            name = each.row[0].partition("~")[0]  # the second of a name
            alone = each.group == OPTIMIZER and each.row[2] == ()
            if (each.group == MODEL and name.endswith(_SEED)) or (alone and name.endswith(_COUNT)):
                items.append(each)
            elif alone and not name.endswith(_RATE):
                self._items = None  # what an optimizer does with it, nobody knows here
                return
        known = [id(each.holder) for each in self._items or ()]
        if self._items is None or known != [id(each.holder) for each in items]:
            self._items, self._looks = items, []

    def look(self, step: int) -> None:
        """This step is about to begin."""
        if self._items:
            self._looks = [*self._looks[-1:], (step, self._read())]

    def put_back(self, step: int) -> bool:
        """
        This step has failed: make them what they were before it.

        Returns:
            Whether that is certain. If not, they are left alone.
        """
        if self._items is None:
            return False
        if not self._items:
            return True
        if len(self._looks) < 2 or self._looks[1][0] > step:
            return False
        (first, earlier), (last, later) = self._looks
        before = []
        for then, seen, now in zip(earlier, later, self._read(), strict=True):
            each_step, rest = divmod(seen - then, last - first)
            expected = seen + each_step * (step - last)
            moved = np.array_equal(now, expected + each_step)
            if np.any(rest) or not (moved or np.array_equal(now, expected)):
                return False
            before.append(expected)
        for item, value in zip(self._items, before, strict=True):
            item.assign(np.asarray(value, item.row[1]))
        return True

    def _read(self) -> list[Any]:
        return [each.array().astype(np.int64) for each in self._items or ()]
