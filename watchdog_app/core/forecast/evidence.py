"""
Rules for when growth is convincing, and the interval of a forecast.

Most growth is harmless: loading, warm-up, a burst, one tooth of a sawtooth, a filling cache. Each
rule excludes one of these, and a trend must pass all rules. `bench/forecast_fit.py` measures how
well the thresholds work on other series.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from watchdog_app.base.records import dataclass
from watchdog_app.core.forecast.shape import TurningPoints
from watchdog_app.core.forecast.trends import LINE, PEAKS, Trend
from watchdog_app.core.model.decisions import Forecast

_LATELY_S = 60.0  # a level left within this time is not a new high
_SLACK = 0.005  # of the limit: smaller differences count as the same level
_JUMP = 0.25  # of the gain: a value this far above the trend is a jump, not part of it
NOW_S = 2.0  # length of the present, for the question whether the series rises now
SWINGS = 0.25  # swing height as a share of the growth from which the series counts as swinging
_TALL = 3.0  # swing height as a share of the growth from which the growth is not significant
_OFF_LINE = 0.05  # of the gain: a line this far above the value has ended
_PAUSE_S, _PAUSES = 1.0, 1.5  # longest accepted pause: _PAUSE_S plus _PAUSES times the longest yet
_FULL_SLACK = 0.005  # of the limit: keeps the evidence finite when no room is left
_YOUNG_S = 10.0  # growth that begins within this time began with the process
_LATEST = 0.35  # least present slope per mean slope: the growth still continues
_SCALED = ("young_span_s", "span_s", "young_evidence", "evidence")
MISFIT = 0.18  # largest distance of a peak from the line, as a share of the gain
_RISING = 0.4  # least growth of the last NOW_S, as a share of the trend's growth


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One set of conditions that excludes harmless growth. Times are in seconds.

    Evidence is the growth so far divided by the room left. It limits an extrapolation in proportion
    to the observed growth.
    """

    young_span_s: float  # least span of growth that began with the process; loading is shorter
    span_s: float  # least span of growth that began later; bursts are shorter
    young_evidence: float  # least evidence of growth that began with the process
    evidence: float  # least evidence of growth that began later
    horizon_s: float  # longest time to exhaustion
    share: float = 0.0  # longer times up to this share of the span count as well
    age_s: float = 0.0  # least time from the start of the process to the start of the growth
    level: float = 0.0  # least level, as a share of the limit
    agreement: float = 0.85  # least concordance of the trend
    recent_low: float = 0.8  # smallest final slope per mean slope; below, the growth saturates
    recent_high: float = 2.2  # largest final slope per mean slope; above, the growth is a jump
    novelty: float = 0.06  # least rise above all earlier peaks, as a share of the limit

    def times(self, factor: float) -> Rule:
        """A scaled rule; a factor above 1 asks for more evidence and a shorter horizon."""
        scaled = {name: getattr(self, name) * factor for name in _SCALED}
        return replace(self, horizon_s=self.horizon_s / factor, **scaled)


@dataclass(slots=True)
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


@dataclass(slots=True)
class Claim:
    """What a trend that continues claims at one moment, and its evidence."""

    trend: Trend
    level: float  # as a share of the limit; meets the limit first
    eta_s: float
    span_s: float
    age_s: float  # of the process at the start of the growth
    evidence: float
    rises: bool  # now, or pauses no longer than before; else it may pause a little longer

    def passes(self, rule: Rule) -> bool:
        """Whether no harmless explanation is left, except an earlier visit to the level."""
        trend = self.trend
        young = self.age_s < _YOUNG_S
        # Loading does not accelerate over its whole span.
        loading = young and trend.bend is None
        return (
            self.evidence >= (rule.young_evidence if loading else rule.evidence)
            and self.span_s >= (rule.young_span_s if young else rule.span_s)
            and (self.eta_s <= rule.horizon_s or self.eta_s <= rule.share * self.span_s)
            and self.age_s >= rule.age_s
            and self.level >= rule.level
            and trend.agreement >= rule.agreement
            and trend.misfit <= MISFIT
            and rule.recent_low <= trend.recent <= rule.recent_high
        )


