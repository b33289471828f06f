"""Which kind of movement a series shows: the word that goes with a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from watchdog_app.core.forecast.course import Course
from watchdog_app.core.forecast.pyramid import Block, Pyramid
from watchdog_app.core.forecast.swings import Swings
from watchdog_app.core.outlook import Regime

_FIRST_BLOCKS = 6  # of the shortest scale, before anything is said
_STILL_STEP = 0.1  # of the mean step: a tread
_TREADS = 0.4  # share of treads that makes a staircase
_RISER = 2.2  # of the mean step: a riser
_PIECE = 0.07  # of the limit: smaller risers are pieces in which an allocator takes memory
_LOST = 3.0  # growth of so many swings is growth; the swings are noise on it
_QUICK = 0.35  # of the period: a rise that makes it a burst


def regime_of(  # noqa: PLR0917 - one moment of a series, in its parts
    t: float,
    pyramid: Pyramid,
    swings: Swings,
    course: Course,
    limit: float,
    grows: bool,
) -> Regime:
    """The kind of movement, as of time `t`; `grows`: there is a forecast."""
    if len(pyramid.levels[0]) < _FIRST_BLOCKS:
        return Regime.UNKNOWN
    cycle = swings.cycle(t)
    if cycle is not None and not (grows and course.rise() > _LOST * swings.height()):
        return Regime.BURST if cycle.rise_s < _QUICK * cycle.period_s else Regime.SAWTOOTH
    if not grows:
        return Regime.FALLING if _falls(pyramid) else Regime.FLAT
    if any(_is_staircase(pyramid.window(scale), limit) for scale in (2, 3, 4)):
        return Regime.STAIRCASE
    return course.shape()


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


def _is_staircase(blocks: Sequence[Block], limit: float) -> bool:
    if len(blocks) < 7:
        return False
    floors = [b[1] for b in blocks]
    steps = [b - a for a, b in pairwise(floors)]
    mean = (floors[-1] - floors[0]) / len(steps)
    if mean <= 0.0 or min(steps) < -_STILL_STEP * mean:
        return False
    treads = sum(abs(step) < _STILL_STEP * mean for step in steps)
    risers = sum(step > max(_RISER * mean, _PIECE * limit) for step in steps)
    # One riser is a jump, not a staircase.
    return treads >= _TREADS * len(steps) and risers >= 2
