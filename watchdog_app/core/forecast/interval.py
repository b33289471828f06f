"""How sure a forecast is: an interval that widens where scales disagree and growth is young."""

from __future__ import annotations

import math
from collections.abc import Sequence

from watchdog_app.core.forecast.evidence import View, room_left
from watchdog_app.core.forecast.trends import Trend
from watchdog_app.core.model.decisions import Forecast

# Coefficients: always, by scales that say sooner (or later), by youth. Near the quantiles of
# (true / foretold) on the recorded failures, `bench/forecast_interval.py`.
_LOW = (0.05, 1.8, 0.3)
_HIGH = (0.08, 0.2, 0.1)
_WIDEST = 2.0
_YOUTH_S = 8.0
_SHORT_S = 0.3
_JITTER_S = 0.5  # a look and what the sample missed
_AGREES = 0.6  # concordance of what has a say
_GROWS = 0.3  # slope of the last third as a share of the whole
# Wider both ways: growth that bends, and a series that has only begun. Both miss often on
# programs of every kind.
_BENDS, _STEEPER = 0.3, 1.35
_BEGUN, _BEGUN_S = 0.5, 15.0


def interval(chosen: Trend, claims: Sequence[Trend], view: View) -> Forecast:
    """
    Median and 80 % interval of the time to exhaustion.

    Args:
        chosen: the claim that the median is read from.
        claims: all of them; where they disagree the interval is wider.
        view: the moment.
    """
    eta = chosen.time_to(room_left(chosen, view))
    soonest = latest = eta
    for claim in claims:
        if claim.agreement >= _AGREES and claim.recent >= _GROWS:
            other = claim.time_to(room_left(claim, view))
            soonest, latest = min(soonest, other), max(latest, other)
    base = max(eta, _SHORT_S)
    youth = 1.0 / (1.0 + (view.t - chosen.start_t) / _YOUTH_S)
    sooner = min(_WIDEST, math.log(base / max(soonest, _SHORT_S)))
    later = min(_WIDEST, math.log(max(latest, _SHORT_S) / base))
    unsure = doubt(chosen, view)
    low = eta * math.exp(-(_LOW[0] + _LOW[1] * sooner + _LOW[2] * youth + unsure)) - _JITTER_S
    high = eta * math.exp(_HIGH[0] + _HIGH[1] * later + _HIGH[2] * youth + unsure) + _JITTER_S
    return Forecast(eta, max(0.0, low), high)


def doubt(chosen: Trend, view: View) -> float:
    """What widens both ends, as the logarithm of a factor: at least 0."""
    bends = chosen.bend is not None or chosen.recent > _STEEPER
    begun = _BEGUN * math.exp(-(view.t - view.start_t) / _BEGUN_S)
    return begun + _BENDS if bends else begun
