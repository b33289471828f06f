"""
When growth is evidence enough, and how sure a forecast is.

Most growth is innocent: loading, warm-up, a burst, one tooth of a sawtooth, a
cache that fills. Each rule here rules one of these out, and a trend has to pass
all of them. How well the thresholds carry over: `bench/forecast_fit.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from watchdog_app.core.forecast.shape import TurningPoints
from watchdog_app.core.forecast.trends import Trend, TrendKind
from watchdog_app.core.model.decisions import Forecast

_LATELY_S = 60.0
_SLACK = 0.005  # of the limit: the same level
_JUMP = 0.25  # of the gain: a rise above the claimed growth is not part of it
NOW_S = 2.0  # the last moments
SWINGS = 0.25  # height of the swings as a share of the growth, from which on they are a habit
_TALL = 3.0  # ... and from which on the growth is lost in them
_OFF_LINE = 0.05  # of the gain: a line that lies so far above the value has ended
_PAUSE_S, _PAUSES = 1.0, 1.5  # a pause may be longer than all before by so much, and so many times
_GLIMPSE_S = 3.0
_FULL_SLACK = 0.005  # of the limit: keeps the evidence finite when there is no room left


@dataclass(frozen=True, slots=True)
class Thresholds:
    """
    What a tier asks of growth.

    `evidence` is growth seen per room left: nothing is extrapolated further
    than in proportion to what was seen.
    """

    span_s: float = 25.0  # growth that began with the process: loading is over sooner
    late_span_s: float = 14.0  # growth that began later: bursts are over sooner
    late_evidence: float = 1.3
    young_s: float = 10.0  # what begins within this time began with the process
    evidence: float = 2.6
    horizon_s: float = 18.0
    agreement: float = 0.85
    recent_low: float = 0.7  # slower at the end: saturating
    recent_high: float = 2.2  # faster at the end: a jump, to be read on its own
    latest: float = 0.35  # and still growing right now
    novelty: float = 0.06  # of the limit: higher than any peak before the growth
    peaks_agreement: float = 0.8
    peaks_misfit: float = 0.18
    # Growth too fast for that long a look: it must begin late and lead to new heights.
    fast_span_s: float = 6.0
    fast_evidence: float = 1.7
    fast_horizon_s: float = 4.8
    fast_age_s: float = 30.0
    fast_novelty: float = 0.1
    # Growth seen for long may be told of earlier than `horizon_s`.
    long_span_s: float = 43.0
    long_evidence: float = 3.7
    long_share: float = 0.25  # of the span, how far ahead
    overwhelming: float = 13.0  # evidence that needs no span
    rising: float = 0.4  # growth of the last moments that opens a case, as a share of the claimed

    def times(self, factor: float) -> Thresholds:
        """The same thresholds, scaled to ask for more evidence and a shorter horizon."""
        return replace(
            self,
            span_s=self.span_s * factor,
            late_span_s=self.late_span_s * factor,
            evidence=self.evidence * factor,
            late_evidence=self.late_evidence * factor,
            fast_evidence=self.fast_evidence * factor,
            horizon_s=self.horizon_s / factor,
            long_span_s=self.long_span_s * factor,
            long_evidence=self.long_evidence * factor,
            overwhelming=self.overwhelming * factor,
        )


@dataclass(frozen=True, slots=True)
class View:
    """The moment at which growth is compared with the limit."""

    t: float
    used: float
    limit: float
    start_t: float  # when the series began
    turning_points: TurningPoints
    # The lowest value of the last moments with its time: what rises now is above it.
    low_t: float = 0.0
    low: float = 0.0
    still_s: float = 0.0  # since the series was last higher than ever
    pauses: Collection[tuple[float, float]] = ()  # (end, length) of earlier ones, oldest first


def room_left(trend: Trend, view: View) -> float:
    """From the upper envelope, or the value if that is higher, to the limit."""
    level = trend.level
    if trend.kind is TrendKind.PEAKS and trend.amplitude >= SWINGS:
        # Between two peaks their line goes on rising, at most until the next one is due.
        peak_t, patience_s = trend.reference
        level += trend.slope * min(view.t - peak_t, 0.5 * patience_s)
    return max(0.0, view.limit - max(view.used, level))


def convincing_eta_s(
    trend: Trend, view: View, ask: Thresholds, convinced: bool = False
) -> float | None:
    """
    Seconds to exhaustion by this trend, or None when innocent explanations remain.

    Only what rises at this moment convinces; once it has, it may pause for as
    long as it has paused before.

    Args:
        trend: growth that the series shows.
        view: the moment.
        ask: what the tier asks for.
        convinced: whether the tier was convinced a moment ago.
    """
    if not _is_well_formed(trend, ask) or not _is_continuing(trend, view, ask, convinced):
        return None
    room = room_left(trend, view)
    eta_s = trend.time_to(room)
    novelty = _required_novelty(trend, view, ask, room, eta_s)
    if novelty is None or not _is_new_high(trend, view, view.limit - room, novelty):
        return None
    return eta_s


def _is_well_formed(trend: Trend, ask: Thresholds) -> bool:
    """Rules out noise, saturation, a jump, and tall swings that hardly grow."""
    if not ask.recent_low <= trend.recent <= ask.recent_high:
        return False
    if trend.kind is not TrendKind.PEAKS:
        return trend.agreement >= ask.agreement
    return (
        trend.agreement >= ask.peaks_agreement
        and trend.misfit <= ask.peaks_misfit
        and trend.amplitude <= _TALL
    )


def _is_continuing(trend: Trend, view: View, ask: Thresholds, convinced: bool) -> bool:
    """Rules out a ramp that has ended, and a rise that is no part of what is claimed."""
    if _latest(trend, view) < ask.latest or view.used > trend.level + _JUMP * trend.gain:
        return False
    if trend.kind is TrendKind.PEAKS and trend.amplitude >= SWINGS:
        return True  # what swings is below its peaks most of the time
    below = _OFF_LINE if trend.kind is TrendKind.LINE else _JUMP
    if trend.level - view.used > below * trend.gain:
        return False
    # The last moments rose by a fair share of what is claimed.
    least = ask.rising * trend.slope * max(view.t - view.low_t, NOW_S)
    return view.used - view.low > least or _may_pause(trend, view, convinced)


def _required_novelty(
    trend: Trend, view: View, ask: Thresholds, room: float, eta_s: float
) -> float | None:
    """
    How far above all earlier peaks the growth must lead; None when it was not seen for long enough.

    Args:
        trend: growth that the series shows.
        view: the moment.
        ask: what the tier asks for.
        room: up to the limit, in the resource's unit.
        eta_s: to the limit.

    Returns:
        A share of the limit.
    """
    span = view.t - trend.start_t
    evidence = trend.gain / (room + _FULL_SLACK * view.limit)
    if trend.bend is not None:
        # The way ahead takes less time than the way here: then time is the measure.
        evidence = min(2.0 * evidence, max(evidence, span / (eta_s + 0.1)))
    age = trend.start_t - view.start_t
    young = age < ask.young_s
    # Loading does not steepen all the way.
    loading = young and trend.bend is None
    if (
        span >= (ask.span_s if young else ask.late_span_s)
        and evidence >= (ask.evidence if loading else ask.late_evidence)
        and eta_s <= ask.horizon_s
    ):
        return ask.novelty
    if span >= ask.long_span_s and evidence >= ask.long_evidence and eta_s <= ask.long_share * span:
        return ask.novelty
    if trend.kind is TrendKind.PEAKS:
        return None
    if span >= _GLIMPSE_S and evidence >= ask.overwhelming:
        return ask.novelty
    fast = (
        span >= ask.fast_span_s
        and evidence >= ask.fast_evidence
        and eta_s <= ask.fast_horizon_s
        and age >= ask.fast_age_s
    )
    return ask.fast_novelty if fast else None


def _is_new_high(trend: Trend, view: View, level: float, novelty: float) -> bool:
    """Rules out what comes back: a level that was reached and left again before."""
    visits = view.turning_points.visits(level - _SLACK * view.limit, trend.start_t)
    if visits.times >= 2 or (visits.latest_t is not None and view.t - visits.latest_t < _LATELY_S):
        return False
    if trend.kind is TrendKind.PEAKS or visits.highest is None:
        return True
    return level >= visits.highest + novelty * view.limit


def _may_pause(trend: Trend, view: View, convinced: bool) -> bool:
    """Whether stillness by now is no more than what the growth went through before."""
    lengths = [length for end, length in view.pauses if end >= trend.start_t]
    second, longest = sorted([0.0, 0.0, *lengths])[-2:]
    return view.still_s <= (_PAUSE_S + _PAUSES * longest if convinced else second)


def _latest(trend: Trend, view: View) -> float:
    """Growth since the trend's reference, as a share of its slope."""
    if trend.kind is TrendKind.LINE:
        return 1.0
    if trend.kind is TrendKind.PEAKS:
        # The next peak is due one block after the last; two without it, and it has stopped.
        peak_t, patience_s = trend.reference
        return 1.0 if view.t - peak_t <= patience_s else 0.0
    floor_t, floor = trend.reference
    passed = view.t - floor_t
    if passed <= 0.0:
        return math.inf
    return (view.used - floor) / max(0.1, passed) / trend.slope


