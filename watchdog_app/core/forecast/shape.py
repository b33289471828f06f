"""
The shape of a series: its line since the last change, its turning points, its regime.

Each sample updates the line and the turning points; `classify_regime` gives the regime.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from watchdog_app.core.forecast.scales import Block, Scales
from watchdog_app.core.model.decisions import Regime

_DRIFT = 0.5  # standard deviations: smaller residuals are not evidence of a change
_THRESHOLD = 8.0  # sum of evidence that ends a segment (CUSUM)
_CLIP = 6.0  # standard deviations: a larger residual counts as this
_MEMORY = 0.98  # decay per sample of the mean size of residuals
_YOUTH = 10.0  # samples after which the slope of a line is fairly well known
_KEEP = 10  # last samples that start the next segment
_NOISE_FLOOR = 1e-3  # of the largest value: a perfect line must not end at a small ripple


class LineFit:
    """A straight line through all samples since the last change of slope."""

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
        """
        Add a sample; `scale` is the largest value so far, the reference for noise.

        Args:
            t: time in seconds.
            v: level in the resource's unit.
            scale: largest value so far, the reference for noise.
        """
        floor = _NOISE_FLOOR * scale
        n = self._n
        if n >= 5:
            slope, intercept = self._fit()
            residual = (v - self.first) - intercept - slope * (t - self.origin)
            sigma = self._sigma if self._sigma > floor else floor
            if sigma > 0.0:
                # A young line predicts badly, because its slope is not well known yet.
                z = residual / (sigma * (1.0 + _YOUTH / n))
                z = _CLIP if z > _CLIP else -_CLIP if z < -_CLIP else z
                spread = residual if residual > 0.0 else -residual
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

    def _fit(self) -> tuple[float, float]:
        """Slope and value at the origin, less the first value, of at least two samples."""
        n, x, y = self._n, self._x, self._y
        d = n * self._xx - x * x
        slope = (n * self._xy - x * y) / d if d > 1e-9 else 0.0
        return slope, (y - slope * x) / n

    def line(self) -> tuple[float, float, float] | None:
        """(slope, value at the origin, slope in standard errors); None: too short or not rising."""
        n = self._n
        slope, intercept = self._fit() if n >= 6 else (0.0, 0.0)
        if slope <= 0.0:
            return None
        d = n * self._xx - self._x * self._x
        sse = self._yy - intercept * self._y - slope * self._xy
        error = math.sqrt((sse if sse > 0.0 else 0.0) / (n - 2) / (d / n))
        tiny = 1e-12 * (abs(self._y) / n + 1e-300)
        return slope, self.first + intercept, slope / (error if error > tiny else tiny)


_KEPT = 16


class Visits(NamedTuple):
    """The earlier peaks of a series that reached a level."""

    times: int
    latest_t: float | None
    highest: float | None  # highest earlier peak, even below the level


class Cycle(NamedTuple):
    """The period of the last turning points."""

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
        """
        Add a sample; a turning point needs a return by more than `size`.

        Args:
            t: time in seconds.
            v: level in the resource's unit.
            size: least return of a turning point, in the same unit.
        """
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
            # Remove the lowest peak of the older half, so that small ripples do not push out the
            # height of past cycles.
            older = range(_KEPT // 2)
            del self.peaks[min(older, key=lambda i: self.peaks[i][1])]
        self._cycle = _read_cycle(self.peaks, self.troughs)

    def cycle(self, t: float) -> Cycle | None:
        """The period of the last turning points; None: not periodic, or long ago."""
        found = self._cycle
        if found is None or t - self.peaks[-1][0] > 2.0 * found.period_s:
            return None
        return found

    def height(self) -> float:
        """Mean height of the last turning points, from trough to peak; 0: none yet."""
        pairs = list(zip(reversed(self.peaks), reversed(self.troughs), strict=False))[:4]
        return sum(abs(peak - trough) for (_, peak), (_, trough) in pairs) / max(1, len(pairs))

    def visits(self, level: float, before_t: float) -> Visits:
        """
        The peaks before time `before_t` that reached `level`.

        Args:
            level: in the resource's unit.
            before_t: time in seconds.
        """
        times, latest_t, highest = 0, None, None
        for when, peak in self.peaks:
            if when >= before_t:
                break
            if peak >= level:
                times, latest_t = times + 1, when
            if highest is None or peak > highest:
                highest = peak
        return Visits(times, latest_t, highest)


def _read_cycle(
    all_peaks: list[tuple[float, float]], all_troughs: deque[tuple[float, float]]
) -> Cycle | None:
    if len(all_peaks) < 3 or len(all_troughs) < 2:
        return None
    peaks, troughs = all_peaks[-4:], list(all_troughs)[-4:]
    gaps = sorted(b[0] - a[0] for a, b in pairwise(peaks))
    # of each peak after the first trough, the time since the trough before it
    after = [when for when, _ in peaks if troughs[0][0] < when]
    rises = sorted(when - max(t for t, _ in troughs if t < when) for when in after)
    if not rises:
        return None
    return Cycle(gaps[len(gaps) // 2], rises[len(rises) // 2])


_NO_GROWTH = (Regime.UNKNOWN, Regime.FLAT, Regime.FALLING)
_HOLDS_S = 6.0  # time for which a new regime must hold before it is reported


class RegimeFilter:
    """
    Smooths the reported regime: a new kind of growth must hold for a while.

    Growth is reported as linear at first. Unknown, flat and falling are reported at once. Growth
    that continues after a flat time keeps its earlier regime.
    """

    __slots__ = ("_growth", "_other", "_since")

    def __init__(self) -> None:
        self._growth = Regime.LINEAR
        self._other = Regime.LINEAR
        self._since = 0.0

    def update(self, t: float, regime: Regime) -> Regime:
        """
        The regime to report at time `t` for a series that was classified as `regime`.

        Args:
            t: time in seconds.
            regime: result of `classify_regime` at that time.
        """
        if regime in _NO_GROWTH:
            return regime
        if regime is self._growth:
            self._other = regime
        elif regime is not self._other:
            self._other, self._since = regime, t
        elif t - self._since >= _HOLDS_S:
            self._growth = regime
        return self._growth


_FIRST_BLOCKS = 6  # blocks of the shortest scale needed for a regime
_STILL_STEP = 0.1  # of the mean step: a smaller step is a tread
_TREADS = 0.4  # least share of treads in a staircase
_RISER = 2.2  # of the mean step: a larger step is a riser
_PIECE = 0.07  # of the limit: smaller risers are the usual chunks of an allocator
_LOST = 3.0  # growth by this many swing heights is growth; the swings are noise
_QUICK = 0.35  # of the period: a shorter rise is a burst


def classify_regime(  # noqa: PLR0917 - one moment of a series, in its parts
    t: float,
    scales: Scales,
    turning_points: TurningPoints,
    rise: float,
    limit: float,
    grows: bool,
) -> Regime:
    """
    The regime of a series at time `t`.

    Args:
        t: time in seconds.
        scales: the series on all scales.
        turning_points: turning points of the series.
        rise: rise from the lowest value to now, in the resource's unit.
        limit: limit in the resource's unit.
        grows: whether the series has a forecast.
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
        if len(whole) >= 5 and whole[-1][3] < whole[0][3] and whole[-1][1] < whole[0][1]:
            _, floors, _, tops = zip(*scales.window(scale), strict=True)
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
    # Two risers alone need most of such a rise.
    if len(blocks) < 7 or blocks[-1][1] - blocks[0][1] < 1.5 * _PIECE * limit:
        return False
    floors = [b[1] for b in blocks]
    steps = [b - a for a, b in pairwise(floors)]
    mean = (floors[-1] - floors[0]) / len(steps)
    if mean <= 0.0 or min(steps) < -_STILL_STEP * mean:
        return False
    still, riser = _STILL_STEP * mean, max(_RISER * mean, _PIECE * limit)
    treads = [step for step in steps if -still < step < still]
    risers = [step for step in steps if step > riser]
    # A single riser is a jump, not a staircase.
    return len(treads) >= _TREADS * len(steps) and len(risers) >= 2
