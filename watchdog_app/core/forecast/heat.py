"""
Forecasts of the time until a temperature reaches its limit.

Temperatures saturate: under a steady load a temperature approaches a final value ever more slowly
(Newton's law of cooling). Time constants of heat sinks are 20 to 120 s, of the silicon 1 to 3 s. A
straight line through the start of such a curve gives a false alarm when a training starts.

So growth counts only if its curve leads above the limit. The rise so far must be about as large as
the rest. A forecast reaches no further ahead than the measured time.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from watchdog_app.core.forecast import DEMAND, Forecaster, Outlook
from watchdog_app.core.forecast.slow import Bins
from watchdog_app.core.model.decisions import Caution, Forecast, Regime

_BIN_S = 2.0  # reading interval of the sensors
_WINDOWS = (12, 24, 48, 96, 192)  # bins per window
_SHORTEST = 8  # bins of a rise: a shorter rise (16 s) may be noise
_ONSET = 0.15  # of the rise: below this level the rise has not started
_FOR_NOTICES = 12  # bins: a shorter rise only allows a silent save
_GAIN_C = 3.0  # a smaller rise is due to the fan or the next batch
_CERTAIN = 3.0  # standard errors of a significant slope
_MARGIN = 0.15  # of the gain: the curve must lead this far above the limit
_STRICT_GAIN, _EAGER_GAIN = 1.0, 0.6  # least rise so far, as a share of the rest
_STRICT_SPAN, _EAGER_SPAN = 0.75, 1.0  # most time ahead, as a share of the measured time
_KNOWN_C = 1.0  # a past temperature within this difference counts as equally hot
_KNOWN_BINS = 10  # bins for which a temperature must last to count as harmless
_KNOWN_SPANS = 40  # spans (longest windows) whose maximum is kept: four hours
_KNOWN_ROOM_C = 5.0  # this close to the limit, earlier harmless heat does not count
_AT_LIMIT_C = 1.5  # a sensor with whole degrees may show this much less than the limit
_MOVES_C_PER_S = 0.02  # a smaller slope counts as flat
_CRITICAL_S = 3.0  # with less time left the limit counts as reached
_LOW, _HIGH = 0.6, 2.0  # ends of the forecast's interval, as multiples of its median


class _Rise(NamedTuple):
    """A rise over one window that leads to the limit."""

    eta_s: float
    slope_per_s: float
    span_s: float


class HeatForecaster(Forecaster):
    """
    Forecasts when one temperature reaches the limit at which a device switches off.

    It never asks for faster samples, because the sensor does not update faster.
    """

    def __init__(self) -> None:
        self._bins = Bins(_BIN_S, _WINDOWS[-1])
        self._outlook = Outlook()
        # Highest harmless temperature of each span, newest last, and number of bins in the newest.
        self._known: deque[float] = deque([-math.inf], maxlen=_KNOWN_SPANS)
        self._spent = 0
        self._demand = 1.0
        self._before = False, False  # whether the last bin had a strict and an eager forecast
        self._t: float | None = None
        self._limit = 0.0

    def update(self, mono_s: float, used: float, limit: float) -> None:
        """
        Add a sample in degrees Celsius.

        Args:
            mono_s: time of the sample, later than the last one.
            used: temperature.
            limit: temperature of the shutdown.
        """
        passed = 0.0 if self._t is None else mono_s - self._t
        self._t, self._limit = mono_s, limit
        if self._bins.add(mono_s, used):
            self._update_outlook()
        else:
            self._outlook.age(passed)

    def set_caution(self, caution: Caution) -> None:
        """Set how much evidence a rise needs from now on."""
        self._demand = DEMAND[caution]

    def _update_outlook(self) -> None:
        strict, nearest, saturating = self._read_windows()
        eager = math.inf if nearest is None else nearest.eta_s
        before, self._before = self._before, (strict < math.inf, eager < math.inf)
        # Two bins in a row, because a single one may be noise.
        strict = strict if before[0] else math.inf
        eager = eager if before[1] else math.inf
        if min(self._bins.values[-2:]) >= self._limit - _AT_LIMIT_C:
            strict = eager = 0.0
        self._update_known()
        self._outlook = self._build_outlook(strict, eager, nearest, saturating)

    def _read_windows(self) -> tuple[float, _Rise | None, bool]:
        """
        Read the rises that have enough evidence for a save.

        Returns:
            Seconds to the limit by rises that also justify a notification (infinite: none); the
            rise that reaches the limit first; whether the newest rise levels off below the limit.
        """
        values, demand = self._bins.values, self._demand
        room = max(0.0, self._limit - values[-1])
        strict, nearest = math.inf, None
        for window in _WINDOWS:
            if window > len(values):
                break
            begin, gain = self._find_onset(window)
            count = len(values) - begin
            if count < _SHORTEST or gain < max(_GAIN_C, _EAGER_GAIN * demand * room):
                continue
            rise = self._rise(begin, gain, room)
            if rise is None:
                # This window is closer to the present than longer ones, so it decides.
                return strict, nearest, True
            ahead = rise.eta_s * demand / rise.span_s
            if ahead > _EAGER_SPAN or self._was_as_hot(begin, room):
                continue
            if nearest is None or rise.eta_s < nearest.eta_s:
                nearest = rise
            enough = gain >= _STRICT_GAIN * demand * room and ahead <= _STRICT_SPAN
            if enough and count >= _FOR_NOTICES:
                strict = min(strict, rise.eta_s)
        return strict, nearest, False

    def _find_onset(self, window: int) -> tuple[int, float]:
        """Index at which the present rise began within a window, and its gain."""
        values = self._bins.values
        level = values[-1]
        lowest = min(values[-window:])
        onset = lowest + _ONSET * (level - lowest)
        first = len(values) - window
        low = (index for index in range(len(values) - 1, first, -1) if values[index] <= onset)
        begin = next(low, first)
        return begin, level - values[begin]

    def _rise(self, begin: int, gain: float, room: float) -> _Rise | None:
        """The forecast of a rise; None: it levels off below the limit, or is not significant."""
        bins, end = self._bins, len(self._bins.values)
        middle = (begin + end) // 2
        early, _ = bins.line(begin, middle)
        late, late_error = bins.line(middle, end)
        if early <= 0.0 or late <= _CERTAIN * late_error:
            return None
        span = (end - begin) * bins.width_s
        ratio = late / early
        if ratio >= 1.0:
            return _Rise(room / late, late, span)
        # The slopes of the two halves have the ratio exp(-span / 2 / tau).
        tau = -0.5 * span / math.log(ratio)
        now = late * math.sqrt(ratio)
        ahead = now * tau  # remaining rise
        if ahead > room + _MARGIN * gain:
            # Of a nearly straight rise, `log` of the ratio of both would be rounded to 0.
            return _Rise(-tau * math.log1p(-room / ahead), now, span)
        return None

    def _was_as_hot(self, begin: int, room: float) -> bool:
        """Whether the device was as hot before this rise without harm."""
        values = self._bins.values
        # The two newest spans may contain the start of this rise.
        known = max(list(self._known)[:-2], default=-math.inf)
        if room > _KNOWN_ROOM_C and known >= values[-1] - _KNOWN_C:
            return True
        before = values[max(0, len(values) - self._bins.size) : begin]
        return max(before, default=-math.inf) >= values[-1] - _KNOWN_C

    def _update_known(self) -> None:
        """Store the highest temperature that lasted without harm."""
        lasted = self._bins.values[-_KNOWN_BINS:]
        if len(lasted) == _KNOWN_BINS:
            self._known[-1] = max(self._known[-1], min(lasted))
        self._spent += 1
        if self._spent >= _WINDOWS[-1]:
            self._spent = 0
            self._known.append(-math.inf)

    def _build_outlook(
        self, strict: float, eager: float, shown: _Rise | None, saturating: bool
    ) -> Outlook:
        outlook = Outlook(self._regime(saturating) if shown is None else Regime.LINEAR)
        outlook.strict_eta_s = None if strict == math.inf else strict
        outlook.eager_eta_s = None if eager == math.inf else eager
        if shown is not None:
            outlook.forecast = Forecast(shown.eta_s, _LOW * shown.eta_s, _HIGH * shown.eta_s)
            outlook.slope_per_s, outlook.span_s = shown.slope_per_s, shown.span_s
            outlook.critical = strict < _CRITICAL_S
        return outlook

    def _regime(self, saturating: bool) -> Regime:
        """The kind of movement without a forecast."""
        end = len(self._bins.values)
        if end < _SHORTEST:
            return Regime.UNKNOWN
        slope, error = self._bins.line(end - _SHORTEST, end)
        if abs(slope) <= max(_MOVES_C_PER_S, _CERTAIN * error):
            return Regime.FLAT
        if slope < 0.0:
            return Regime.FALLING
        return Regime.SATURATING if saturating else Regime.LINEAR
