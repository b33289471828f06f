"""
Rules for when growth is convincing, and the interval of a forecast.

Most growth is harmless: loading, warm-up, a burst, one tooth of a sawtooth, a filling cache. Each
rule excludes one of these, and a trend must pass all rules. `bench/forecast_fit.py` measures how
well the thresholds work on other series.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from watchdog_app.base.records import dataclass
from watchdog_app.core.forecast.shape import TurningPoints
from watchdog_app.core.forecast.trends import Trend, TrendKind
from watchdog_app.core.model.decisions import Forecast

_LATELY_S = 60.0  # a level left within this time is not a new high
_SLACK = 0.005  # of the limit: smaller differences count as the same level
_JUMP = 0.25  # of the gain: a value this far above the trend is a jump, not part of it
NOW_S = 2.0  # length of the present, for the question whether the series rises now
SWINGS = 0.25  # swing height as a share of the growth from which the series counts as swinging
_TALL = 3.0  # swing height as a share of the growth from which the growth is not significant
_OFF_LINE = 0.05  # of the gain: a line this far above the value has ended
_PAUSE_S, _PAUSES = 1.0, 1.5  # longest accepted pause: _PAUSE_S plus _PAUSES times the longest yet
_GLIMPSE_S = 3.0  # least span of overwhelming evidence
_FULL_SLACK = 0.005  # of the limit: keeps the evidence finite when no room is left
# Thresholds that `Thresholds.times` multiplies.
_SCALED = (
    *("span_s", "late_span_s", "long_span_s", "overwhelming"),
    *("evidence", "late_evidence", "fast_evidence", "long_evidence"),
    *("straight_span_s", "straight_late_span_s", "straight_evidence", "straight_late_evidence"),
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """
    Conditions for convincing growth in one tier (notify, save or heads-up).

    `evidence` is the growth so far divided by the room left. It limits an extrapolation in
    proportion to the observed growth.
    """

    span_s: float = 25.0  # least span of growth that began with the process; loading is shorter
    late_span_s: float = 15.0  # least span of growth that began later; bursts are shorter
    late_evidence: float = 1.1  # least evidence of growth that began later
    young_s: float = 10.0  # growth that begins within this time began with the process
    evidence: float = 2.6  # least evidence of growth that began with the process
    horizon_s: float = 18.0  # longest time to exhaustion
    agreement: float = 0.85  # least concordance of the trend
    recent_low: float = 0.7  # smallest final slope per mean slope; below, the growth saturates
    recent_high: float = 2.2  # largest final slope per mean slope; above, the growth is a jump
    latest: float = 0.35  # least present slope per mean slope: the growth still continues
    novelty: float = 0.06  # least rise above all earlier peaks, as a share of the limit
    peaks_agreement: float = 0.8  # the same for the trend of the peaks
    peaks_misfit: float = 0.18  # largest distance of a peak from the line, as a share of the gain
    # Faster growth needs a shorter span, but must begin late and rise far above earlier peaks.
    fast_span_s: float = 6.0
    fast_evidence: float = 1.4
    fast_horizon_s: float = 4.8
    fast_age_s: float = 30.0
    fast_novelty: float = 0.1
    # Growth over a long span convinces earlier than `horizon_s` before the end.
    long_span_s: float = 43.0
    long_evidence: float = 3.7
    long_share: float = 0.25  # longest time ahead, as a share of the span
    # Straight growth convinces earlier and with less evidence.
    straight_agreement: float = 0.95  # least concordance of the trend
    straight_recent_low: float = 0.8  # smallest final slope per mean slope
    straight_recent_high: float = 1.3  # largest final slope per mean slope
    straight_span_s: float = 30.0  # least span of growth that began with the process
    straight_late_span_s: float = 26.0
    straight_evidence: float = 2.6  # least evidence of growth that began with the process
    straight_late_evidence: float = 0.8
    straight_horizon_s: float = 45.0
    overwhelming: float = 13.0  # evidence that needs no minimum span
    rising: float = 0.4  # least growth of the last NOW_S, as a share of the trend's growth

    def times(self, factor: float) -> Thresholds:
        """Scaled thresholds; a factor above 1 asks for more evidence and a shorter horizon."""
        scaled = {name: getattr(self, name) * factor for name in _SCALED}
        horizons = {n: getattr(self, n) / factor for n in ("horizon_s", "straight_horizon_s")}
        return replace(self, **horizons, **scaled)


@dataclass(frozen=True, slots=True)
class View:
    """The state of the series at the moment of a forecast."""

    t: float
    used: float
    limit: float
    start_t: float  # start of the series
    turning_points: TurningPoints
    # Lowest value of the last NOW_S, with its time: a series that rises now is above it.
    low_t: float = 0.0
    low: float = 0.0
    still_s: float = 0.0  # time since the last new maximum
    pauses: Collection[tuple[float, float]] = ()  # (end, length) of earlier pauses, oldest first


def room_left(trend: Trend, view: View) -> float:
    """
    Distance from the upper envelope, or from the value if it is higher, to the limit.

    Args:
        trend: growth that the series shows.
        view: state of the series at this moment.

    Returns:
        The distance in the resource's unit, at least 0.
    """
    level = trend.level
    if trend.kind is TrendKind.PEAKS and trend.amplitude >= SWINGS:
        # The line of the peaks rises between two peaks, at most until the next peak is due.
        peak_t, patience_s = trend.reference
        level += trend.slope * min(view.t - peak_t, 0.5 * patience_s)
    return max(0.0, view.limit - max(view.used, level))


def convincing_eta_s(
    trend: Trend, view: View, ask: Thresholds, convinced: bool = False
) -> float | None:
    """
    Seconds to exhaustion by this trend; None: the growth may be harmless.

    Only a series that rises now convinces. After that it may pause for about as long as its
    earlier pauses.

    Args:
        trend: growth that the series shows.
        view: state of the series at this moment.
        ask: thresholds of the tier.
        convinced: whether the previous sample convinced this tier.
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
    """Excludes noise, saturation, a jump, and tall swings with little growth."""
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
    """Excludes a ramp that has ended, and a rise that is not part of the trend."""
    if _latest(trend, view) < ask.latest or view.used > trend.level + _JUMP * trend.gain:
        return False
    if trend.kind is TrendKind.PEAKS and trend.amplitude >= SWINGS:
        return True  # a swinging series is below its peaks most of the time
    below = _OFF_LINE if trend.kind is TrendKind.LINE else _JUMP
    if trend.level - view.used > below * trend.gain:
        return False
    # The last moments rose by a sufficient share of the trend's growth.
    least = ask.rising * trend.slope * max(view.t - view.low_t, NOW_S)
    return view.used - view.low > least or _may_pause(trend, view, convinced)


