"""The forecaster: growth read on many time scales, weighed against innocent explanations."""

from __future__ import annotations

import math
from collections import deque

from watchdog_app.core.forecast import DEMAND, Outlook
from watchdog_app.core.forecast.evidence import (
    NOW_S,
    SWINGS,
    Thresholds,
    View,
    convincing_eta_s,
    forecast_interval,
    room_left,
)
from watchdog_app.core.forecast.scales import BASE_S, LEVELS, Scales
from watchdog_app.core.forecast.shape import LineFit, RegimeFilter, TurningPoints, classify_regime
from watchdog_app.core.forecast.trends import Trend, TrendKind, read_scale, read_turns
from watchdog_app.core.model.decisions import Caution, Regime

_GAP_S = 30.0  # nothing is known of what happened in a longer gap
_SHORTEST = 2  # scale; blocks of 1 s
_TURN = 0.04  # of the limit; smaller turns are noise
_IGNORE = 1e-5  # of the largest value seen
_MATTERS = 2e-3  # of the largest value seen: less growth than this is no trend
_FULL = 0.985  # of the limit: at the end, whatever the trend says
_LEAST_EVIDENCE = 0.02  # growth per room left; a forecast from less would be a guess
_LIKELY = 0.3  # growth per room left
_LATE = 0.65  # of the limit, where the last-chance rule begins
_LAST_BLOCKS = 8  # of the shortest scale: some 2 s
_LAST_GAIN = 0.02  # of the limit, in that time
_LAST_HORIZON_S = 12.0
_BURST_RATE = 0.13  # of the limit a second: faster growth is a burst ...
_TOP = 0.93  # ... until it is as high as this
_STARTING_S, _STARTING = 12.0, 2.0
_CRITICAL, _CRITICAL_GAIN, _CRITICAL_S = 0.98, 0.002, 3.0


# An eighth of a block's length, and a whole one.
_REREAD_S, _REREAD_AT_REST_S = (
    tuple(share * BASE_S * (1 << scale) - 0.01 for scale in range(LEVELS)) for share in (0.125, 1.0)
)
_OFTEN = 3  # times at its limit and away again: it lives there
_PAUSE_S, _PAUSES = 0.5, 16  # shortest pause in the growth, and how many are kept
_HIGHER = 1e-3  # of the largest value seen: less than that is no growth
_AGREES = 0.6  # concordance
_STILL, _JUMPS = 0.5, 1.7  # slope of the last third as a share of the whole
_YOUNG_LINE_S = 3.0
STRICT = Thresholds()
EAGER = Thresholds(
    span_s=22.0,
    late_span_s=10.0,
    evidence=1.7,
    late_evidence=1.3,
    horizon_s=math.inf,  # the cost of acting sets it
    recent_low=0.75,
    fast_evidence=1.4,
    fast_horizon_s=5.0,
    overwhelming=10.0,
)


