"""
Whether the driver may be asked at all: a laptop's sleeping card is left asleep.

Starting the driver's library wakes every card, and an open handle keeps one awake. So there is
no reader while all cards sleep; and where the kernel would power cards down and nobody uses
them, the reader goes away for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_app.sensors.gpu.pci import PciCard

UNUSED_S = 30.0
FIRST_AWAY_S = 60.0
LAST_AWAY_S = 600.0


class Repose:
    """Decides when the reader stays away."""

    def __init__(self) -> None:
        self._unused_since_mono_s: float | None = None
        self._away_until_mono_s: float | None = None
        self._away_s = FIRST_AWAY_S
        self._slept = False

    def may_read(self, cards: Sequence[PciCard], in_use: bool, now_mono_s: float) -> bool:
        """
        Whether a reader may run now.

        Args:
            cards: those on the bus; none: nobody can say, so nobody sleeps.
            in_use: somebody was on a card at the last reading.
            now_mono_s: now.
        """
        if cards and all(card.asleep for card in cards):
            self._slept = True
            return False
        if self._slept:
            # Somebody woke it: that is who we want to see.
            self._slept = False
            self._come_back()
            self._away_s = FIRST_AWAY_S
        if not cards or not all(card.may_sleep for card in cards):
            self._come_back()
            return True
        if self._away_until_mono_s is not None:
            if now_mono_s < self._away_until_mono_s:
                return False
            self._come_back()
        since = self._unused_since_mono_s
        if not in_use and since is not None and now_mono_s - since >= UNUSED_S:
            # It may be our own handle that keeps it awake; if not, ask less and less often.
            self._away_until_mono_s = now_mono_s + self._away_s
            self._away_s = min(self._away_s * 2, LAST_AWAY_S)
            return False
        return True

    def seen(self, now_mono_s: float, in_use: bool) -> None:
        """A reading has come in."""
        if in_use:
            self._unused_since_mono_s = None
            self._away_s = FIRST_AWAY_S
        elif self._unused_since_mono_s is None:
            self._unused_since_mono_s = now_mono_s

    def _come_back(self) -> None:
        self._away_until_mono_s = None
        self._unused_since_mono_s = None