# Coefficients: always, by scales that say sooner (or later), by youth. Near the quantiles of
# (true / foretold) on the recorded failures, `bench/forecast_interval.py`.
_LOW = (0.05, 1.8, 0.3)
_HIGH = (0.08, 0.2, 0.1)
_WIDEST = 2.0
_YOUTH_S = 8.0
_SHORT_S = 0.3
_JITTER_S = 0.5  # a look and what the sample missed
_HAS_A_SAY = 0.6  # concordance of what has a say
_GROWS = 0.3  # slope of the last third as a share of the whole
# Wider both ways: growth that bends, and a series that has only begun. Both miss often on
# programs of every kind.
_BENDS, _STEEPER = 0.3, 1.35
_BEGUN, _BEGUN_S = 0.5, 15.0


def forecast_interval(chosen: Trend, trends: Sequence[Trend], view: View) -> Forecast:
    """
    Median and 80 % interval of the time to exhaustion.

    Args:
        chosen: the trend that the median is read from.
        trends: all of them; where they disagree the interval is wider.
        view: the moment.
    """
    eta = chosen.time_to(room_left(chosen, view))
    soonest = latest = eta
    for trend in trends:
        if trend.agreement >= _HAS_A_SAY and trend.recent >= _GROWS:
            other = trend.time_to(room_left(trend, view))
            soonest, latest = min(soonest, other), max(latest, other)
    base = max(eta, _SHORT_S)
    youth = 1.0 / (1.0 + (view.t - chosen.start_t) / _YOUTH_S)
    sooner = min(_WIDEST, math.log(base / max(soonest, _SHORT_S)))
    later = min(_WIDEST, math.log(max(latest, _SHORT_S) / base))
    unsure = interval_widening(chosen, view)
    low = eta * math.exp(-(_LOW[0] + _LOW[1] * sooner + _LOW[2] * youth + unsure)) - _JITTER_S
    high = eta * math.exp(_HIGH[0] + _HIGH[1] * later + _HIGH[2] * youth + unsure) + _JITTER_S
    return Forecast(eta, max(0.0, low), high)


def interval_widening(chosen: Trend, view: View) -> float:
    """What widens both ends, as the logarithm of a factor: at least 0."""
    bends = chosen.bend is not None or chosen.recent > _STEEPER
    begun = _BEGUN * math.exp(-(view.t - view.start_t) / _BEGUN_S)
    return begun + _BENDS if bends else begun
