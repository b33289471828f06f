"""
Record the values that a training step may change, and restore them if the step fails.

A step that runs out of memory in its forward pass has changed statistics, seeds, counters and
metrics, but not the weights. A step that fails while it applies gradients leaves some weights old
and some new. The record copies the former values, which are small. Of weights and slots it keeps
only marks, which show whether the step has written to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

_SHARE = 0.001  # share of the time for records
# Records that do not count towards the share: a training that does not fit fails in these steps.
# More of them would slow short trainings down, and protect a state that took little time so far.
_FIRST_RECORDS = 10


class Pace:
    """Limits records, which take 0.1 to 1 ms each, to a share of the time."""

    def __init__(self, *, always: bool = False) -> None:
        """
        Args:
            always: whether to take a record before each step, at any cost.
        """
        self._always = always
        self._left = _FIRST_RECORDS
        self._next_s = 0.0  # time of the next record, so that each step needs one comparison only

    def due(self, now_s: float) -> bool:
        """Whether to take a record now."""
        return now_s >= self._next_s

    def add_cost(self, began_s: float, ended_s: float) -> None:
        """Add the time that a record took."""
        self._left -= 1
        if self._left <= 0 and not self._always:
            self._next_s = ended_s + (ended_s - began_s) / _SHARE


class Record(ABC):
    """The state of a training before the running step; each framework has its own subclass."""

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

    def stepped(self) -> None:  # noqa: B027 - most subclasses do nothing here
        """Handle the end of a step."""

    def capture(self, *, marks: bool = True) -> None:
        """
        Take the record of the step that is about to begin.

        Args:
            marks: whether `weights_unchanged` will be asked.
        """
        self._captured = None  # free the old record before the new one needs memory
        self._captured = self._values(), self._marks() if marks else None

    @property
    def is_captured(self) -> bool:
        """Whether there is a record of the current step."""
        return self._captured is not None

    def weights_unchanged(self) -> bool:
        """Whether weights and slots are as before the step, as far as their marks show."""
        return self._captured is not None and self._marks_equal(self._captured[1], self._marks())

    def restore(self) -> bool:
        """Restore statistics, seeds, counters and metrics; False if gradients are not restored."""
        if self._captured is not None:
            for item, value in zip(self._small, self._captured[0], strict=True):
                self._assign(item, value)
        return True

    def drop_gradients(self) -> None:  # noqa: B027 - TensorFlow variables hold no gradients
        """Delete the gradients of the step that failed."""

    def release(self) -> None:
        """Release the record, so that the next step can write to its tensors in place."""
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
        """Whether the weights did not change between two marks."""
        return bool(before == now)
