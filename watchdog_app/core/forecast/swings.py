"""Turning points of a series: the peaks and troughs of sawteeth and bursts."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

_KEPT = 16


class Visits(NamedTuple):
    """How often a level was reached and left again before some moment."""

    times: int
    latest_t: float | None
    highest: (
        float | None
    )  # highest peak of all before that moment, whether or not it reached the level


class Cycle(NamedTuple):
    """The rhythm of the last few turns."""

    period_s: float  # median time from peak to peak
    rise_s: float  # median time from trough to peak


class Swings:
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
