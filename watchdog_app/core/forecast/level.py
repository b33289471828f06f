"""No forecast: for what comes to its limit as a matter of course, such as a card's power."""

from __future__ import annotations

from watchdog_app.core.forecast.outlook import Outlook
from watchdog_app.core.outlook import Caution, Regime

_STILL = 0.05  # of the limit


class LevelForecaster:
    """Says whether a series rises or falls, and never that it leads anywhere."""

    __slots__ = ("_mean", "_outlook")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._outlook = Outlook()

    def update(self, mono_s: float, used: float, limit: float) -> None:  # noqa: ARG002
        """Take a sample; times increase."""
        mean = used if self._mean is None else 0.9 * self._mean + 0.1 * used
        self._mean = mean
        falls = used < mean - _STILL * limit
        self._outlook = Outlook(Regime.FALLING if falls else Regime.FLAT)

    def heed(self, caution: Caution) -> None:
        """Nothing is foretold, with more or with less evidence."""

    def assess(self) -> Outlook:
        """The level, as of the last sample."""
        return self._outlook
