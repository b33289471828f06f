"""What brakes: heat, power supply, the processor, and a training on battery."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.diagnosis import clock_events
from watchdog_app.core.diagnosis.findings import Finding, TaskRef
from watchdog_app.core.diagnosis.gpu_faults import FaultKind, Severity
from watchdog_app.core.model import devices
from watchdog_app.core.model.hardware import Battery, Gpu, gpu_label
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import UNPLUGGED, ResourceKey, ResourceKind

CPU = ResourceKey(ResourceKind.THROTTLING, "cpu")
_BIN_S = 15.0
_BINS = 60
_HEAT_S = 120.0
_HEAT_SHARE, _HEAT_CLEAR = 0.5, 0.2
_BRAKE_S, _BRAKES = 60.0, 3
_SLOWDOWN_S, _SLOWDOWNS = 600.0, 6  # 0.6 a minute over ten minutes
_CPU_S, _CPU_SHARE, _CPU_CLEAR = 300.0, 0.5, 0.2
_WORKS_PERCENT = 50.0  # of a core
_UNPLUGGED_S = 20.0  # a plug that is moved
_REST_S = 60.0  # between two trainings, or their validations
_THERMAL = clock_events.SOFTWARE_THERMAL | clock_events.HARDWARE_THERMAL
_OTHER_CAUSES = _THERMAL | clock_events.POWER_BRAKE
Workers = Sequence[TaskRef]


@dataclass(slots=True)
class _Bin:
    """Some seconds of readings, counted."""

    until_mono_s: float
    readings: int = 0
    hot: int = 0
    braked: int = 0
    slowdowns: int = 0  # beginnings of a slowdown without a cause of its own


class _Card:
    """The last quarter of an hour of one card's clock event reasons."""

    __slots__ = ("_bins", "_last", "found")

    def __init__(self) -> None:
        self._bins: deque[_Bin] = deque(maxlen=_BINS)
        self._last = 0
        self.found: frozenset[FaultKind] = frozenset()

    def take(self, now: float, gpu: Gpu) -> None:
        """Count one reading."""
        mask = gpu.throttle_reasons
        if mask is None:
            return
        if not self._bins or now >= self._bins[-1].until_mono_s:
            self._bins.append(_Bin(now + _BIN_S))
        current = self._bins[-1]
        current.readings += 1
        current.hot += bool(mask & _THERMAL)
        current.braked += bool(mask & clock_events.POWER_BRAKE)
        slow = bool(mask & clock_events.HARDWARE_SLOWDOWN) and not mask & _OTHER_CAUSES
        current.slowdowns += slow and not self._last & clock_events.HARDWARE_SLOWDOWN
        self._last = mask
        self.found = frozenset(self._judge(now))

    def rate_a_minute(self, now: float) -> float:
        """Slowdowns a minute over the ten minutes that are judged."""
        return 60.0 / _SLOWDOWN_S * self._sum("slowdowns", now, _SLOWDOWN_S)

    def _judge(self, now: float) -> Iterator[FaultKind]:
        hot = self._share("hot", now, _HEAT_S)
        if hot >= (_HEAT_CLEAR if FaultKind.HEAT in self.found else _HEAT_SHARE):
            yield FaultKind.HEAT
        window = _SLOWDOWN_S if FaultKind.POWER_BRAKE in self.found else _BRAKE_S
        least = 1 if FaultKind.POWER_BRAKE in self.found else _BRAKES
        if self._sum("braked", now, window) >= least:
            yield FaultKind.POWER_BRAKE
        if self._sum("slowdowns", now, _SLOWDOWN_S) >= _SLOWDOWNS:
            yield FaultKind.HARDWARE_SLOWDOWN

    def _sum(self, what: str, now: float, window_s: float) -> int:
        return sum(getattr(each, what) for each in self._within(now, window_s))

    def _share(self, what: str, now: float, window_s: float) -> float:
        """Of the readings of a window that was seen in full; else 0."""
        within = self._within(now, window_s)
        if len(within) < window_s / _BIN_S:
            return 0.0
        readings = sum(each.readings for each in within)
        return sum(getattr(each, what) for each in within) / readings if readings else 0.0

    def _within(self, now: float, window_s: float) -> list[_Bin]:
        return [each for each in self._bins if each.until_mono_s > now - window_s]


