"""The forecaster: robust slopes on many time scales, with a memory for cycles."""

from __future__ import annotations

import math

from watchdog_app.core.forecast.outlook import Outlook
from watchdog_app.core.forecast.pyramid import BASE_S, LEVELS, Pyramid, sen_slope
from watchdog_app.core.forecast.segment import Segment
from watchdog_app.core.forecast.swings import Swings
from watchdog_app.core.outlook import Forecast, Regime

_CONCORDANCE = 0.6
_STILL = 0.5  # the last quarter must grow at this share of the slope
_STRICT_RHO = 1.5  # growth seen per room left, to tell a person
_EAGER_RHO = 1.0
_START_RHO = 6.0  # the same for growth that begins with the process: imports look like leaks
_START_S = 6.0
_SHORTEST_LEVEL = 3
_LATELY_S = 30.0
_GAP_S = 30.0


class TrendForecaster:
    """Forecast of one series."""

    __slots__ = (
        "_limit",
        "_look",
        "_new_t",
        "_outlook",
        "_pyramid",
        "_segment",
        "_start",
        "_swings",
        "_t",
        "_top",
        "_used",
    )

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pyramid = Pyramid()
        self._segment = Segment()
        self._swings = Swings()
        self._outlook = Outlook()
        self._start: float | None = None
        self._look = 0.0
        self._t = 0.0
        self._used = 0.0
        self._limit = 0.0
        self._top = -math.inf
        self._new_t = 0.0

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Take a sample; times increase."""
        if self._start is not None and mono_s - self._t > _GAP_S:
            self._reset()
        if self._start is None:
            self._start = mono_s
        passed = mono_s - self._t
        self._t, self._used, self._limit = mono_s, used, limit
        if used > self._top:
            if used > self._top + 0.002 * limit:
                self._new_t = mono_s
            self._top = used
        self._segment.add(mono_s, used, abs(self._top))
        self._swings.add(mono_s, used, 0.04 * limit)
        if self._pyramid.add(mono_s, used):
            self._think()
        else:
            self._age(passed)

    def assess(self) -> Outlook:
        """Where the series leads, as of the last sample."""
        return self._outlook

    def _age(self, passed: float) -> None:
        o = self._outlook
        f = o.forecast
        if f is not None:
            o.forecast = Forecast(
                max(0.0, f.eta_s - passed), max(0.0, f.low_s - passed), max(0.0, f.high_s - passed)
            )
        if o.strict_eta_s is not None:
            o.strict_eta_s = max(0.0, o.strict_eta_s - passed)
        if o.eager_eta_s is not None:
            o.eager_eta_s = max(0.0, o.eager_eta_s - passed)

    def _think(self) -> None:
        t, used, limit = self._t, self._used, self._limit
        ignore = 1e-5 * limit
        left_before = self._swings.was_left(t, used, 0.005 * limit, _LATELY_S)
        start = self._start if self._start is not None else t
        strict = eager = math.inf
        fastest = 0.0
        best: float | None = None
        slope_best = span_best = 0.0
        shortest: tuple[float, float, float] | None = None
        for level in range(LEVELS - 1, 1, -1):
            if len(self._pyramid.levels[level]) < 4:
                continue
            blocks = self._pyramid.window(level)
            if len(blocks) < 5:
                continue
            gain = blocks[-1][1] - blocks[0][1]
            if gain <= 50 * ignore:
                continue
            s_high, c_high = sen_slope([b[2] for b in blocks], [b[3] for b in blocks], ignore)
            s_low, c_low = sen_slope([b[0] for b in blocks], [b[1] for b in blocks], ignore)
            if s_high <= 0.0 or s_low <= 0.0:
                continue
            fastest = max(fastest, s_high)
            if c_high < _CONCORDANCE or c_low < _CONCORDANCE:
                continue
            slope = min(s_high, s_low) if s_high > 2 * s_low else 0.5 * (s_high + s_low)
            tail = blocks[-3:]
            recent = (tail[-1][3] - tail[0][3]) / max(1e-6, tail[-1][2] - tail[0][2])
            if recent < _STILL * slope:
                continue
            room = max(0.0, limit - max(used, tail[-1][3]))
            eta = room / slope
            if best is None and recent <= 1.7 * slope:
                best, slope_best, span_best = eta, slope, t - blocks[0][0]
            shortest = (eta, slope, t - blocks[0][0])
            if left_before or BASE_S * (1 << level) * len(blocks) < 0.8 * 8:
                continue
            early = blocks[0][0] - start < _START_S
            if gain >= (_START_RHO if early else _STRICT_RHO) * room:
                strict = min(strict, eta)
            if gain >= (0.5 * _START_RHO if early else _EAGER_RHO) * room:
                eager = min(eager, eta)
        if best is None and shortest is not None:
            best, slope_best, span_best = shortest
        line = self._segment.line()
        span = t - self._segment.origin
        if line and line[0] > 0.0 and line[2] > 4.0 and span > 3.0:
            slope = line[0]
            level_now = max(used, line[1] + slope * span)
            gain = level_now - self._segment.first
            room = max(0.0, limit - level_now)
            if gain > 50 * ignore:
                best, slope_best, span_best = room / slope, slope, span
                early = self._segment.origin - start < _START_S
                if not left_before and span >= 10.0 and gain >= _STRICT_RHO * room and not early:
                    strict = min(strict, best)
                if not left_before and gain >= (_START_RHO if early else _EAGER_RHO) * room:
                    eager = min(eager, best)
        strict, eager = self._near_the_end(strict, eager, left_before)
        regime = Regime.LINEAR if best is not None else Regime.FLAT
        if len(self._pyramid.levels[0]) < 6:
            regime = Regime.UNKNOWN
        self._outlook = Outlook(
            regime=regime,
            forecast=None if best is None else Forecast(best, 0.6 * best, 1.6 * best),
            slope_per_s=slope_best if best is not None else 0.0,
            span_s=span_best,
            fastest_per_s=max(fastest, slope_best),
            strict_eta_s=None if strict == math.inf else strict,
            eager_eta_s=None if eager == math.inf else eager,
            critical=used > 0.98 * limit and strict < 3.0,
        )

    def _near_the_end(self, strict: float, eager: float, left_before: bool) -> tuple[float, float]:
        """Add the last-chance rules: little room, new territory, still rising."""
        limit, used = self._limit, self._used
        room = max(0.0, limit - used)
        base = self._pyramid.levels[0]
        if len(base) < 5 or left_before or self._t - self._new_t > 4.0:
            return strict, eager
        then = base[-5]
        rate = (used - then[1]) / max(0.25, self._t - then[0])
        if rate <= 0.0:
            return strict, eager
        last_chance = room / rate
        # Growth that fills the second half in 5 s leaves 3 s at 70 % of the limit.
        if used > 0.65 * limit and last_chance < 3.5 and len(base) > 7:
            eager = min(eager, last_chance)
        if used > 0.85 * limit and last_chance < 10.0:
            eager = min(eager, last_chance)
        if used > 0.95 * limit and used - then[1] > 0.004 * limit:
            strict, eager = min(strict, last_chance), min(eager, last_chance)
        return strict, eager
