"""Detect slowdowns of GPUs by heat and by the power supply."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from watchdog_app.core.diagnosis.gpu_faults import FAULTS, FaultKind, Finding, build_finding
from watchdog_app.core.model import devices
from watchdog_app.core.model.decisions import Contributor
from watchdog_app.core.model.hardware import ClockEvent
from watchdog_app.core.model.machine import Snapshot, Task

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}

_BIN_S, _BINS = 15.0, 8  # readings are counted in bins, 2 min in all
_HEAT_SHARE, _HEAT_CLEAR = 0.5, 0.2
_BRAKE_S, _BRAKES = 60.0, 3
_BRAKE_CLEAR_S = 600.0


class _Card:
    """Slowdowns of one GPU."""

    def __init__(self) -> None:
        self.found: frozenset[FaultKind] = frozenset()
        # Of each bin its end, its readings, and the hot ones of them.
        self._bins: deque[tuple[float, int, int]] = deque(maxlen=_BINS + 1)
        self._brakes = deque([float("-inf")] * _BRAKES, maxlen=_BRAKES)  # times of the last ones

    def add(self, now: float, events: frozenset[str]) -> None:
        """Add one reading."""
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


class ThrottlingDetector:
    """Track throttling of the GPUs of one machine."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None

    def observe(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
        """
        Yield the current slowdowns.

        Args:
            snapshot: one sample.
            tasks: tasks of this sample.
        """
        hardware, now = snapshot.hardware, snapshot.mono_s
        read = hardware.gpus_mono_s
        if read is None or read != self._read_mono_s:
            self._read_mono_s = read
            for gone in self._cards.keys() - {gpu.id for gpu in hardware.gpus}:
                del self._cards[gone]
            for gpu in hardware.gpus:
                if gpu.parent_id is None:  # the parts of a GPU share its clocks
                    card = self._cards.setdefault(gpu.id, _Card())
                    if gpu.throttling is not None:
                        card.add(now, gpu.throttling)
        for gpu in hardware.gpus:
            known = self._cards.get(gpu.id)
            for kind in () if known is None else sorted(known.found):
                users = devices.tasks_on_gpu(gpu.processes, devices.tasks_by_pid(tasks))
                on_it = [Contributor(task.key, task.name) for task in users]
                text = FAULTS[kind].text
                if kind is FaultKind.HEAT and gpu.temperature_c is not None:
                    text += f" at {gpu.temperature_c:.0f} °C"
                yield build_finding(FAULTS[kind], gpu, on_it, text)