def _required_novelty(
    trend: Trend, view: View, ask: Thresholds, room: float, eta_s: float
) -> float | None:
    """
    How far above all earlier peaks the series must rise; None: the span is too short.

    Args:
        trend: growth that the series shows.
        view: state of the series at this moment.
        ask: thresholds of the tier.
        room: distance to the limit, in the resource's unit.
        eta_s: time to the limit.

    Returns:
        A share of the limit.
    """
    span = view.t - trend.start_t
    evidence = trend.gain / (room + _FULL_SLACK * view.limit)
    if trend.bend is not None:
        # Accelerating growth: the rest takes less time than the growth so far, so compare times.
        evidence = min(2.0 * evidence, max(evidence, span / (eta_s + 0.1)))
    age = trend.start_t - view.start_t
    young = age < ask.young_s
    # Loading does not accelerate over its whole span.
    loading = young and trend.bend is None
    if (
        span >= (ask.span_s if young else ask.late_span_s)
        and evidence >= (ask.evidence if loading else ask.late_evidence)
        and eta_s <= ask.horizon_s
    ):
        return ask.novelty
    if span >= ask.long_span_s and evidence >= ask.long_evidence and eta_s <= ask.long_share * span:
        return ask.novelty
    if (
        trend.agreement >= ask.straight_agreement
        and ask.straight_recent_low <= trend.recent <= ask.straight_recent_high
        and span >= (ask.straight_span_s if young else ask.straight_late_span_s)
        and evidence >= (ask.straight_evidence if loading else ask.straight_late_evidence)
        and eta_s <= ask.straight_horizon_s
    ):
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
    """Excludes a level that the series has reached and left again before."""
    visits = view.turning_points.visits(level - _SLACK * view.limit, trend.start_t)
    if visits.times >= 2 or (visits.latest_t is not None and view.t - visits.latest_t < _LATELY_S):
        return False
    if trend.kind is TrendKind.PEAKS or visits.highest is None:
        return True
    return level >= visits.highest + novelty * view.limit


def _may_pause(trend: Trend, view: View, convinced: bool) -> bool:
    """Whether the present pause is at most as long as earlier pauses of the growth."""
    lengths = [length for end, length in view.pauses if end >= trend.start_t]
    second, longest = sorted([0.0, 0.0, *lengths])[-2:]
    return view.still_s <= (_PAUSE_S + _PAUSES * longest if convinced else second)


def _latest(trend: Trend, view: View) -> float:
    """Slope since the trend's reference, as a share of the trend's slope."""
    if trend.kind is TrendKind.LINE:
        return 1.0
    if trend.kind is TrendKind.PEAKS:
        # The next peak is due one block after the last; after two blocks the growth has stopped.
        peak_t, patience_s = trend.reference
        return 1.0 if view.t - peak_t <= patience_s else 0.0
    floor_t, floor = trend.reference
    passed = view.t - floor_t
    if passed <= 0.0:
        return math.inf
    return (view.used - floor) / max(0.1, passed) / trend.slope


# Coefficients of the interval's ends: constant, scales that predict an earlier (later) end, youth.
# Close to the quantiles of (true / predicted) time on recorded failures,
# `bench/forecast_interval.py`.
_LOW = (0.05, 1.8, 0.3)
_HIGH = (0.08, 0.2, 0.1)
_WIDEST = 2.0  # largest logarithm of the ratio between the times of two trends
_YOUTH_S = 8.0  # span of a trend at which youth counts half
_SHORT_S = 0.3  # shorter times to exhaustion count as this long
_JITTER_S = 0.5  # one sampling interval and changes between samples
_HAS_A_SAY = 0.6  # least concordance of a trend that can widen the interval
_GROWS = 0.3  # least slope of the last third as a share of the mean slope
# Both ends are wider for accelerating growth and for a new series, because forecasts of these
# are often wrong for all kinds of programs.
_BENDS, _STEEPER = 0.3, 1.35
_BEGUN, _BEGUN_S = 0.5, 15.0


def forecast_interval(chosen: Trend, trends: Sequence[Trend], view: View) -> Forecast:
    """
    Median and 80 % interval of the time to exhaustion.

    Args:
        chosen: trend that gives the median.
        trends: all trends; the more they differ, the wider the interval.
        view: state of the series at this moment.
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
    """
    The logarithm of the factor that widens both ends of the interval, at least 0.

    Args:
        chosen: trend that gives the median.
        view: state of the series at this moment.
    """
    bends = chosen.bend is not None or chosen.recent > _STEEPER
    begun = _BEGUN * math.exp(-(view.t - view.start_t) / _BEGUN_S)
    return begun + _BENDS if bends else begun
