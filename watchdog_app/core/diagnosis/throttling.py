"""Detect slowdowns of GPUs by heat and by the power supply."""

from __future__ import annotations

from collections import deque

from watchdog_app.core.diagnosis.gpu_faults import FaultKind
from watchdog_app.core.model.hardware import ClockEvent

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}

_BIN_S, _BINS = 15.0, 8  # readings are counted in bins, 2 min in all
_HEAT_SHARE, _HEAT_CLEAR = 0.5, 0.2
_BRAKE_S, _BRAKES = 60.0, 3
_BRAKE_CLEAR_S = 600.0


class Slowdowns:
    """The current slowdowns of one GPU: `found`."""

    def __init__(self) -> None:
        self.found: frozenset[FaultKind] = frozenset()
        # Of each bin its end, its readings, and the hot ones of them.
        self._bins: deque[tuple[float, int, int]] = deque(maxlen=_BINS + 1)
        self._brakes = deque([float("-inf")] * _BRAKES, maxlen=_BRAKES)  # times of the last ones

    def add(self, now: float, events: frozenset[str]) -> None:
        """
        Add one reading.

        Args:
            now: monotonic seconds.
            events: why the GPU lowers its clocks now; values of `ClockEvent`.
        """
        if not self._bins or now >= self._bins[-1][0]:
            self._bins.append((now + _BIN_S, 0, 0))
        end, readings, hot = self._bins.pop()
        self._bins.append((end, readings + 1, hot + bool(events & _THERMAL)))
        if ClockEvent.POWER_BRAKE in events:
            self._brakes.append(now)
        found = set()
        lately = [each for each in self._bins if each[0] > now - _BIN_S * _BINS]
        hot_share = sum(each[2] for each in lately) / sum(each[1] for each in lately)
        least = _HEAT_CLEAR if FaultKind.HEAT in self.found else _HEAT_SHARE
        if len(lately) >= _BINS and hot_share >= least:
            found.add(FaultKind.HEAT)
        recent = now - self._brakes[-1] <= _BRAKE_CLEAR_S
        if now - self._brakes[0] <= _BRAKE_S or (recent and FaultKind.POWER_BRAKE in self.found):
            found.add(FaultKind.POWER_BRAKE)
        self.found = frozenset(found)
