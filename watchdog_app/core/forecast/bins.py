"""The recent past of a slow series in means of equal length, and straight lines through it."""

from __future__ import annotations

import math
from array import array

_GAPS = 15  # bins; nothing is known of what happened in a longer gap


class Bins:
    """
    Means of a series over consecutive spans of `width_s`, the newest `size` of them.

    Args:
        width_s: of a bin. A bin without a sample repeats the one before.
        size: how many are kept.
    """

    __slots__ = ("_begun", "_count", "_sum", "size", "values", "width_s")

    def __init__(self, width_s: float, size: int) -> None:
        self.width_s, self.size = width_s, size
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.values = array("d")  # finished ones, oldest first
        self._begun: float | None = None
        self._sum, self._count = 0.0, 0

    def add(self, mono_s: float, value: float) -> bool:
        """Take a sample; True when a bin was finished by it. Times increase."""
        if self._begun is None or mono_s - self._begun > _GAPS * self.width_s:
            self.clear()
            self._begun = mono_s
        finished = False
        while mono_s - self._begun >= self.width_s:
            mean = self._sum / self._count if self._count else self.values[-1]
            self.values.append(mean)
            self._begun += self.width_s
            self._sum, self._count = 0.0, 0
            finished = True
        if len(self.values) > 2 * self.size:
            del self.values[: -self.size]
        self._sum += value
        self._count += 1
        return finished

    def line(self, first: int, last: int) -> tuple[float, float]:
        """
        Slope a second of the least squares line through values[first:last], and its standard error.

        Needs at least two values; the error of two is 0.
        """
        part = self.values[first:last]
        count = len(part)
        middle = 0.5 * (count - 1)
        mean = sum(part) / count
        spread = count * (count * count - 1) / 12.0
        slope = sum((i - middle) * value for i, value in enumerate(part)) / spread
        error = 0.0
        if count > 2:
            rest = sum((value - mean - slope * (i - middle)) ** 2 for i, value in enumerate(part))
            error = math.sqrt(rest / (count - 2) / spread)
        return slope / self.width_s, error / self.width_s