def read_claims(trends: Iterable[Trend], view: View, least: float) -> list[Claim]:
    """
    What the trends that continue claim.

    Args:
        trends: growth that the series shows.
        view: state of the series at this moment.
        least: growth so far per room left; trends with less are left out.
    """
    claims = []
    used, limit = view.used, view.limit
    for trend in trends:
        if trend.gain < least * (limit - (used if used > trend.level else trend.level)):
            continue
        rises = _continues(trend, view)
        if rises is None or trend.amplitude > _TALL:
            continue
        room = room_left(trend, view)
        eta_s, span_s = trend.time_to(room), view.t - trend.start_t
        evidence = trend.gain / (room + _FULL_SLACK * view.limit)
        age_s = trend.start_t - view.start_t
        level = 1.0 - room / view.limit
        claims.append(Claim(trend, level, eta_s, span_s, age_s, evidence, rises))
    return claims


def convincing_eta_s(
    claims: Iterable[Claim], view: View, rules: Sequence[Rule], convinced: bool = False
) -> float | None:
    """
    Seconds to exhaustion by the most urgent convincing claim; None: the growth may be harmless.

    Only a series that rises now convinces. After that it may pause for about as long as its
    earlier pauses.

    Args:
        claims: from `read_claims`.
        view: state of the series at this moment.
        rules: of the tier; one of them suffices.
        convinced: whether the previous sample convinced this tier.
    """
    soonest: float | None = None
    for claim in claims:
        if (claim.rises or convinced) and (soonest is None or claim.eta_s < soonest):
            passed = [r.novelty for r in rules if claim.evidence >= r.evidence and claim.passes(r)]
            if passed and _is_new_high(claim, view, min(passed)):
                soonest = claim.eta_s
    return soonest


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
    if trend.kind is PEAKS and trend.amplitude >= SWINGS:
        # The line of the peaks rises between two peaks, at most until the next peak is due.
        peak_t, patience_s = trend.reference
        level += trend.slope * min(view.t - peak_t, 0.5 * patience_s)
    room = view.limit - (view.used if view.used > level else level)
    return room if room > 0.0 else 0.0


def _continues(trend: Trend, view: View) -> bool | None:
    """
    Whether the trend rises now, or pauses no longer than earlier in the same growth.

    Returns:
        False: it pauses somewhat longer. None: the ramp has ended, or the present rise is not part
        of the trend.
    """
    if not _goes_on(trend, view) or view.used > trend.level + _JUMP * trend.gain:
        return None
    if trend.kind is PEAKS and trend.amplitude >= SWINGS:
        return True  # a swinging series is below its peaks most of the time
    below = _OFF_LINE if trend.kind is LINE else _JUMP
    if trend.level - view.used > below * trend.gain:
        return None
    # The last moments rose by a sufficient share of the trend's growth.
    passed = view.t - view.low_t
    if view.used - view.low > _RISING * trend.slope * (passed if passed > NOW_S else NOW_S):
        return True
    lengths = [length for end, length in view.pauses if end >= trend.start_t]
    second, longest = sorted([0.0, 0.0, *lengths])[-2:]
    if view.still_s <= second:
        return True
    return False if view.still_s <= _PAUSE_S + _PAUSES * longest else None


def _is_new_high(claim: Claim, view: View, novelty: float) -> bool:
    """Excludes a level that the series has reached and left again before."""
    trend, level = claim.trend, claim.level * view.limit
    visits = view.turning_points.visits(level - _SLACK * view.limit, trend.start_t)
    if visits.times >= 2 or (visits.latest_t is not None and view.t - visits.latest_t < _LATELY_S):
        return False
    if trend.kind is PEAKS or visits.highest is None:
        return True
    return level >= visits.highest + novelty * view.limit


def _goes_on(trend: Trend, view: View) -> bool:
    """Whether the growth since the trend's reference is a sufficient share of the trend's."""
    passed, reference = view.t - trend.reference[0], trend.reference[1]
    if trend.kind is PEAKS:
        # The next peak is due one block after the last; after two blocks the growth has stopped.
        return passed <= reference
    if trend.kind is LINE or passed <= 0.0:
        return True
    passed = passed if passed > 0.1 else 0.1
    return (view.used - reference) / passed / trend.slope >= _LATEST


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
            soonest = other if other < soonest else soonest
            latest = other if other > latest else latest
    base = eta if eta > _SHORT_S else _SHORT_S
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
