"""
A record of what a training step may change: taken before it, restored after it has failed.

A step that runs out of memory in its forward pass has moved statistics, seeds, counters and
metrics, and has left the weights alone; one that fails while it applies gradients has torn them.
The former are copied; they are small. Of weights and slots only marks are kept, which show
whether they were written to.
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
    """Limits how often a record is taken, which costs 0.1 to 1 ms, to a share of the time."""

    def __init__(self, *, always: bool = False) -> None:
        """
        Args:
            always: before each step, whatever that costs.
        """
        self._always = always
        self._left = _FIRST_RECORDS
        self._next_s = 0.0  # asked at every step: one comparison, whatever the reason

    def due(self, now_s: float) -> bool:
        """Whether to take a record now."""
        return now_s >= self._next_s

    def add_cost(self, began_s: float, ended_s: float) -> None:
        """Add the time that a record took."""
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
        Set the variables that the training has now.

        Args:
            small: statistics, seeds, counters, metrics.
            trained: weights and slots.
        """
        self._small, self._trained, self._captured = small, trained, None

    def stepped(self) -> None:  # noqa: B027 - where there is nothing to note
        """A step has ended."""

    def capture(self) -> None:
        """Take the record of the step that is about to begin."""
        self._captured = None  # frees, before more is taken
        self._captured = self._values(), self._marks()

    @property
    def is_captured(self) -> bool:
        """Whether there is a record of the current step."""
        return self._captured is not None

    def weights_unchanged(self) -> bool:
        """Whether weights and slots are as before the step, as far as their marks tell."""
        return self._captured is not None and self._marks_equal(self._captured[1], self._marks())

    def restore(self) -> bool:
        """Restore statistics, seeds, counters and metrics; False if gradients are not restored."""
        if self._captured is not None:
            for item, value in zip(self._small, self._captured[0], strict=True):
                self._assign(item, value)
        return True

    def drop_gradients(self) -> None:  # noqa: B027 - where variables hold none
        """Delete the gradients of the step that failed."""

    def release(self) -> None:
        """Release the record: the next step may write to its tensors in place."""
        self._captured = None

    @abstractmethod
    def _values(self) -> Sequence[Any]:
        """Copies of the small variables."""

    @abstractmethod
    def _marks(self) -> Any:
        """Marks that change when weights and slots are written to."""

    @abstractmethod
    def _assign(self, item: Any, value: Any) -> None:
        """Set a small variable to the value from `_values`."""

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
