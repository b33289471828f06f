"""Forecasters for device memory, batteries and the clock, which change slowly or in steps."""

from __future__ import annotations

import math
from array import array
from collections import deque

from watchdog_app.core.forecast import LOW_SHARE, Forecaster, Outlook
from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.model.decisions import Forecast, Regime

_GAPS = 15  # bins: after a longer gap the old values say nothing about the trend


class Bins:
    """
    The newest `size` means of a series over consecutive bins of `width_s`.

    Args:
        width_s: width of a bin. A bin without a sample repeats the previous value.
        size: number of bins to keep.
    """

    __slots__ = ("_begun", "_count", "_sum", "size", "values", "width_s")

    def __init__(self, width_s: float, size: int) -> None:
        self.width_s, self.size = width_s, size
        self.clear()

    def clear(self) -> None:
        """Remove all values."""
        self.values = array("d")  # finished bins, oldest first
        self._begun: float | None = None
        self._sum, self._count = 0.0, 0

    def add(self, mono_s: float, value: float) -> bool:
        """
        Add a sample.

        Args:
            mono_s: time of the sample, later than the last one.
            value: level in the resource's unit.

        Returns:
            Whether the sample finished a bin.
        """
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
        Slope per second of the least squares line through values[first:last], and its error.

        The error is the standard error; of two values it is 0. At least two values are needed.

        Args:
            first: index of the first bin.
            last: index after the last bin.
        """
        part = self.values[first:last]
        count = len(part)
        middle = 0.5 * (count - 1)
        # `sum` rounds differently since Python 3.12.
        mean = math.fsum(part) / count
        spread = count * (count * count - 1) / 12.0
        slope = math.fsum((i - middle) * value for i, value in enumerate(part)) / spread
        error = 0.0
        if count > 2:
            errors = (value - mean - slope * (i - middle) for i, value in enumerate(part))
            rest = math.fsum(each * each for each in errors)
            error = math.sqrt(rest / (count - 2) / spread)
        return slope / self.width_s, error / self.width_s


_LATELY_S = 6.0
_GRAB = 0.25  # of the limit: a rise this large within _LATELY_S is one allocation
_BEYOND = 0.005  # of the limit: a rise this far above the allocation is growth again
_FULL = 0.97
_RISES = 0.002  # of the limit: a larger rise within _LATELY_S is growth


class DeviceMemoryForecaster(TrendForecaster):
    """Forecasts the memory of one card, or a framework's part of it."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[tuple[float, float]] = deque()
        self._grabbed: float | None = None  # level after a large allocation, if there was one

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Add a sample; see `Forecaster.update`."""
        super().update(mono_s, used, limit)
        recent = self._recent
        recent.append((mono_s, used))
        while recent[0][0] < mono_s - _LATELY_S or len(recent) > 256:
            recent.popleft()
        if used - min(value for _, value in recent) > _GRAB * limit:
            self._grabbed = used
        elif self._grabbed is not None and used > self._grabbed + _BEYOND * limit:
            self._grabbed = None

    def assess(self) -> Outlook:
        """The forecast as of the last sample."""
        outlook = super().assess()
        rises = self._used - self._recent[0][1] > _RISES * self._limit if self._recent else False
        if self._grabbed is None and (rises or self._used < _FULL * self._limit):
            # Drivers and agents report every 1 or 2 s, so faster samples show nothing new.
            outlook.fastest_per_s = 0.0
            return outlook
        return Outlook(outlook.regime if rises else Regime.FLAT)


_BIN_S = 10.0
_WINDOWS = (12, 30, 90)  # bins per window
_GAIN = 0.01  # of the limit: one step of a percentage
_FEW_STEPS = 5  # steps in a window: up to this number use the steps, not a line
_LITTLE = 0.05  # of the limit left: from here a rough estimate is better than nothing
_ALIKE = (0.5, 2.0)  # ratio of the slopes of a window's halves under one load
_FASTER = 1.15  # ratio of these slopes from which the drain accelerates
_LOW, _HIGH = 0.75, 1.4  # firmware knows the rest of a battery hardly more exactly


class DischargeForecaster(Forecaster):
    """Forecasts the discharge of a battery, as a share of its capacity."""

    def __init__(self) -> None:
        self._bins = Bins(_BIN_S, _WINDOWS[-1])
        self._outlook = Outlook()
        self._t: float | None = None

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Add a sample; see `Forecaster.update`."""
        passed = 0.0 if self._t is None else mono_s - self._t
        self._t = mono_s
        if self._bins.add(mono_s, used):
            self._update_outlook(used, limit)
        elif self._outlook.forecast is not None:
            self._set_outlook(
                max(0.0, self._outlook.forecast.eta_s - passed), self._outlook.slope_per_s
            )
        if used >= limit:
            self._outlook.strict_eta_s = self._outlook.eager_eta_s = 0.0

    def _update_outlook(self, used: float, limit: float) -> None:
        room = max(0.0, limit - used)
        slope, count = self._slope(limit, room)
        if slope <= 0.0:
            self._outlook = Outlook(Regime.FLAT if count else Regime.UNKNOWN)
            return
        self._set_outlook(room / slope, slope, count * _BIN_S)

    def _set_outlook(self, eta_s: float, slope: float, span_s: float | None = None) -> None:
        self._outlook = Outlook(
            regime=Regime.LINEAR,
            forecast=Forecast(eta_s, _LOW * eta_s, _HIGH * eta_s),
            slope_per_s=slope,
            span_s=self._outlook.span_s if span_s is None else span_s,
            strict_eta_s=eta_s,
            eager_eta_s=eta_s,
        )

    def _slope(self, limit: float, room: float) -> tuple[float, int]:
        """Slope over the longest window under one load, and its bins; slope 0: no discharge."""
        values = self._bins.values
        end = len(values)
        slope, chosen = 0.0, 0
        for count in _WINDOWS:
            if count > end:
                break
            chosen = chosen or count
            if values[-1] - values[-count] < _GAIN * limit:
                continue
            edges = [i for i in range(end - count + 1, end) if values[i] > values[i - 1]]
            if len(edges) <= _FEW_STEPS:
                whole = self._step_slope(edges, room > _LITTLE * limit)
                if whole > 0.0:
                    slope, chosen = whole, count
                continue
            whole, _ = self._bins.line(end - count, end)
            early, _ = self._bins.line(end - count, end - count // 2)
            late, _ = self._bins.line(end - count // 2, end)
            alike = early > 0.0 and _ALIKE[0] <= late / early <= _ALIKE[1]
            if slope == 0.0 or alike:
                # Worn cells drop faster near their end, so an accelerating discharge continues.
                gives_way = alike and late > _FASTER * early and count > _WINDOWS[0]
                slope, chosen = late if gives_way else whole, count
        return slope, chosen

    def _step_slope(self, edges: list[int], patient: bool) -> float:
        """
        Slope of a level with a few large steps, from the first step to the last.

        A line through two or three steps depends on the position of the window. A single step
        gives no slope, unless the time is too short to wait for another (`patient` is false).
        """
        values = self._bins.values
        first, last = edges[0], edges[-1]
        if last > first:
            return (values[last] - values[first]) / ((last - first) * self._bins.width_s)
        return 0.0 if patient else self._bins.line(len(values) - _WINDOWS[0], len(values))[0]


class ClockForecaster(Forecaster):
    """Knows when a time is over. No warning is due in the first half of the time."""

    def update(self, mono_s: float, used: float, limit: float) -> None:  # noqa: ARG002
        """Add a sample; see `Forecaster.update`."""
        left_s = max(0.0, limit - used)
        near_s = left_s / LOW_SHARE if used >= limit / 2 else None  # exact: no failure is earlier
        forecast = Forecast(left_s, left_s, left_s)
        self._outlook = Outlook(
            Regime.LINEAR, forecast, 1.0, strict_eta_s=near_s, eager_eta_s=near_s
        )
