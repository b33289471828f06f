"""
When a rescue is copied anew of a training that is refused memory and trains on in what is left.

An allocation that fails can end it from within a library, and nobody is told before. What is lost
then is what it has done since the last copy: a tenth of the time that it went on for, or a quarter
of a second, or four times what a copy takes.
"""

from __future__ import annotations

from watchdog_app.airbag.policy import Stage

_LEAST_S = 0.25
_COSTS = 4.0  # times what a copy takes, in which everyone stands still
_SHARE = 0.1  # of the time since it is refused memory


class Renewal:
    """Of one bag."""

    def __init__(self) -> None:
        self._since: float | None = None  # it is refused memory
        self._copied = 0.0
        self._took_s = 0.0

    def due(self, now: float, stage: Stage) -> bool:
        """Whether it is to be copied again, at a boundary."""
        if stage is not Stage.REFUSING:
            self._since = None
            return False
        if self._since is None:
            self._since = self._copied = now
        wait_s = max(_LEAST_S, _COSTS * self._took_s, _SHARE * (now - self._since))
        return now - self._copied >= wait_s

    def copied(self, now: float, began: float) -> None:
        """A copy has ended, whatever came of it."""
        self._copied, self._took_s = now, now - began