class ThrottlingDetector:
    """Follows what brakes the cards, the processor and the power of one machine."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._read_mono_s: float | None = None
        self._cpu: deque[tuple[float, bool]] = deque(maxlen=_BINS)  # end of a bin, throttled in it
        self._cpu_from: tuple[float, int] | None = None
        self._cpu_found = False
        self._unplugged_mono_s: float | None = None
        self._trained: tuple[float, tuple[TaskRef, ...]] = (float("-inf"), ())

    def observe(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        cpu_percent: Mapping[ProcessKey, float | None],
        training: frozenset[ProcessKey],
    ) -> tuple[Finding, ...]:
        """
        What brakes now.

        Args:
            snapshot: one look.
            tasks: of this look.
            cpu_percent: by task, 100 is one core.
            training: tasks whose agent is in a training.
        """
        hardware = snapshot.hardware
        found: list[Finding] = []
        if hardware.gpus or self._cards:
            found += self._of_cards(snapshot, tasks)
        if hardware.cpu_throttling is None and not hardware.batteries:
            return tuple(found)
        at_work = [
            TaskRef(task.key, task.name)
            for task in sorted(tasks, key=lambda each: -(cpu_percent.get(each.key) or 0.0))
            if task.key in training or (cpu_percent.get(task.key) or 0.0) >= _WORKS_PERCENT
        ]
        on_cards = devices.by_task(hardware, tasks)
        trainings = [each for each in at_work if each.key in training or each.key in on_cards]
        found += self._of_cpu(snapshot, at_work)
        found += self._of_batteries(snapshot, trainings or at_work)
        return tuple(found)

    def _of_cards(self, snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Finding]:
        hardware, now = snapshot.hardware, snapshot.mono_s
        read = hardware.gpus_mono_s
        if read is None or read != self._read_mono_s:
            self._read_mono_s = read
            for gone in self._cards.keys() - {gpu.id for gpu in hardware.gpus}:
                del self._cards[gone]
            for gpu in hardware.gpus:
                if gpu.parent_id is None:  # the parts of a card share its clocks
                    self._cards.setdefault(gpu.id, _Card()).take(now, gpu)
        for gpu in hardware.gpus:
            card = self._cards.get(gpu.id)
            if card is not None and card.found:
                on_it = [TaskRef(task.key, task.name) for task in devices.on_card(gpu, tasks)]
                for trouble in FaultKind:
                    if trouble in card.found:
                        yield _of_card(trouble, gpu, card.rate_a_minute(now), tuple(on_it))

    def _of_cpu(self, snapshot: Snapshot, at_work: Workers) -> Iterator[Finding]:
        now, throttling = snapshot.mono_s, snapshot.hardware.cpu_throttling
        if throttling is None:
            return
        if self._cpu_from is None or throttling.events < self._cpu_from[1]:
            self._cpu_from = now, throttling.events
        elif now - self._cpu_from[0] >= _BIN_S:
            self._cpu.append((now, throttling.events > self._cpu_from[1]))
            self._cpu_from = now, throttling.events
        within = [hot for end, hot in self._cpu if end > now - _CPU_S]
        share = sum(within) / len(within) if len(within) >= 0.8 * _CPU_S / _BIN_S else 0.0
        self._cpu_found = share >= (_CPU_CLEAR if self._cpu_found else _CPU_SHARE)
        if self._cpu_found and at_work:
            yield Finding(
                FaultKind.CPU_HEAT, CPU, "the processor", Severity.INFO,
                "it has been clocked down for heat most of the last 5 min",
                "Clear the air ways and the fans. What runs on it takes longer than it could.",
                tuple(at_work[:3]),
            )  # fmt: skip

    def _of_batteries(self, snapshot: Snapshot, trainings: Workers) -> Iterator[Finding]:
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
            yield Finding(
                FaultKind.UNPLUGGED, UNPLUGGED, "battery", Severity.WARNING,
                f"a training runs on the battery: {_charge(draining)}",
                "Plug the machine in.", self._trained[1],
            )  # fmt: skip


def _of_card(trouble: FaultKind, gpu: Gpu, rate: float, on_it: tuple[TaskRef, ...]) -> Finding:
    text, remedy = _OF_CARDS[trouble]
    figures = {
        "heat": "" if gpu.temperature_c is None else f" at {gpu.temperature_c:.0f} °C",
        "rate": f"{rate:.1f}",
        "index": str(gpu.index),
    }
    return Finding(
        trouble,
        ResourceKey(ResourceKind.THROTTLING, gpu.id),
        gpu_label(gpu),
        Severity.WARNING,
        text.format(**figures),
        remedy.format(**figures),
        on_it,
    )


_LOWER = "sudo nvidia-smi -i {index} -pl WATTS"
_OF_CARDS = {  # what is the case, and what to do
    FaultKind.HEAT: (
        "it has been clocked down for heat most of the last 2 min{heat}",
        (
            f"Look at its fans and the air in front of them, or lower its power limit ({_LOWER}). "
            "The training on it is slower than it could be."
        ),
    ),
    FaultKind.POWER_BRAKE: (
        "an external power brake holds it back: the power supply asks for it",
        (
            "Check the power supply and the card's power cables: a supply at its limit is what "
            "switches a machine off in the middle of a training."
        ),
    ),
    FaultKind.HARDWARE_SLOWDOWN: (
        "its hardware slows it down {rate} times a minute: its supply of power breaks down",
        f"Check its power cables and the power supply; a lower power limit helps ({_LOWER}).",
    ),
}


def _charge(batteries: Sequence[Battery]) -> str:
    percent = sum(each.percent for each in batteries) / len(batteries)
    text = f"{percent:.0f} % left"
    energy = [each.energy_j for each in batteries]
    watts = [each.power_w for each in batteries]
    left = sum(part for part in energy if part is not None)
    drawn = sum(part for part in watts if part is not None)
    if None in energy or None in watts or drawn <= 0:
        return text
    # In tens of seconds: the words are compared from look to look.
    return f"{text}, about {format_duration(60 * max(1, round(left / drawn / 60)))} at this rate"
