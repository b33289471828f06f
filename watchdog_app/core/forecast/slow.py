"""Device memory and batteries, whose figures move slowly or in steps."""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import replace

from watchdog_app.core.forecast import Outlook
from watchdog_app.core.forecast.forecaster import TrendForecaster
from watchdog_app.core.model.decisions import Caution, Forecast, Regime

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
        """
        Take a sample; True when a bin was finished by it. Times increase.

        Args:
            mono_s: when it was measured.
            value: in the resource's unit.
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


_LATELY_S = 6.0
_GRAB = 0.25  # of the limit within that time: taken as a whole
_BEYOND = 0.005  # of the limit: growth after that is growth
_FULL = 0.97
_RISES = 0.002  # of the limit, lately


class DeviceMemoryForecaster:
    """Forecast of one card's memory, or of one framework's part of it."""

    __slots__ = ("_grabbed", "_inner", "_limit", "_recent", "_used")

    def __init__(self) -> None:
        self._inner = TrendForecaster()
        self._recent: deque[tuple[float, float]] = deque()
        self._grabbed: float | None = None  # the level at which a grab has ended so far
        self._used = self._limit = 0.0

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Take a sample; times increase."""
        self._inner.update(mono_s, used, limit)
        self._used, self._limit = used, limit
        recent = self._recent
        recent.append((mono_s, used))
        while recent[0][0] < mono_s - _LATELY_S or len(recent) > 256:
            recent.popleft()
        if used - min(value for _, value in recent) > _GRAB * limit:
            self._grabbed = used
        elif self._grabbed is not None and used > self._grabbed + _BEYOND * limit:
            self._grabbed = None

    def set_caution(self, caution: Caution) -> None:
        """From now on ask for more or less evidence before growth counts as convincing."""
        self._inner.set_caution(caution)

    def assess(self) -> Outlook:
        """Where the series leads, as of the last sample."""
        outlook = self._inner.assess()
        rises = self._used - self._recent[0][1] > _RISES * self._limit if self._recent else False
        if self._grabbed is None and (rises or self._used < _FULL * self._limit):
            # Drivers and agents tell once a second or two: looking faster would show nothing.
            return replace(outlook, fastest_per_s=0.0)
        return Outlook(outlook.regime if rises else Regime.FLAT)


_BIN_S = 10.0
_WINDOWS = (12, 30, 90)  # bins
_GAIN = 0.01  # of the limit: a step of the percent
_FEW_STEPS = 5  # in a window
_LITTLE = 0.05  # of the limit left: a rough guess is better than none
_ALIKE = (0.5, 2.0)  # slopes of the halves of a window over one load
_FASTER = 1.15
_LOW, _HIGH = 0.75, 1.4  # what firmware knows of a battery's last part is not much more exact


class DischargeForecaster:
    """Forecast of what was taken out of a battery, towards what can be taken out."""

    __slots__ = ("_bins", "_outlook", "_t")

    def __init__(self) -> None:
        self._bins = Bins(_BIN_S, _WINDOWS[-1])
        self._outlook = Outlook()
        self._t: float | None = None

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """Take a sample; times increase."""
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

    def set_caution(self, caution: Caution) -> None:
        """A line needs no more or less evidence; the stages begin sooner or later by themselves."""

    def assess(self) -> Outlook:
        """Where it leads, as of the last sample."""
        return self._outlook

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
        """Of the longest window under one load, and its bins; 0 of none that shows any drain."""
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
                # Worn cells give way towards their end: what is drained ever faster goes on so.
                gives_way = alike and late > _FASTER * early and count > _WINDOWS[0]
                slope, chosen = late if gives_way else whole, count
        return slope, chosen

    def _step_slope(self, edges: list[int], patient: bool) -> float:
        """
        Slope of a level that is reported in a few large steps, from the first step to the last.

        A line through two or three of them says what the place of the window says. Of a single
        step nothing is known, unless there is no time to wait for another.
        """
        values = self._bins.values
        first, last = edges[0], edges[-1]
        if last > first:
            return (values[last] - values[first]) / ((last - first) * self._bins.width_s)
        return 0.0 if patient else self._bins.line(len(values) - _WINDOWS[0], len(values))[0]
