"""
What a training step may have changed when it fails: kept before it, compared and put back after.

A step that runs out of memory in its forward pass has moved statistics, seeds, counters and
metrics, and has left the weights alone; one that fails while it applies gradients has torn them.
The former are kept whole; they are small. Of weights and slots only marks are kept, which tell
whether they were touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from watchdog_app.agent.state.rows import OPTIMIZER, NamedVariable

_SHARE = 0.001  # of the time may go into records
# Are free: a training that does not fit ends there. More of them make a short one slower, and save
# the last digits of a state that has cost nothing yet.
_FIRST_RECORDS = 10


class Pace:
    """When to keep a record, which costs 0.1 to 1 ms: it takes its share of the time, no more."""

    def __init__(self, *, always: bool = False) -> None:
        """
        Args:
            always: before each step, whatever that costs.
        """
        self._always = always
        self._left = _FIRST_RECORDS
        self._next_s = 0.0  # asked at every step: one comparison, whatever the reason

    def due(self, now_s: float) -> bool:
        """Whether to keep one now."""
        return now_s >= self._next_s

    def took(self, began_s: float, ended_s: float) -> None:
        """That took so long."""
        self._left -= 1
        if self._left <= 0 and not self._always:
            self._next_s = ended_s + (ended_s - began_s) / _SHARE


class Record(ABC):
    """A training as it was before the step that runs; how, depends on the framework."""

    def __init__(self) -> None:
        self._small: Sequence[Any] = ()
        self._trained: Sequence[Any] = ()
        self._kept: tuple[Sequence[Any], Any] | None = None

    def of(self, small: Sequence[Any], trained: Sequence[Any]) -> None:
        """
        The variables that the training has now.

        Args:
            small: statistics, seeds, counters, metrics.
            trained: weights and slots.
        """
        self._small, self._trained, self._kept = small, trained, None

    def stepped(self) -> None:  # noqa: B027 - where there is nothing to note
        """A step has ended."""

    def take(self) -> None:
        """A step is about to begin."""
        self._kept = None  # frees, before more is taken
        self._kept = self._values(), self._marks()

    @property
    def taken(self) -> bool:
        """Whether there is one of the step that runs."""
        return self._kept is not None

    def untouched(self) -> bool:
        """Whether weights and slots are as before the step, as far as their marks tell."""
        return self._kept is not None and self._same(self._kept[1], self._marks())

    def put_back(self) -> bool:
        """Statistics, seeds, counters and metrics as before the step; False: not gradients."""
        if self._kept is not None:
            for item, value in zip(self._small, self._kept[0], strict=True):
                self._set(item, value)
        return True

    def drop_gradients(self) -> None:  # noqa: B027 - where variables hold none
        """Those of the step that failed are no part of the state."""

    def let_go(self) -> None:
        """The step is over: hold nothing that it may want to write to in place."""
        self._kept = None

    @abstractmethod
    def _values(self) -> Sequence[Any]:
        """The small ones, whole."""

    @abstractmethod
    def _marks(self) -> Any:
        """What tells whether weights and slots were written to."""

    @abstractmethod
    def _set(self, item: Any, value: Any) -> None:
        """Give a small one the value that `_values` gave for it."""

    def _same(self, before: Any, now: Any) -> bool:
        """Whether two marks are of the same weights."""
        return bool(before == now)


def split(
    variables: Sequence[NamedVariable], weights: Sequence[int]
) -> tuple[list[NamedVariable], list[NamedVariable]]:
    """
    The small variables of a training, and those that an optimizer writes to.

    Args:
        variables: all of them.
        weights: positions of those that gradients are applied to.
    """
    small, trained = list[NamedVariable](), list[NamedVariable]()
    for index, item in enumerate(variables):
        slot = item.group == OPTIMIZER and item.row[2] != ()
        (trained if slot or index in weights else small).append(item)
    return small, trained
