"""
Time until a battery is empty: a line through its last minutes.

A battery is drained by what runs, so that its line holds for as long as the training
does; but its own figures move in steps of up to a percent, once in a while.
"""

from __future__ import annotations

from watchdog_app.core.forecast.bins import Bins
from watchdog_app.core.forecast.outlook import Outlook
from watchdog_app.core.outlook import Caution, Forecast, Regime

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
            self._think(used, limit)
        elif self._outlook.forecast is not None:
            self._say(max(0.0, self._outlook.forecast.eta_s - passed), self._outlook.slope_per_s)
        if used >= limit:
            self._outlook.strict_eta_s = self._outlook.eager_eta_s = 0.0

    def heed(self, caution: Caution) -> None:
        """A line needs no more or less evidence; the stages begin sooner or later by themselves."""

    def assess(self) -> Outlook:
        """Where it leads, as of the last sample."""
        return self._outlook

    def _think(self, used: float, limit: float) -> None:
        room = max(0.0, limit - used)
        slope, count = self._slope(limit, room)
        if slope <= 0.0:
            self._outlook = Outlook(Regime.FLAT if count else Regime.UNKNOWN)
            return
        self._say(room / slope, slope, count * _BIN_S)

    def _say(self, eta_s: float, slope: float, span_s: float | None = None) -> None:
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
                whole = self._between(edges, room > _LITTLE * limit)
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

    def _between(self, edges: list[int], patient: bool) -> float:
        """
        Slope of a level that is told in a few large steps, from its first step to its last.

        A line through two or three of them says what the place of the window says. Of a single
        step nothing is known, unless there is no time to wait for another.
        """
        values = self._bins.values
        first, last = edges[0], edges[-1]
        if last > first:
            return (values[last] - values[first]) / ((last - first) * self._bins.width_s)
        return 0.0 if patient else self._bins.line(len(values) - _WINDOWS[0], len(values))[0]
