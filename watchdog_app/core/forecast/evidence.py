"""
When growth is evidence enough.

Most growth is innocent: loading, warm-up, a burst, one tooth of a sawtooth, a
cache that fills. Each rule here rules one of these out, and a claim has to pass
all of them. The thresholds were fitted by `bench/forecast_fit.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from watchdog_app.core.forecast.claims import Claim, Reading
from watchdog_app.core.forecast.swings import Swings

_LATELY_S = 60.0
_SLACK = 0.005  # of the limit: the same level
_FULL_SLACK = 0.005  # of the limit: keeps the evidence finite when there is no room left


@dataclass(frozen=True, slots=True)
class Thresholds:
    """
    What a tier asks of growth.

    `evidence` is growth seen per room left: nothing is extrapolated further
    than in proportion to what was seen.
    """

    span_s: float = 26.0  # loading and bursts are over sooner
    evidence: float = 2.0
    horizon_s: float = 18.0
    agreement: float = 0.6
    recent_low: float = 0.6  # slower at the end: saturating
    recent_high: float = 2.2  # faster at the end: a jump, to be read on its own
    latest: float = 0.35  # and still growing right now
    peaks_agreement: float = 0.8
    peaks_misfit: float = 0.2
    # Growth too fast for that long a look: it must begin late and lead to new heights.
    fast_span_s: float = 6.0
    fast_evidence: float = 1.8
    fast_horizon_s: float = 4.5
    fast_age_s: float = 30.0
    fast_novelty: float = 0.1
    # Growth seen for long may be told of earlier than `horizon_s`.
    long_span_s: float = 40.0
    long_evidence: float = 4.0
    long_share: float = 0.25  # of the span, how far ahead
    overwhelming: float = 14.0  # evidence that needs no span


@dataclass(frozen=True, slots=True)
class View:
    """The moment at which claims are weighed."""

    t: float
    used: float
    limit: float
    start_t: float  # when the series began
    swings: Swings


def room_left(claim: Claim, view: View) -> float:
    """From the upper envelope, or the value if that is higher, to the limit."""
    return max(0.0, view.limit - max(view.used, claim.level))


def convincing(claim: Claim, view: View, ask: Thresholds) -> float | None:
    """Seconds to exhaustion by this claim, or None when innocent explanations remain."""
    room = room_left(claim, view)
    evidence = claim.gain / (room + _FULL_SLACK * view.limit)
    if evidence < min(ask.evidence, ask.fast_evidence):
        return None
    if not ask.recent_low <= claim.recent <= ask.recent_high:
        return None
    peaks = claim.reading is Reading.PEAKS
    if claim.agreement < (ask.peaks_agreement if peaks else ask.agreement):
        return None
    if peaks:
        if claim.misfit > ask.peaks_misfit:
            return None
    elif _latest(claim, view) < ask.latest:
        return None
    span = view.t - claim.start_t
    eta = room / claim.slope
    sustained = span >= ask.span_s and evidence >= ask.evidence and eta <= ask.horizon_s
    long = (
        span >= ask.long_span_s and evidence >= ask.long_evidence and eta <= ask.long_share * span
    )
    fast = (
        not peaks
        and span >= ask.fast_span_s
        and evidence >= ask.fast_evidence
        and eta <= ask.fast_horizon_s
        and claim.start_t - view.start_t >= ask.fast_age_s
    )
    overwhelming = not peaks and span >= 3.0 and evidence >= ask.overwhelming
    if not (sustained or long or fast or overwhelming):
        return None
    level = view.limit - room
    visits = view.swings.visits(level - _SLACK * view.limit, claim.start_t)
    if visits.times >= 2 or (visits.latest_t is not None and view.t - visits.latest_t < _LATELY_S):
        return None
    if not (sustained or long or overwhelming):
        known = visits.highest
        if known is not None and level < known + ask.fast_novelty * view.limit:
            return None
    return eta


def _latest(claim: Claim, view: View) -> float:
    """Growth since the claim's reference, as a share of its slope."""
    if claim.reading is Reading.LINE:
        return 1.0
    passed = view.t - claim.reference_t
    if passed <= 0.0:
        return math.inf
    return (view.used - claim.reference_value) / max(0.1, passed) / claim.slope
