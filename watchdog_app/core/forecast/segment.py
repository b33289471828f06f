"""
Least squares since the last change of course.

A two-sided CUSUM of the one-step residuals (Page 1954) notices that the line
no longer holds; the fit then starts again from the last few samples.
"""

from __future__ import annotations

import math
from collections import deque

_DRIFT = 0.5  # residuals under this many deviations are no evidence
_THRESHOLD = 8.0  # accumulated evidence that ends a segment
_CLIP = 6.0  # one wild sample counts this much at most
_MEMORY = 0.98  # of the size of residuals, a sample
_YOUTH = 10.0  # samples
_KEEP = 10  # samples that the next segment begins with
_NOISE_FLOOR = 1e-3  # of the largest value seen: a perfect line must not end at its first ripple


class Segment:
    """A straight line through everything since the last change of course."""

    __slots__ = (
        "_down",
        "_n",
        "_recent",
        "_sigma",
        "_up",
        "_x",
        "_xx",
        "_xy",
        "_y",
        "_yy",
        "first",
        "origin",
    )

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

    def _take(self, t: float, v: float) -> None:
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
                        self._take(when, what)
                    return
        else:
            self._recent.append((t, v))
        self._take(t, v)

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
