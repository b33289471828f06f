"""The main forecaster: growth on many time scales, tested against harmless explanations."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from watchdog_app.core.forecast import DEMAND, Forecaster, Outlook
from watchdog_app.core.forecast.evidence import (
    MISFIT,
    NOW_S,
    SWINGS,
    Rule,
    View,
    convincing_eta_s,
    forecast_interval,
    read_claims,
    room_left,
)
from watchdog_app.core.forecast.scales import BASE_S, LEVELS, Block, Scales
from watchdog_app.core.forecast.shape import LineFit, RegimeFilter, TurningPoints, classify_regime
from watchdog_app.core.forecast.trends import BOTH, LINE, PEAKS, Trend, read_scale, read_turns
from watchdog_app.core.model.decisions import Caution, Regime

_GAP_S = 30.0  # after a longer gap the old samples say nothing about the trend
_SHORTEST = 2  # index of the shortest scale for trends: blocks of 1 s
_TURN = 0.04  # of the limit: smaller turns are noise
_IGNORE = 1e-5  # of the largest value so far: smaller differences are ignored
_MATTERS = 2e-3  # of the largest value so far: less growth is not a trend
_FULL = 0.985  # of the limit: from here the series is full, regardless of the trend
_LEAST_EVIDENCE = 0.02  # growth per room left: a forecast from less would be a guess
_SHOWN = 0.15  # growth per room left: less is not shown at any caution
_LATE = 0.65  # of the limit: start of the last-chance rule
_LAST_BLOCKS = 8  # blocks of the base scale for the last-chance rule: about 2 s
_LAST_GAIN = 0.02  # of the limit: least growth over these blocks
_LAST_HORIZON_S = 12.0
_BURST_RATE = 0.13  # of the limit per second: faster growth is a burst, if below _TOP
_TOP = 0.93  # of the limit
_STARTING_S, _STARTING = 12.0, 1.4
_CRITICAL, _CRITICAL_GAIN, _CRITICAL_S = 0.98, 0.002, 3.0
# Intervals for reading a scale: with a trend an eighth of a block, without one a whole block.
_REREAD_S, _REREAD_AT_REST_S = (
    tuple(share * BASE_S * (1 << scale) - 0.01 for scale in range(LEVELS)) for share in (0.125, 1.0)
)
_OFTEN = 3  # visits to the limit after which being full is normal for the series
_PAUSE_S, _PAUSES = 0.5, 16  # shortest recorded pause in the growth, and the number kept
_HIGHER = 1e-3  # of the largest value so far: a smaller rise is not a new maximum
_AGREES, _PEAKS_AGREE = 0.6, 0.8  # least concordance of a trend, of peaks to forecast from
_STILL, _JUMPS = 0.5, 1.7  # bounds for the slope of the last third per mean slope
_YOUNG_LINE_S = 3.0
# The rules of each tier. Straight growth convinces earlier, from less evidence. Fast growth needs
# a shorter span, but must begin late and rise far above earlier peaks.
STRICT = (
    Rule(25.0, 15.0, 2.6, 1.3, horizon_s=15.0, level=0.7),
    Rule(
        30.0, 26.0, 2.6, 0.8, horizon_s=36.0, share=0.25, level=0.55,
        agreement=0.98, recent_low=0.9, recent_high=1.3,
    ),
    Rule(6.0, 6.0, 1.4, 1.4, horizon_s=4.8, age_s=30.0, level=0.7, novelty=0.1),
    Rule(3.0, 3.0, 13.0, 13.0, horizon_s=math.inf),
)  # fmt: skip
EAGER = (
    # The cost of a save sets the horizon.
    Rule(22.0, 12.0, 1.7, 1.3, horizon_s=math.inf),
    Rule(28.0, 14.0, 1.0, 0.4, horizon_s=45.0, agreement=0.95, recent_high=1.3),
    replace(STRICT[2], horizon_s=5.0, level=0.0),
    Rule(3.0, 3.0, 10.0, 10.0, horizon_s=math.inf),
)
# For programs that ran out of memory before or need more than ever.
EARLY = (*STRICT, Rule(20.0, 15.0, 0.8, 0.8, horizon_s=60.0, agreement=0.95))
# Shown on the screens only, as a colour and a sentence.
HEADS_UP = (Rule(10.0, 6.0, 0.2, 0.2, horizon_s=200.0, recent_low=0.7),)


class TrendForecaster(Forecaster):
    """Forecasts one series from its trends."""

    def __init__(self) -> None:
        self.set_caution(Caution.NORMAL)
        self._start: float | None = None
        self.thought = False  # whether the last sample updated the trends
        self._reset()
        self._t = self._used = self._limit = 0.0

    def _reset(self) -> None:
        self._scales = Scales()
        self._line_fit = LineFit()
        self._turning_points = TurningPoints()
        self._wording = RegimeFilter()
        self._outlook = Outlook()
        self._trends: list[list[Trend]] = [[] for _ in range(LEVELS)]
        self._line: Trend | None = None
        self._due = [0.0] * LEVELS
        self._newest: list[tuple[Block, Block] | None] = [None] * LEVELS
        self._top = 0.0
        self._lowest = math.inf
        self._high, self._high_t = -math.inf, math.inf
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_PAUSES)

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """
        Add a sample.

        Args:
            mono_s: time of the sample, later than the last one.
            used: level in the resource's unit.
            limit: limit in the same unit.
        """
        if self._start is None:
            self._start = mono_s
        elif mono_s - self._t > _GAP_S:
            self._reset()
        passed = mono_s - self._t
        self._t, self._used, self._limit = mono_s, used, limit
        if used > self._top or -used > self._top:
            self._top = abs(used)
        if used > self._high:
            pause = mono_s - self._high_t
            if pause > _PAUSE_S:
                self._pauses.append((mono_s, pause))
            self._high, self._high_t = used + _HIGHER * self._top, mono_s
        self._line_fit.add(mono_s, used, self._top)
        self._turning_points.add(mono_s, used, _TURN * limit)
        self._lowest = used if used < self._lowest else self._lowest
        self.thought = self._scales.add(mono_s, used)
        if self.thought:
            self._update_trends()
            self._update_outlook()
        else:
            self._outlook.age(passed)

    def set_caution(self, caution: Caution) -> None:
        """Set how much evidence growth needs from now on."""
        tiers = (STRICT, EARLY, EAGER, HEADS_UP)
        self.strict, self.asked_early, self.eager, self.heads_up = (
            tuple(rule.times(DEMAND[caution]) for rule in rules) for rules in tiers
        )

    def trends(self) -> list[Trend]:
        """All trends of the series, longest scale first."""
        found = [c for level in reversed(self._trends) for c in level]
        if self._line is not None:
            found.append(self._line)
        return found

    def view(self) -> View:
        """The state of the series at the last sample."""
        low_t, low = self._t, self._used
        for block in reversed(self._scales.levels[0]):
            if block[2] < self._t - NOW_S:
                break
            if block[1] < low:
                low_t, low = block[0], block[1]
        t, start = self._t, self._t if self._start is None else self._start
        still_s, turning_points = t - self._high_t, self._turning_points
        return View(
            t, self._used, self._limit, start, turning_points, low_t, low, still_s, self._pauses
        )

    def _update_trends(self) -> None:
        """Update the trends; a scale with longer blocks is updated less often."""
        t, matters, ignore = self._t, _MATTERS * self._top, _IGNORE * self._top
        due, trends, levels, used = self._due, self._trends, self._scales.levels, self._used
        for scale in range(_SHORTEST, LEVELS):
            if t < due[scale]:
                continue
            whole = levels[scale]
            if len(whole) < 4:
                continue
            # Read a scale without growth less often, so that idle series cost little.
            due[scale] = t + (_REREAD_S if trends[scale] else _REREAD_AT_REST_S)[scale]
            oldest = whole[0][3]
            if used - oldest <= matters and whole[-1][3] - oldest <= matters:
                trends[scale], self._newest[scale] = [], None
                continue
            blocks = self._scales.window(scale)
            newest = whole[-1], blocks[-1]
            if newest == self._newest[scale]:
                continue  # the same blocks show the same trends
            self._newest[scale] = newest
            trends[scale] = []
            if len(blocks) >= 5 and blocks[-1][3] - blocks[0][3] > matters:
                trends[scale] = read_scale(blocks, whole, scale, ignore)
        self._line = self._line_trend(matters)

    def _line_trend(self, matters: float) -> Trend | None:
        line = self._line_fit.line()
        span = self._t - self._line_fit.origin
        if line is None or line[2] <= 4.0 or span <= 2.0:
            return None
        slope, origin_value, _ = line
        level = origin_value + slope * span
        level = level if level > self._used else self._used
        gain = level - self._line_fit.first
        if gain <= matters:
            return None
        return Trend(LINE, self._line_fit.origin, gain, level, slope)

    def _update_outlook(self) -> None:
        trends = self.trends()
        if not trends and self._used < _LATE * self._limit:
            self._outlook = Outlook(self._regime(grows=False), None)
            return
        view = self.view()
        was = self._outlook
        # Turning points depend on the limit: use their trend for alarms, not for the forecast.
        turns = read_turns(self._turning_points.peaks, self._turning_points.troughs)
        alarming = trends if turns is None else [*trends, turns]
        claims = read_claims(alarming, view, _SHOWN)
        ask = self.asked_early if self.early else self.strict
        strict = convincing_eta_s(claims, view, ask, was.strict_eta_s is not None)
        eager = convincing_eta_s(claims, view, self.eager, was.eager_eta_s is not None)
        heads_up = eager if strict is None else strict
        if heads_up is None:
            was_shown = was.heads_up_eta_s is not None
            heads_up = convincing_eta_s(claims, view, self.heads_up, was_shown)
        if self.is_full(view):
            strict = eager = heads_up = 0.0
        chosen = self.choose(trends)
        forecast = None
        if chosen is not None and chosen.gain >= _LEAST_EVIDENCE * room_left(chosen, view):
            forecast = forecast_interval(chosen, trends, view)
        outlook = self._outlook = Outlook(self._regime(grows=forecast is not None), forecast)
        if chosen is not None:
            outlook.slope_per_s = 0.0 if forecast is None else chosen.slope
            outlook.span_s = view.t - chosen.start_t
            outlook.of_peaks = chosen.kind is PEAKS
        outlook.fastest_per_s = max([trend.slope for trend in trends], default=0.0)
        outlook.strict_eta_s, outlook.eager_eta_s, outlook.heads_up_eta_s = strict, eager, heads_up
        outlook.last_chance_s = self.last_chance(view)
        outlook.critical = strict is not None and strict < _CRITICAL_S and self._is_filling(view)

    def _regime(self, *, grows: bool) -> Regime:
        rise = self._used - self._lowest
        found = classify_regime(
            self._t, self._scales, self._turning_points, rise, self._limit, grows
        )
        return self._wording.update(self._t, found)

    @staticmethod
    def is_full(view: View) -> bool:
        """Whether the series is full, and not at a level that it often reaches and leaves."""
        if view.used < _FULL * view.limit:
            return False
        return view.turning_points.visits((_FULL - _TURN) * view.limit, view.t).times < _OFTEN

    def choose(self, trends: list[Trend]) -> Trend | None:
        """
        The trend to forecast from, independent of the limit.

        If the series swings, its rising peaks; else the present line; else the longest scale that
        still grows. The limit does not matter, so more room never makes the time shorter.
        """
        shortest: Trend | None = None
        longest: Trend | None = None
        for trend in trends:
            if trend.kind is PEAKS:
                goes_on = trend.misfit <= MISFIT and trend.recent >= _STILL
                if goes_on and trend.amplitude >= SWINGS and trend.agreement >= _PEAKS_AGREE:
                    return trend
            elif trend.kind is BOTH and trend.agreement >= _AGREES:
                if longest is None and _STILL <= trend.recent <= _JUMPS:
                    longest = trend
                if trend.recent >= _STILL:
                    shortest = trend
        line = self._line
        if line is not None and self._t - line.start_t > _YOUNG_LINE_S:
            return line
        return longest or shortest

    def _is_filling(self, view: View) -> bool:
        """At the limit and still rising; a level series can stay there for days."""
        base = self._scales.levels[0]
        if view.used < _CRITICAL * view.limit or len(base) < _LAST_BLOCKS:
            return False
        return view.used - base[-_LAST_BLOCKS][1] >= _CRITICAL_GAIN * view.limit

    def last_chance(self, view: View) -> float | None:
        """
        Time to full at the growth of the last seconds; None unless little room is left.

        Growth from half full to full in 5 s must not be missed for lack of evidence. Faster growth
        is a burst, and leaves no time to react.
        """
        base = self._scales.levels[0]
        if view.used < _LATE * view.limit or len(base) < _LAST_BLOCKS:
            return None
        then, half = base[-_LAST_BLOCKS], base[-_LAST_BLOCKS // 2]
        gain = view.used - then[1]
        rate = gain / max(BASE_S, view.t - then[0])
        lately = (view.used - half[1]) / max(BASE_S, view.t - half[0])
        if gain < _LAST_GAIN * view.limit or lately < _AGREES * rate:
            return None
        rate = max(rate, lately)
        if rate > _BURST_RATE * view.limit and view.used < _TOP * view.limit:
            return None
        eta = max(0.0, view.limit - view.used) / rate
        if eta > _LAST_HORIZON_S:
            return None
        if view.t - view.start_t < _STARTING_S:
            eta *= _STARTING  # so early, fast growth is mostly loading: wait for half the room
        visits = view.turning_points.visits(view.used - 0.005 * view.limit, then[0])
        return None if visits.times else eta