class TrendForecaster:
    """Forecast of one series."""

    def __init__(self, strict: Thresholds = STRICT, eager: Thresholds = EAGER) -> None:
        self.strict, self.eager = strict, eager
        self._start: float | None = None
        self.thought = False  # the last sample led to a new reading
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
        self._top = 0.0
        self._lowest = math.inf
        self._high, self._high_t = -math.inf, math.inf
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_PAUSES)

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """
        Take a sample; times increase.

        Args:
            mono_s: when it was measured.
            used: in the resource's unit.
            limit: in the same unit.
        """
        if self._start is None:
            self._start = mono_s
        elif mono_s - self._t > _GAP_S:
            self._reset()
        passed = mono_s - self._t
        self._t, self._used, self._limit = mono_s, used, limit
        self._top = max(self._top, abs(used))
        if used > self._high:
            pause = mono_s - self._high_t
            if pause > _PAUSE_S:
                self._pauses.append((mono_s, pause))
            self._high, self._high_t = used + _HIGHER * self._top, mono_s
        self._line_fit.add(mono_s, used, self._top)
        self._turning_points.add(mono_s, used, _TURN * limit)
        self._lowest = min(self._lowest, used)
        self.thought = self._scales.add(mono_s, used)
        if self.thought:
            self._update_trends()
            self._update_outlook()
        else:
            self._outlook.age(passed)

    def set_caution(self, caution: Caution) -> None:
        """From now on ask for more or less evidence before growth counts as convincing."""
        factor = DEMAND[caution]
        self.strict, self.eager = STRICT.times(factor), EAGER.times(factor)

    def assess(self) -> Outlook:
        """Where the series leads, as of the last sample."""
        return self._outlook

    def trends(self) -> list[Trend]:
        """All growth that the series shows, longest scale first."""
        found = [c for level in reversed(self._trends) for c in level]
        if self._line is not None:
            found.append(self._line)
        return found

    def view(self) -> View:
        """The moment of the last sample."""
        start = self._t if self._start is None else self._start
        low_t, low = self._t, self._used
        for block in reversed(self._scales.levels[0]):
            if block[2] < self._t - NOW_S:
                break
            if block[1] < low:
                low_t, low = block[0], block[1]
        return View(
            self._t,
            self._used,
            self._limit,
            start,
            self._turning_points,
            low_t,
            low,
            self._t - self._high_t,
            self._pauses,
        )

    def _update_trends(self) -> None:
        """Update the trends, each scale as often as its blocks are long."""
        t, matters, ignore = self._t, _MATTERS * self._top, _IGNORE * self._top
        due, trends, levels, used = self._due, self._trends, self._scales.levels, self._used
        for scale in range(_SHORTEST, LEVELS):
            if t < due[scale]:
                continue
            whole = levels[scale]
            if len(whole) < 4:
                continue
            # A scale that shows no growth is looked at more rarely: rest has to be cheap.
            due[scale] = t + (_REREAD_S if trends[scale] else _REREAD_AT_REST_S)[scale]
            trends[scale] = []
            oldest = whole[0][3]
            if used - oldest <= matters and whole[-1][3] - oldest <= matters:
                continue
            blocks = self._scales.window(scale)
            if len(blocks) >= 5 and blocks[-1][3] - blocks[0][3] > matters:
                trends[scale] = read_scale(blocks, whole, scale, ignore)
        self._line = self._line_trend(matters)

    def _line_trend(self, matters: float) -> Trend | None:
        line = self._line_fit.line()
        span = self._t - self._line_fit.origin
        if line is None or span <= 2.0:
            return None
        slope, origin_value, certainty = line
        if certainty <= 4.0:
            return None
        level = max(self._used, origin_value + slope * span)
        gain = level - self._line_fit.first
        if gain <= matters:
            return None
        return Trend(
            TrendKind.LINE, -1, start_t=self._line_fit.origin, gain=gain, level=level, slope=slope
        )

    def _update_outlook(self) -> None:
        trends = self.trends()
        if not trends and self._used < _LATE * self._limit:
            self._outlook = Outlook(self._regime(grows=False), None)
            return
        view = self.view()
        was, used, limit = self._outlook, self._used, self._limit
        # What counts as a turn depends on the limit: good for an alarm, not for the forecast.
        turns = read_turns(self._turning_points.peaks, self._turning_points.troughs)
        if turns is not None:
            trends = [*trends, turns]
        # Cheap sieve: less growth than this convinces at no caution.
        likely = [c for c in trends if c.gain >= _LIKELY * (limit - max(used, c.level))]
        strict = self.soonest(likely, view, self.strict, was.strict_eta_s is not None)
        eager = self.soonest(likely, view, self.eager, was.eager_eta_s is not None)
        if self.is_full(view):
            strict = eager = 0.0
        if turns is not None:
            trends.pop()
        chosen = self.choose(trends)
        fastest = max((c.slope for c in trends), default=0.0)
        forecast = None
        if chosen is not None:
            room = room_left(chosen, view)
            if chosen.gain >= _LEAST_EVIDENCE * room:
                forecast = forecast_interval(chosen, trends, view)
        self._outlook = Outlook(
            regime=self._regime(grows=forecast is not None),
            forecast=forecast,
            slope_per_s=chosen.slope if chosen is not None and forecast is not None else 0.0,
            span_s=view.t - chosen.start_t if chosen is not None else 0.0,
            of_peaks=chosen is not None and chosen.kind is TrendKind.PEAKS,
            fastest_per_s=fastest,
            strict_eta_s=strict,
            eager_eta_s=eager,
            last_chance_s=self.last_chance(),
            critical=strict is not None and strict < _CRITICAL_S and self._is_filling(view),
        )

    def _regime(self, *, grows: bool) -> Regime:
        rise = self._used - self._lowest
        found = classify_regime(
            self._t, self._scales, self._turning_points, rise, self._limit, grows
        )
        return self._wording.update(self._t, found)

    @staticmethod
    def is_full(view: View) -> bool:
        """Whether the series is at its end, higher than where it often came and left again."""
        if view.used < _FULL * view.limit:
            return False
        return view.turning_points.visits((_FULL - _TURN) * view.limit, view.t).times < _OFTEN

    @staticmethod
    def soonest(trends: list[Trend], view: View, ask: Thresholds, convinced: bool) -> float | None:
        """Time to exhaustion by the most urgent trend that convinces, None when none does."""
        etas = (convincing_eta_s(trend, view, ask, convinced) for trend in trends)
        return min((eta for eta in etas if eta is not None), default=None)

    def choose(self, trends: list[Trend]) -> Trend | None:
        """
        The trend to forecast from, chosen without regard to the limit.

        Where the series swings, its rising peaks; else the present line; else
        the longest scale that still holds, so that more room never brings the end nearer.
        """
        shortest: Trend | None = None
        longest: Trend | None = None
        for trend in trends:
            if trend.kind is TrendKind.PEAKS:
                if (
                    trend.amplitude >= SWINGS
                    and trend.agreement >= STRICT.peaks_agreement
                    and trend.misfit <= STRICT.peaks_misfit
                    and trend.recent >= _STILL
                ):
                    return trend
            elif trend.kind is TrendKind.BOTH and trend.agreement >= _AGREES:
                if longest is None and _STILL <= trend.recent <= _JUMPS:
                    longest = trend
                if trend.recent >= _STILL:
                    shortest = trend
        line = self._line
        if line is not None and self._t - line.start_t > _YOUNG_LINE_S:
            return line
        return longest or shortest

    def _is_filling(self, view: View) -> bool:
        """At the limit and still rising: what sits there quietly may do so for days."""
        base = self._scales.levels[0]
        if view.used < _CRITICAL * view.limit or len(base) < _LAST_BLOCKS:
            return False
        return view.used - base[-_LAST_BLOCKS][1] >= _CRITICAL_GAIN * view.limit

    def last_chance(self) -> float | None:
        """
        Time to full by the last seconds' growth, when little room is left.

        Growth that takes 5 s from half full to full must not be missed for want
        of evidence; faster growth is a burst, and could not be answered anyway.
        """
        view, base = self.view(), self._scales.levels[0]
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
            eta *= _STARTING  # most that grows so fast so soon is loading: wait for half the room
        visits = view.turning_points.visits(view.used - 0.005 * view.limit, then[0])
        return None if visits.times else eta
