"""Detect slowdowns: heat, power supply, CPU throttling, and training on battery."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.diagnosis.gpu_faults import CPU, FAULTS, FaultKind, Finding, build_finding
from watchdog_app.core.model import devices
from watchdog_app.core.model.decisions import Contributor
from watchdog_app.core.model.hardware import Battery, ClockEvent, Gpu
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import UNPLUGGED

_THERMAL = {ClockEvent.SOFTWARE_THERMAL, ClockEvent.HARDWARE_THERMAL}

_BIN_S = 15.0
_BINS = 60
_HEAT_S = 120.0
_HEAT_SHARE, _HEAT_CLEAR = 0.5, 0.2
_BRAKE_S, _BRAKES = 60.0, 3
_BRAKE_CLEAR_S = 600.0
_CPU_S, _CPU_SHARE, _CPU_CLEAR = 300.0, 0.5, 0.2
_WORKS_PERCENT = 50.0  # percent of a core
_UNPLUGGED_S = 20.0  # ignores a plug that is moved
_REST_S = 60.0  # longest gap between two trainings, or their validations
_READINGS = "readings"


class _Card:
    """Clock event reasons of one GPU over the last quarter of an hour."""

    def __init__(self) -> None:
        # The end of each bin, and how many of its readings show each slowdown.
        self._bins: deque[tuple[float, Counter[str]]] = deque(maxlen=_BINS)
        self.found: frozenset[FaultKind] = frozenset()

    def add(self, now: float, events: frozenset[str]) -> None:
        """Count one reading."""
        if not self._bins or now >= self._bins[-1][0]:
            self._bins.append((now + _BIN_S, Counter()))
        counts = self._bins[-1][1]
        counts[_READINGS] += 1
        counts[FaultKind.HEAT] += bool(events & _THERMAL)
        counts[FaultKind.POWER_BRAKE] += ClockEvent.POWER_BRAKE in events
        self.found = frozenset(self._detect(now))

    def _detect(self, now: float) -> Iterator[FaultKind]:
        readings = self._count(_READINGS, now, _HEAT_S)
        share = self._count(FaultKind.HEAT, now, _HEAT_S) / max(1, readings)
        seen_in_full = len(self._bins_within(now, _HEAT_S)) >= _HEAT_S / _BIN_S
        least = _HEAT_CLEAR if FaultKind.HEAT in self.found else _HEAT_SHARE
        if seen_in_full and share >= least:
            yield FaultKind.HEAT
        known = FaultKind.POWER_BRAKE in self.found
        window_s, brakes = (_BRAKE_CLEAR_S, 1) if known else (_BRAKE_S, _BRAKES)
        if self._count(FaultKind.POWER_BRAKE, now, window_s) >= brakes:
            yield FaultKind.POWER_BRAKE

    def _count(self, what: str, now: float, window_s: float) -> int:
        return sum(counts[what] for counts in self._bins_within(now, window_s))

    def _bins_within(self, now: float, window_s: float) -> list[Counter[str]]:
        return [counts for end, counts in self._bins if end > now - window_s]


class ThrottlingDetector:
    """Track throttling of the GPUs and the CPU, and the power source of one machine."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None
        # end of a bin, and whether the CPU was throttled in it
        self._cpu: deque[tuple[float, bool]] = deque(maxlen=_BINS)
        self._cpu_from: tuple[float, int] | None = None
        self._cpu_found = False
        self._unplugged_mono_s: float | None = None
        self._trained: tuple[float, tuple[Contributor, ...]] = (float("-inf"), ())

    def observe(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        cpu_percent: Mapping[ProcessKey, float | None],
        training: frozenset[ProcessKey],
    ) -> Iterator[Finding]:
        """
        Yield the current slowdowns.

        Args:
            snapshot: one sample.
            tasks: tasks of this sample.
            cpu_percent: by task; 100 is one core.
            training: tasks whose agent is in a training.
        """
        hardware = snapshot.hardware
        yield from self._gpu_findings(snapshot, tasks)
        if hardware.cpu_throttle_events is None and not hardware.batteries:
            return
        at_work = [
            Contributor(task.key, task.name)
            for task in sorted(tasks, key=lambda each: -(cpu_percent.get(each.key) or 0.0))
            if task.key in training or (cpu_percent.get(task.key) or 0.0) >= _WORKS_PERCENT
        ]
        on_cards = devices.devices_by_task(hardware, tasks)
        trainings = [each for each in at_work if each.task in training or each.task in on_cards]
        yield from self._cpu_findings(snapshot, at_work)
        yield from self._battery_findings(snapshot, trainings or at_work)

    def _gpu_findings(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
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
            if known is None or not known.found:
                continue
            users = devices.tasks_on_gpu(gpu.processes, devices.tasks_by_pid(tasks))
            on_it = [Contributor(task.key, task.name) for task in users]
            for trouble in FaultKind:
                if trouble in known.found:
                    yield build_finding(FAULTS[trouble], gpu, on_it, _fault_text(trouble, gpu))

    def _cpu_findings(
        self, snapshot: Snapshot, at_work: Sequence[Contributor]
    ) -> Iterator[Finding]:
        now, events = snapshot.mono_s, snapshot.hardware.cpu_throttle_events
        if events is None:
            return
        if self._cpu_from is None or events < self._cpu_from[1]:
            self._cpu_from = now, events
        elif now - self._cpu_from[0] >= _BIN_S:
            self._cpu.append((now, events > self._cpu_from[1]))
            self._cpu_from = now, events
        within = [hot for end, hot in self._cpu if end > now - _CPU_S]
        share = sum(within) / len(within) if len(within) >= 0.8 * _CPU_S / _BIN_S else 0.0
        self._cpu_found = share >= (_CPU_CLEAR if self._cpu_found else _CPU_SHARE)
        if self._cpu_found and at_work:
            yield build_finding(FAULTS[FaultKind.CPU_HEAT], CPU, at_work[:3])

    def _battery_findings(
        self, snapshot: Snapshot, trainings: Sequence[Contributor]
    ) -> Iterator[Finding]:
        hardware, now = snapshot.hardware, snapshot.mono_s
        draining = [each for each in hardware.batteries if each.discharging]
        if trainings:
            self._trained = now, tuple(trainings[:3])
        if not draining or hardware.on_mains or now - self._trained[0] > _REST_S:
            self._unplugged_mono_s = None
            return
        if self._unplugged_mono_s is None:
            self._unplugged_mono_s = now
        if now - self._unplugged_mono_s >= _UNPLUGGED_S:
            row = FAULTS[FaultKind.UNPLUGGED]
            yield build_finding(
                row, UNPLUGGED, self._trained[1], f"{row.text}: {_format_charge(draining)}"
            )


def _fault_text(trouble: FaultKind, gpu: Gpu) -> str:
    """Return the row's text with the figures of this GPU. Empty if the row has no figures."""
    if trouble is FaultKind.HEAT and gpu.temperature_c is not None:
        return f"{FAULTS[trouble].text} at {gpu.temperature_c:.0f} °C"
    return ""


def _format_charge(batteries: Sequence[Battery]) -> str:
    percent = sum(each.percent for each in batteries) / len(batteries)
    text = f"{percent:.0f} % left"
    energy = [each.energy_j for each in batteries]
    watts = [each.power_w for each in batteries]
    left = sum(part for part in energy if part is not None)
    drawn = sum(part for part in watts if part is not None)
    if None in energy or None in watts or drawn <= 0:
        return text
    # Use whole minutes, because the text is compared with the text of the next sample.
    return f"{text}, about {format_duration(60 * max(1, round(left / drawn / 60)))} at this rate"
