"""Which kind of movement a series shows: the word that goes with a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from watchdog_app.core.forecast.claims import Claim, Reading
from watchdog_app.core.forecast.pyramid import Block, Pyramid
from watchdog_app.core.forecast.swings import Swings
from watchdog_app.core.outlook import Regime

_FIRST_BLOCKS = 6  # of the shortest scale, before anything is said
_FASTER, _SLOWER = 1.35, 0.7  # slope of the last third as a share of the whole
_SURE = 0.9  # concordance: a plateau before the growth has less
_STILL_STEP = 0.1  # of the mean step: a tread
_TREADS = 0.4  # share of treads that makes a staircase
_RISER = 2.2  # of the mean step: a riser
_QUICK = 0.35  # of the period: a rise that makes it a burst


def regime_of(
    t: float, pyramid: Pyramid, swings: Swings, chosen: Claim | None, claims: Sequence[Claim]
) -> Regime:
    """The kind of movement, as of time `t`."""
    if len(pyramid.levels[0]) < _FIRST_BLOCKS:
        return Regime.UNKNOWN
    cycle = swings.cycle(t)
    if cycle is not None:
        return Regime.BURST if cycle.rise_s < _QUICK * cycle.period_s else Regime.SAWTOOTH
    if chosen is None:
        return Regime.FALLING if _falls(pyramid) else Regime.FLAT
    if any(_is_staircase(pyramid.window(scale)) for scale in (2, 3, 4)):
        return Regime.STAIRCASE
    recent = chosen.recent
    if chosen.reading is Reading.LINE:
        # A straight line now; what matters is whether it is steeper than what came before.
        span = t - chosen.start_t
        longer = [
            c
            for c in claims
            if c.reading is Reading.BOTH and c.agreement >= _SURE and t - c.start_t > 1.8 * span
        ]
        if longer:
            recent = chosen.slope / longer[0].slope
    if recent > _FASTER or chosen.bend is not None:
        return Regime.ACCELERATING
    return Regime.SATURATING if recent < _SLOWER else Regime.LINEAR


def _falls(pyramid: Pyramid) -> bool:
    for scale in (2, 3):
        whole = pyramid.levels[scale]
        if len(whole) < 5 or whole[-1][3] >= whole[0][3] or whole[-1][1] >= whole[0][1]:
            continue
        blocks = pyramid.window(scale)
        tops, floors = [b[3] for b in blocks], [b[1] for b in blocks]
        if _mostly_down(tops) and _mostly_down(floors):
            return True
    return False


def _mostly_down(values: Sequence[float]) -> bool:
    fall = values[0] - values[-1]
    if fall <= 0.002 * max(abs(values[0]), abs(values[-1])):
        return False
    downs = sum(b < a for a, b in pairwise(values))
    return downs >= 0.7 * (len(values) - 1)


def _is_staircase(blocks: Sequence[Block]) -> bool:
    if len(blocks) < 7:
        return False
    floors = [b[1] for b in blocks]
    steps = [b - a for a, b in pairwise(floors)]
    mean = (floors[-1] - floors[0]) / len(steps)
    if mean <= 0.0 or min(steps) < -_STILL_STEP * mean:
        return False
    treads = sum(abs(step) < _STILL_STEP * mean for step in steps)
    risers = sum(step > _RISER * mean for step in steps)
    # One riser is a jump, not a staircase.
    return treads >= _TREADS * len(steps) and risers >= 2
