"""
The whole course of a series, and whether its growth is a line or a curve.

A few seconds of a steady leak look like anything: noise, an allocator that takes memory in pieces
and a save that holds the training up bend them either way. So growth is a line until the record
of all of it says otherwise: read backwards it falls into straight runs, and one change of slope is
a change of what the program does. Two changes in the same direction are a curve.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from watchdog_app.core.model.decisions import Regime

_POINTS = 64  # kept; then each two become one
_LEAST_RUN = 5  # points of a straight run
_STRAIGHT = 0.015  # of a run's growth: typical distance from its line
_NOISE = 1.6  # ... or this many times the noise of a point
_BENT = 1.25  # ratio of the slopes of two neighbouring runs
_STILL = 0.1  # of the later slope: a plateau before a rise is no slower growth
_SURE = 3.0  # standard errors between two slopes
_DOMINANT = 0.6  # of the growth: the last run of a curve has less
_EARLIER = 0.25  # of the growth: the earlier runs of a curve have more
_HOLDS_S = 6.0  # another word must have been right for so long before it is said


class _Run(NamedTuple):
    """A straight piece of the record: points `begin` to `end`, both included."""

    begin: int
    slope: float
    error: float  # standard error of the slope
    gain: float


class Course:
    """Means over even pieces of time, as many as fit: the whole of the series in bounded memory."""

    __slots__ = ("_count", "_end", "_sum", "_sum_t", "_width", "points")

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []  # (mean time, mean value), oldest first
        self._width = 0.25
        self._end: float | None = None  # of the piece that is filled now
        self._sum = self._sum_t = 0.0
        self._count = 0

    def add(self, t: float, value: float) -> None:
        """
        Take a sample; times increase.

        Args:
            t: time in seconds.
            value: in the resource's unit.
        """
        if self._end is None:
            self._end = t + self._width
        if t >= self._end:
            if self._count:
                self.points.append((self._sum_t / self._count, self._sum / self._count))
                if len(self.points) > _POINTS:
                    self._halve()
            self._sum = self._sum_t = 0.0
            self._count = 0
            self._end += self._width * math.ceil((t - self._end + 1e-9) / self._width)
        self._sum += value
        self._sum_t += t
        self._count += 1

    def _halve(self) -> None:
        old = self.points
        self.points = [
            (0.5 * (a[0] + b[0]), 0.5 * (a[1] + b[1]))
            for a, b in zip(old[0::2], old[1::2], strict=False)
        ]
        if len(old) % 2:
            self.points.append(old[-1])
        self._width *= 2.0

    def rise(self) -> float:
        """From the lowest of the record to now."""
        return self.points[-1][1] - min(value for _, value in self.points) if self.points else 0.0

    def shape(self) -> Regime:
        """LINEAR, ACCELERATING or SATURATING: how the growth up to now went."""
        points = self.points
        if len(points) < 3 * _LEAST_RUN:
            return Regime.LINEAR
        noise = _noise(points)
        runs: list[_Run] = []
        end = len(points) - 1
        while len(runs) < 3 and end >= _LEAST_RUN - 1:
            run = _straight_run(points, end, noise)
            if run is None:
                return Regime.LINEAR
            runs.append(run)
            end = run.begin - 1
        if len(runs) < 3:
            return Regime.LINEAR
        late, middle, early = runs
        if late.slope <= 0.0 or middle.gain <= 0.0 or early.gain <= 0.0:
            return Regime.LINEAR
        share = late.gain / (late.gain + middle.gain + early.gain)
        if share > 1.0 - _EARLIER:
            return Regime.LINEAR
        if _steeper(late, middle) and _steeper(middle, early):
            if middle.slope > _STILL * late.slope and early.slope > _STILL * middle.slope:
                return Regime.ACCELERATING
        elif share <= _DOMINANT and _steeper(middle, late) and _steeper(early, middle):
            return Regime.SATURATING
        return Regime.LINEAR


def _noise(points: list[tuple[float, float]]) -> float:
    """How far a point lies from its neighbours' middle; the risers of a staircase count as such."""
    values = [value for _, value in points]
    bends = sum(
        (a - 2.0 * b + c) ** 2 for a, b, c in zip(values, values[1:], values[2:], strict=False)
    )
    return math.sqrt(bends / (6.0 * (len(values) - 2)))


def _straight_run(points: list[tuple[float, float]], end: int, noise: float) -> _Run | None:
    """The longest straight run that ends there."""
    t0, v0 = points[end]
    n = 0
    x = y = xx = xy = yy = 0.0
    found: _Run | None = None
    for begin in range(end, -1, -1):
        dt, dv = points[begin][0] - t0, points[begin][1] - v0
        n += 1
        x += dt
        y += dv
        xx += dt * dt
        xy += dt * dv
        yy += dv * dv
        if n < _LEAST_RUN:
            continue
        spread = n * xx - x * x
        if spread <= 0.0:
            continue
        slope = (n * xy - x * y) / spread
        rest = max(0.0, yy - y * y / n - slope * slope * spread / n) / n
        gain = -slope * dt
        away = math.sqrt(rest)
        if found is None or away <= max(_STRAIGHT * abs(gain), _NOISE * noise):
            found = _Run(begin, slope, max(noise, away) * math.sqrt(n / spread), gain)
    return found


def _steeper(a: _Run, b: _Run) -> bool:
    """Whether `a` rises faster than `b`, beyond doubt."""
    return a.slope > _BENT * b.slope and a.slope - b.slope > _SURE * math.hypot(a.error, b.error)


class Wording:
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

    def word(self, t: float, regime: Regime) -> Regime:
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
