"""
When a rescue is copied that nothing has stopped for: near the limit beforehand, as nobody foretells
anything here, and anew of a training that is refused memory and trains on in what is left.

An allocation that fails can end it from within a library, and nobody is told before. What is lost
then is what it has done since the last copy: a tenth of the time that it went on for, or a quarter
of a second, or four times what a copy takes.
"""

from __future__ import annotations

from watchdog_app.guard.policy import Stage

_LEAST_S = 0.25
_COSTS = 4.0  # times what a copy takes, in which everyone stands still
_SHARE = 0.1  # of the time since it is refused memory
_NEAR_SHARE = 0.85  # of the limit: one copy beforehand
_AGAIN_S = 120.0
_MOST_TRIES = 25  # that come to nothing, until it has been away from its limit
_RETRY_S = 0.1  # longer with each that came to nothing: a disk that is full, a page that is refused


class Insurance:
    """A copy near the limit, of one guard."""

    def __init__(self) -> None:
        self._copied = self._tried = float("-inf")
        self._tries = 0

    def due(self, now: float, share: float, stage: Stage, agents: int) -> bool:
        """
        Whether it is near its limit, with an agent in it, and nothing was saved lately.

        Args:
            now: monotonic seconds.
            share: of its limit that it holds.
            stage: of the policy.
            agents: that publish themselves.
        """
        if share <= _NEAR_SHARE:
            self._tries = 0
            return False
        if stage is not Stage.CALM or not agents or self._tries >= _MOST_TRIES:
            return False
        return now - self._copied > _AGAIN_S and now - self._tried >= _RETRY_S * self._tries

    def tried(self, now: float) -> None:
        """A copy begins; it may come to nothing."""
        self._tries += 1
        self._tried = now

    def copied(self, now: float) -> None:
        """Every training was copied."""
        self._copied = now
        self._tries = 0


class Renewal:
    """Of one guard."""

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
