"""
What a series looks like: its line since the last change, its turning points, a word for it.

The line and the turning points follow each sample; `classify_regime` gives the word.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from watchdog_app.core.forecast.scales import Block, Scales
from watchdog_app.core.model.decisions import Regime

_DRIFT = 0.5  # residuals under this many deviations are no evidence
_THRESHOLD = 8.0  # accumulated evidence that ends a segment
_CLIP = 6.0  # one wild sample counts this much at most
_MEMORY = 0.98  # of the size of residuals, a sample
_YOUTH = 10.0  # samples
_KEEP = 10  # samples that the next segment begins with
_NOISE_FLOOR = 1e-3  # of the largest value seen: a perfect line must not end at its first ripple


class LineFit:
    """A straight line through everything since the last change of course."""

    def __init__(self) -> None:
        self._sigma = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_KEEP)
        self.origin = 0.0
        self.first = 0.0
        self._restart()

    def _restart(self) -> None:
        self._n = 0
        self._x = self._y = self._xx = self._xy = self._yy = 0.0
        self._up = self._down = 0.0

    def _accumulate(self, t: float, v: float) -> None:
        if self._n == 0:
            self.origin, self.first = t, v
        x, y = t - self.origin, v - self.first
        self._n += 1
        self._x += x
        self._y += y
        self._xx += x * x
        self._xy += x * y
        self._yy += y * y

    def add(self, t: float, v: float, scale: float) -> None:
        """Take a sample; `scale` is the largest value seen so far, the yardstick of noise."""
        floor = _NOISE_FLOOR * scale
        n = self._n
        if n >= 5:
            d = n * self._xx - self._x * self._x
            slope = (n * self._xy - self._x * self._y) / d if d > 1e-9 else 0.0
            residual = (
                (v - self.first) - (self._y - slope * self._x) / n - slope * (t - self.origin)
            )
            sigma = self._sigma if self._sigma > floor else floor
            if sigma > 0.0:
                # A young line foretells badly: its slope is not yet known.
                z = residual / (sigma * (1.0 + _YOUTH / n))
                z = _CLIP if z > _CLIP else -_CLIP if z < -_CLIP else z
                spread = abs(residual)
                spread = spread if spread < _CLIP * sigma else _CLIP * sigma
                self._sigma = _MEMORY * sigma + (1.0 - _MEMORY) * 1.25 * spread
                up, down = self._up + z - _DRIFT, self._down - z - _DRIFT
                self._up = up if up > 0.0 else 0.0
                self._down = down if down > 0.0 else 0.0
                self._recent.append((t, v))
                if up > _THRESHOLD or down > _THRESHOLD:
                    self._restart()
                    for when, what in self._recent:
                        self._accumulate(when, what)
                    return
        else:
            self._recent.append((t, v))
        self._accumulate(t, v)

    def line(self) -> tuple[float, float, float] | None:
        """(slope, value at the origin, slope in standard errors); None: too short, or no rise."""
        n = self._n
        d = n * self._xx - self._x * self._x
        if n < 6 or d <= 1e-9:
            return None
        slope = (n * self._xy - self._x * self._y) / d
        if slope <= 0.0:
            return None
        intercept = (self._y - slope * self._x) / n
        sse = self._yy - intercept * self._y - slope * self._xy
        error = math.sqrt(max(sse, 0.0) / max(1, n - 2) / (d / n))
        tiny = 1e-12 * (abs(self._y) / n + 1e-300)
        return slope, self.first + intercept, slope / max(error, tiny)


_KEPT = 16


class Visits(NamedTuple):
    """How often a level was reached and left again before some moment."""

    times: int
    latest_t: float | None
    highest: float | None  # peak of all before that moment, whether or not it reached the level


class Cycle(NamedTuple):
    """The rhythm of the last few turns."""

    period_s: float  # median time from peak to peak
    rise_s: float  # median time from trough to peak


class TurningPoints:
    """Alternating peaks and troughs that differ by more than a given size."""

    __slots__ = ("_cycle", "_extreme", "_extreme_t", "_rising", "peaks", "troughs")

    def __init__(self) -> None:
        self.peaks: list[tuple[float, float]] = []  # (time, value), oldest first
        self.troughs: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._rising = True
        self._extreme: float | None = None
        self._extreme_t = 0.0
        self._cycle: Cycle | None = None

    def add(self, t: float, v: float, size: float) -> None:
        """Take a sample; a turn is one that came back by more than `size`."""
        if self._extreme is None:
            self._extreme, self._extreme_t = v, t
        elif self._rising:
            if v >= self._extreme:
                self._extreme, self._extreme_t = v, t
            elif v < self._extreme - size:
                self._add_peak(self._extreme_t, self._extreme)
                self._rising, self._extreme, self._extreme_t = False, v, t
        elif v <= self._extreme:
            self._extreme, self._extreme_t = v, t
        elif v > self._extreme + size:
            self.troughs.append((self._extreme_t, self._extreme))
            self._cycle = _read_cycle(self.peaks, self.troughs)
            self._rising, self._extreme, self._extreme_t = True, v, t

    def _add_peak(self, t: float, v: float) -> None:
        self.peaks.append((t, v))
        if len(self.peaks) > _KEPT:
            # Forget the lowest of the older half: small ripples must not push out of memory
            # how high a past cycle went.
            older = range(_KEPT // 2)
            del self.peaks[min(older, key=lambda i: self.peaks[i][1])]
        self._cycle = _read_cycle(self.peaks, self.troughs)

    def cycle(self, t: float) -> Cycle | None:
        """The rhythm of the last turns, or None when they do not repeat or are long past."""
        found = self._cycle
        if found is None or t - self.peaks[-1][0] > 2.0 * found.period_s:
            return None
        return found

    def height(self) -> float:
        """Mean height of the last turns; 0 where there were none."""
        pairs = list(zip(reversed(self.peaks), reversed(self.troughs), strict=False))[:4]
        return sum(abs(peak - trough) for (_, peak), (_, trough) in pairs) / max(1, len(pairs))

    def visits(self, level: float, before_t: float) -> Visits:
        """The peaks earlier than `before_t` that reached `level`."""
        times = 0
        latest: float | None = None
        highest: float | None = None
        for when, peak in self.peaks:
            if when >= before_t:
                break
            if highest is None or peak > highest:
                highest = peak
            if peak >= level:
                times += 1
                latest = when
        return Visits(times, latest, highest)


def _read_cycle(
    all_peaks: list[tuple[float, float]], all_troughs: deque[tuple[float, float]]
) -> Cycle | None:
    if len(all_peaks) < 3 or len(all_troughs) < 2:
        return None
    peaks, troughs = all_peaks[-4:], list(all_troughs)[-4:]
    gaps = sorted(b[0] - a[0] for a, b in pairwise(peaks))
    rises = []
    for when, _ in peaks:
        before = [trough for trough, _ in troughs if trough < when]
        if before:
            rises.append(when - before[-1])
    if not rises:
        return None
    rises.sort()
    return Cycle(gaps[len(gaps) // 2], rises[len(rises) // 2])


_HOLDS_S = 6.0  # another word must have been right for so long before it is said


class RegimeFilter:
    """
    The word for a movement, which changes when another has been right for a while.

    A growth is called steady first. Rest and too few readings are said at once, and growth that
    goes on after a rest goes by the word that it had.
    """

    __slots__ = ("_growth", "_other", "_since")

    def __init__(self) -> None:
        self._growth = Regime.LINEAR
        self._other = Regime.LINEAR
        self._since = 0.0

    def update(self, t: float, regime: Regime) -> Regime:
        """The regime to report at time `t` for a movement that was classified as `regime`."""
        if regime in (Regime.UNKNOWN, Regime.FLAT, Regime.FALLING):
            return regime
        if regime is self._growth:
            self._other = regime
        elif regime is not self._other:
            self._other, self._since = regime, t
        elif t - self._since >= _HOLDS_S:
            self._growth = regime
        return self._growth


_FIRST_BLOCKS = 6  # of the shortest scale, before anything is said
_STILL_STEP = 0.1  # of the mean step: a tread
_TREADS = 0.4  # share of treads that makes a staircase
_RISER = 2.2  # of the mean step: a riser
_PIECE = 0.07  # of the limit: smaller risers are pieces in which an allocator takes memory
_LOST = 3.0  # growth of so many swings is growth; the swings are noise on it
_QUICK = 0.35  # of the period: a rise that makes it a burst


def classify_regime(  # noqa: PLR0917 - one moment of a series, in its parts
    t: float,
    scales: Scales,
    turning_points: TurningPoints,
    rise: float,
    limit: float,
    grows: bool,
) -> Regime:
    """
    The kind of movement, as of time `t`; `grows`: there is a forecast.

    Args:
        t: time in seconds.
        scales: the series on all scales.
        turning_points: of the series.
        rise: from its lowest value to now, in the resource's unit.
        limit: in the resource's unit.
        grows: whether there is a forecast.
    """
    if len(scales.levels[0]) < _FIRST_BLOCKS:
        return Regime.UNKNOWN
    cycle = turning_points.cycle(t)
    if cycle is not None and not (grows and rise > _LOST * turning_points.height()):
        return Regime.BURST if cycle.rise_s < _QUICK * cycle.period_s else Regime.SAWTOOTH
    if not grows:
        return Regime.FALLING if _is_falling(scales) else Regime.FLAT
    if any(_is_staircase(scales.window(scale), limit) for scale in (2, 3, 4)):
        return Regime.STAIRCASE
    return Regime.LINEAR


def _is_falling(scales: Scales) -> bool:
    for scale in (2, 3):
        whole = scales.levels[scale]
        if len(whole) < 5 or whole[-1][3] >= whole[0][3] or whole[-1][1] >= whole[0][1]:
            continue
        blocks = scales.window(scale)
        tops, floors = [b[3] for b in blocks], [b[1] for b in blocks]
        if _is_mostly_falling(tops) and _is_mostly_falling(floors):
            return True
    return False


def _is_mostly_falling(values: Sequence[float]) -> bool:
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
