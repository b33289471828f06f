"""
Cards, heat and power of this machine, at one look and without waiting for any of them.

A sensor can take milliseconds to answer, and one behind a bus that hangs never
does. So heat and power are read in a thread of their own, every 2 s, and a look takes
what was last heard. Where there are no such sensors there is no thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from watchdog_app.base.threads import Worker
from watchdog_app.core.model.hardware import (
    Battery,
    CpuPower,
    Fan,
    Gpu,
    Hardware,
    Temperature,
    Throttling,
)
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu.backend import GpuLook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.sensors.batteries import BatteryReader
    from watchdog_app.machine.sensors.power import PowerReader
    from watchdog_app.machine.sensors.thermal import HeatReader

_EVERY_S = 2.0
_LOOK_EVERY_S = 60.0  # for sensors where there were none
_FIRST_WAIT_S = 0.1
_SILENT_AFTER_S = 15.0
_SOURCE = "hardware"


class GpuFace(Protocol):
    """Where the cards are read: `machine.gpu.Gpus`."""

    def read(self, now_mono_s: float, busy: bool = False) -> GpuLook:
        """The cards as last heard, each second while `busy`; never waits for a driver."""

    def close(self) -> None:
        """Give back what is held open."""


@dataclass(frozen=True, slots=True)
class HeatAndPower:
    """One look at everything but the cards."""

    temperatures: tuple[Temperature, ...] = ()
    fans: tuple[Fan, ...] = ()
    throttling: Throttling | None = None
    batteries: tuple[Battery, ...] = ()
    on_mains: bool | None = None
    cpu_power: CpuPower | None = None


class HeatAndPowerReader(Protocol):
    """How heat and power are read here."""

    def present(self) -> bool:
        """Whether there may be anything to read; cheap, and asks no device."""

    def read(self, now_mono_s: float) -> HeatAndPower:
        """What can be read now. May have to wait for a device."""

    def close(self) -> None:
        """Give back what is held open."""


class SysReader:
    """The trees of Linux. Temperatures at each call; what changes more slowly more rarely."""

    _TREES = (
        "class/hwmon",
        "class/thermal",
        "class/power_supply",
        "class/powercap",
        "devices/system/cpu/cpu0/thermal_throttle",
    )

    def __init__(self, sys_root: str = "/sys") -> None:
        self._root = sys_root
        self._readers: tuple[HeatReader, BatteryReader, PowerReader] | None = None

    def present(self) -> bool:
        """Whether one of the trees has anything in it; what reads them is loaded then."""
        if self._readers is None and self._any():
            self._load()
        return self._readers is not None

    def _load(self) -> None:
        # 0.3 MB that a machine without such sensors does without: most virtual ones.
        from watchdog_app.machine.sensors.batteries import BatteryReader
        from watchdog_app.machine.sensors.power import PowerReader
        from watchdog_app.machine.sensors.thermal import HeatReader

        self._readers = (HeatReader(self._root), BatteryReader(self._root), PowerReader(self._root))

    def _any(self) -> bool:
        for tree in self._TREES:
            try:
                with os.scandir(f"{self._root}/{tree}") as entries:
                    if any(not entry.name.startswith("cooling_device") for entry in entries):
                        return True
            except OSError:
                continue
        return False

    def read(self, now_mono_s: float) -> HeatAndPower:
        """What can be read now; what cannot is left out."""
        if self._readers is None:
            return _BLANK
        heat, battery, power = self._readers
        temperatures, fans, throttling = heat.read(now_mono_s)
        batteries, on_mains = battery.read(now_mono_s)
        return HeatAndPower(
            temperatures, fans, throttling, batteries, on_mains, power.read(now_mono_s)
        )

    def close(self) -> None:
        """Give the descriptors back."""
        if self._readers is not None:
            self._readers[0].close()


class HardwareWatch:
    """
    Cards, heat and power. Not for several threads at once.

    `faults` are those in force, by source. What a machine does not have, or this user may not
    read, is no fault.
    """

    def __init__(
        self,
        sys_root: str = "/sys",
        gpu: GpuFace | None = None,
        reader: HeatAndPowerReader | None = None,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        """
        Args:
            sys_root: what stands for /sys.
            gpu: where the cards are read; closed with this. None: they are not.
            reader: how heat and power are read. None: by the trees of Linux.
            first_wait_s: how long the first look may wait for the first answer.
        """
        self._reader = SysReader(sys_root) if reader is None else reader
        self._gpu = gpu
        self._first_wait_s = first_wait_s
        self._worker = Worker()
        self._present = False
        self._look_mono_s = self._due_mono_s = float("-inf")
        self._asked_mono_s: float | None = None  # None: no question is open
        self._last: HeatAndPower | None = None
        self._heard = False
        self._gpu_sources: set[str] = set()
        self.faults: dict[str, Fault] = {}
        # Somebody waits for figures of the cards: they are read each second, whoever is on them.
        self.cards_busy = False

    def read(self, now_mono_s: float) -> Hardware:
        """Everything as last heard; takes microseconds, whatever the devices do."""
        self._follow(now_mono_s)
        known = self._last
        if self._gpu is None:
            if known is None:
                return _NOTHING
            gpus: tuple[Gpu, ...] = ()
            gpus_mono_s = driver = None
        else:
            look = self._gpu.read(now_mono_s, self.cards_busy)
            gpus, gpus_mono_s, driver = look.gpus, look.read_mono_s, look.driver_version
            self._take_faults(look.faults)
            known = _BLANK if known is None else known
        return Hardware(
            gpus=gpus,
            gpus_mono_s=gpus_mono_s,
            driver_version=driver,
            temperatures=known.temperatures,
            fans=known.fans,
            batteries=known.batteries,
            on_mains=known.on_mains,
            cpu_power=known.cpu_power,
            cpu_throttling=known.throttling,
        )

    def close(self) -> None:
        """End the thread; nobody waits for it, since its device may never answer."""
        if self._present:
            self._worker.submit(self._reader.close)
            self._worker.close()
        else:
            self._reader.close()
        if self._gpu is not None:
            self._gpu.close()

    def _follow(self, now: float) -> None:
        if not self._present:
            if now < self._look_mono_s:
                return
            self._look_mono_s = now + _LOOK_EVERY_S
            self._present = self._reader.present()
            if not self._present:
                return
        self._worker.collect()
        if self._asked_mono_s is None:
            if now >= self._due_mono_s:
                self._due_mono_s = now + _EVERY_S
                self._asked_mono_s = now
                self._worker.submit(partial(self._reader.read, now), self._answered)
                if not self._heard:
                    self._worker.collect(self._first_wait_s)
        elif now - self._asked_mono_s >= _SILENT_AFTER_S and _SOURCE not in self.faults:
            self._last = None
            self._say("a sensor does not answer")

    def _answered(self, found: HeatAndPower | None, error: Exception | None) -> None:
        self._asked_mono_s = None
        self._heard = True
        self._last = found
        if error is None:
            self.faults.pop(_SOURCE, None)
        else:  # a driver that shows what was not foreseen
            self._say(f"reading them failed ({error!r})")

    def _say(self, reason: str) -> None:
        self.faults[_SOURCE] = Fault(
            _SOURCE,
            f"Heat and power are not watched: {reason}. Memory still is.",
            "It is tried again all the time. See the kernel's log for the device: "
            "dmesg --level=err,warn",
        )

    def _take_faults(self, faults: tuple[Fault, ...]) -> None:
        now = {fault.source: fault for fault in faults}
        for source in self._gpu_sources - now.keys():
            self.faults.pop(source, None)
        self.faults.update(now)
        self._gpu_sources = set(now)


_NOTHING = Hardware()
_BLANK = HeatAndPower()
