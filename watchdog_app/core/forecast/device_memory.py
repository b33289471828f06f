"""
Time until a graphics card's memory is full.

As for RAM, with two habits of frameworks told apart: TensorFlow takes nearly all of a
card within a second of its start and keeps it, which is no growth; and a card that is
nearly full and stays so is well used, while nearly full RAM is not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from watchdog_app.core.forecast.outlook import Forecaster, Outlook
from watchdog_app.core.forecast.trend import TrendForecaster
from watchdog_app.core.outlook import Caution, Regime

_LATELY_S = 6.0
_GRAB = 0.25  # of the limit within that time: taken as a whole
_BEYOND = 0.005  # of the limit: growth after that is growth
_FULL = 0.97
_RISES = 0.002  # of the limit, lately


class DeviceMemoryForecaster:
    """Forecast of one card's memory, or of one framework's part of it."""

    __slots__ = ("_grabbed", "_inner", "_limit", "_recent", "_used")

    def __init__(self) -> None:
        self._inner: Forecaster = TrendForecaster()
        self._recent: deque[tuple[float, float]] = deque()
        self._grabbed: float | None = None  # the level at which a grab has ended so far
        self._used = self._limit = 0.0

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Take a sample; times increase."""
        self._inner.update(mono_s, used, limit)
        self._used, self._limit = used, limit
        recent = self._recent
        recent.append((mono_s, used))
        while recent[0][0] < mono_s - _LATELY_S or len(recent) > 256:
            recent.popleft()
        if used - min(value for _, value in recent) > _GRAB * limit:
            self._grabbed = used
        elif self._grabbed is not None and used > self._grabbed + _BEYOND * limit:
            self._grabbed = None

    def heed(self, caution: Caution) -> None:
        """From now on ask for more or less evidence before growth counts as convincing."""
        self._inner.heed(caution)

    def assess(self) -> Outlook:
        """Where the series leads, as of the last sample."""
        outlook = self._inner.assess()
        rises = self._used - self._recent[0][1] > _RISES * self._limit if self._recent else False
        if self._grabbed is None and (rises or self._used < _FULL * self._limit):
            # Drivers and agents tell once a second or two: looking faster would show nothing.
            return replace(outlook, fastest_per_s=0.0)
        return replace(
            outlook,
            regime=outlook.regime if rises else Regime.FLAT,
            forecast=None,
            slope_per_s=0.0,
            fastest_per_s=0.0,
            strict_eta_s=None,
            eager_eta_s=None,
            last_chance_s=None,
            critical=False,
        )
