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

    def add_cost(self, began_s: float, ended_s: float) -> None:
        """That took so long."""
        self._left -= 1
        if self._left <= 0 and not self._always:
            self._next_s = ended_s + (ended_s - began_s) / _SHARE


class Record(ABC):
    """A training as it was before the step that runs; how, depends on the framework."""

    def __init__(self) -> None:
        self._small: Sequence[Any] = ()
        self._trained: Sequence[Any] = ()
        self._captured: tuple[Sequence[Any], Any] | None = None

    def set_variables(self, small: Sequence[Any], trained: Sequence[Any]) -> None:
        """
        The variables that the training has now.

        Args:
            small: statistics, seeds, counters, metrics.
            trained: weights and slots.
        """
        self._small, self._trained, self._captured = small, trained, None

    def stepped(self) -> None:  # noqa: B027 - where there is nothing to note
        """A step has ended."""

    def capture(self) -> None:
        """A step is about to begin."""
        self._captured = None  # frees, before more is taken
        self._captured = self._values(), self._marks()

    @property
    def is_captured(self) -> bool:
        """Whether there is one of the step that runs."""
        return self._captured is not None

    def weights_unchanged(self) -> bool:
        """Whether weights and slots are as before the step, as far as their marks tell."""
        return self._captured is not None and self._marks_equal(self._captured[1], self._marks())

    def restore(self) -> bool:
        """Statistics, seeds, counters and metrics as before the step; False: not gradients."""
        if self._captured is not None:
            for item, value in zip(self._small, self._captured[0], strict=True):
                self._assign(item, value)
        return True

    def drop_gradients(self) -> None:  # noqa: B027 - where variables hold none
        """Those of the step that failed are no part of the state."""

    def release(self) -> None:
        """The step is over: hold nothing that it may want to write to in place."""
        self._captured = None

    @abstractmethod
    def _values(self) -> Sequence[Any]:
        """The small ones, whole."""

    @abstractmethod
    def _marks(self) -> Any:
        """What tells whether weights and slots were written to."""

    @abstractmethod
    def _assign(self, item: Any, value: Any) -> None:
        """Give a small one the value that `_values` gave for it."""

    def _marks_equal(self, before: Any, now: Any) -> bool:
        """Whether two marks are of the same weights."""
        return bool(before == now)


def split_variables(
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
