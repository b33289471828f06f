"""Turning points of a series: the peaks and troughs of sawteeth and bursts."""

from __future__ import annotations

from collections import deque

_KEPT = 12


class Swings:
    """Alternating peaks and troughs that differ by more than a given size."""

    __slots__ = ("_extreme", "_extreme_t", "_rising", "peaks", "troughs")

    def __init__(self) -> None:
        self.peaks: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (time, value)
        self.troughs: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._rising = True
        self._extreme: float | None = None
        self._extreme_t = 0.0

    def add(self, t: float, v: float, size: float) -> None:
        """Take a sample; a turn is one that came back by more than `size`."""
        if self._extreme is None:
            self._extreme, self._extreme_t = v, t
        elif self._rising:
            if v >= self._extreme:
                self._extreme, self._extreme_t = v, t
            elif v < self._extreme - size:
                self.peaks.append((self._extreme_t, self._extreme))
                self._rising, self._extreme, self._extreme_t = False, v, t
        elif v <= self._extreme:
            self._extreme, self._extreme_t = v, t
        elif v > self._extreme + size:
            self.troughs.append((self._extreme_t, self._extreme))
            self._rising, self._extreme, self._extreme_t = True, v, t

    def was_left(self, t: float, v: float, slack: float, lately_s: float) -> bool:
        """`v` was reached and left again: twice at any time, or once in the last `lately_s`."""
        times = 0
        for when, peak in self.peaks:
            if peak >= v - slack:
                times += 1
                if t - when < lately_s:
                    return True
        return times >= 2
