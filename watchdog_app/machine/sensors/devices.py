"""
Disks, GPUs, temperatures and power: devices that may answer slowly or never.

A thread reads each device, and a sample takes the last answer. If there is nothing to read, there
is not a thread either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import Fault, Gauge
from watchdog_app.core.model.resource import ResourceKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.gpu import Gpus
    from watchdog_app.machine.sensors.power import BatteryReader
    from watchdog_app.machine.sensors.temperatures import TemperatureReader

T = TypeVar("T")

_DISK_EVERY_S = 5.0
_HEAT_EVERY_S = 2.0
# how often to search again for temperature and power sensors when none were found
_SCAN_EVERY_S = 60.0
# for all new devices together; a local disk answers within a thousandth of that
_FIRST_WAIT_S = 0.1
_SILENT_AFTER_S = 15.0
_SOURCE = "hardware"


class _Device(Generic[T]):
    """
    One device and its last answer.

    Args:
        what: name that is unique within one `Background`.
        ask: called in a thread with the monotonic time; never returns None.
        every_s: seconds between two reads.
    """

    def __init__(self, what: str, ask: Callable[[float], T], every_s: float) -> None:
        self._question = Question(0, what)
        self._ask = ask
        self._every_s = every_s
        self._asked_mono_s: float | None = None
        self.waiting = False
        self.value: T | None = None  # None: no answer yet, silent or failed
        self.problem: str | None = None

    def poll(self, background: Background, now_mono_s: float) -> bool:
        """
        Start a read if one is due, and store a finished one.

        Args:
            background: runs the read in a thread.
            now_mono_s: of the sample.

        Returns:
            Whether this call started the first read.
        """
        first = self._asked_mono_s is None
        since_s = now_mono_s - (self._asked_mono_s or 0.0)
        if not self.waiting:
            if not first and since_s < self._every_s:
                return False
            self.waiting, self._asked_mono_s, since_s = True, now_mono_s, 0.0
        try:
            value = background.ask(self._question, lambda: self._ask(now_mono_s))
        except Exception as error:  # a driver may return anything
            self.waiting, self.value = False, None
            self.problem = (isinstance(error, OSError) and error.strerror) or repr(error)
        else:
            if value is not None:
                self.waiting, self.value, self.problem = False, value, None
            elif since_s >= _SILENT_AFTER_S:
                self.value, self.problem = None, "it does not answer"
        return first


def _poll_all(
    devices: Collection[_Device[Any]], background: Background, now_mono_s: float, wait_s: float
) -> None:
    """Poll devices; wait a moment for the first answer of new ones."""
    new = [device for device in devices if device.poll(background, now_mono_s)]
    if new:
        background.wait(wait_s)
        for device in new:
            device.poll(background, now_mono_s)


class Disks:
    """
    Free space on the file systems that hold folders of rescues.

    Args:
        ask: reads the space for a folder; raises OSError.
    """

    def __init__(self, ask: Callable[[str], Gauge] | None = None) -> None:
        self._ask = ask or read_disk_space
        self._disks: dict[str, _Device[Gauge]] = {}
        # Let the threads end at once: there is nothing to read for the next five seconds.
        self._background = Background(patience_s=0.0, linger_s=0.0)

    @property
    def faults(self) -> dict[str, Fault]:
        """Folders that cannot be read, by path."""
        return {
            path: Fault(
                f"disk {path}",
                f"The room left for rescues in {path} is not watched: {disk.problem}.",
                "Give watchdog the right to enter that folder, see that its disk is there, or "
                "choose another folder.",
            )
            for path, disk in self._disks.items()
            if disk.problem is not None
        }

    def watch(self, paths: Iterable[str]) -> None:
        """Watch the file systems of exactly these folders, whether they exist yet or not."""
        self._disks = {path: self._disks.get(path) or self._new_device(path) for path in paths}

    def _new_device(self, path: str) -> _Device[Gauge]:
        return _Device(path, lambda _: self._ask(path), _DISK_EVERY_S)

    def read(self, now_mono_s: float) -> tuple[Gauge, ...]:
        """
        Return the space as last read, some seconds ago at most, in the order of the folders.

        A folder that cannot be read or does not answer becomes a fault instead.
        """
        devices = self._disks.values()
        _poll_all(devices, self._background, now_mono_s, _FIRST_WAIT_S)
        return tuple(device.value for device in devices if device.value is not None)

    def close(self) -> None:
        """End the threads without waiting for them: a disk may never answer."""
        self._background.close()


def read_disk_space(path: str) -> Gauge:
    """
    Read the space of the file system that holds a folder. Blocks as long as its disk does.

    Raises:
        OSError: the file system cannot be read.
    """
    # The agent may not have made the folder yet. It will be on the file system of its nearest
    # existing parent.
    place = path
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    found = os.statvfs(place)
    # f_bavail leaves out the blocks reserved for root.
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    return Gauge(
        ResourceKind.DISK, path, f"disk for rescues in {path}", max(0, total - free), total
    )


class SysReader:
    """Reads /sys on Linux: temperatures at each call, slower values less often."""

    _TREES = "class/hwmon", "class/thermal", "class/power_supply"

    def __init__(self, sys_root: str = "/sys") -> None:
        self._root = sys_root
        self._readers: tuple[TemperatureReader, BatteryReader] | None = None

    def has_sensors(self) -> bool:
        """
        Return whether any of the trees has a sensor; load the reader modules at the first one.
        """
        if self._readers is None and any(map(self._tree_has_sensors, self._TREES)):
            # Importing them costs 0.3 MB, which machines without sensors (most virtual ones) save.
            from watchdog_app.machine.sensors.power import BatteryReader
            from watchdog_app.machine.sensors.temperatures import TemperatureReader

            root = self._root
            self._readers = TemperatureReader(root), BatteryReader(root)
        return self._readers is not None

    def _tree_has_sensors(self, tree: str) -> bool:
        try:
            names = os.listdir(f"{self._root}/{tree}")
        except OSError:
            return False
        return any(not name.startswith("cooling_device") for name in names)

    def read(self, now_mono_s: float) -> Hardware:
        """Read what is readable now; the rest is left out."""
        if self._readers is None:
            return Hardware()
        heat, battery = self._readers
        batteries, on_mains = battery.read(now_mono_s)
        return Hardware(temperatures=heat.read(now_mono_s), batteries=batteries, on_mains=on_mains)


class HardwareWatch:
    """
    GPUs, temperatures and power. Not thread-safe.

    `faults` holds the faults in force, by source. A missing device, or one that this user may not
    read, is not a fault.

    Args:
        sys_root: path to use as /sys.
        gpu: reads the GPUs; closed by `close`. None: GPUs are not read.
        reader: reads temperatures and power. None: from /sys.
        first_wait_s: how long the first sample may wait for the first answer.
    """

    def __init__(
        self,
        sys_root: str = "/sys",
        gpu: Gpus | None = None,
        reader: SysReader | None = None,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._reader = SysReader(sys_root) if reader is None else reader
        self._gpu = gpu
        self._first_wait_s = first_wait_s
        self._background = Background(patience_s=0.0, linger_s=None)
        self._device: _Device[Hardware] | None = None
        self._next_scan_mono_s = float("-inf")
        self.faults: dict[str, Fault] = {}
        # True: read the GPUs each second, even if no watched process uses them, because a client
        # waits for the figures.
        self.gpus_busy = False

    def read(self, now_mono_s: float) -> Hardware:
        """Return the last answers; takes microseconds, even if a device hangs."""
        self.faults = {}
        found = self._read_heat_and_power(now_mono_s) or _NO_HARDWARE
        if self._gpu is None:
            return found
        sample = self._gpu.read(now_mono_s, self.gpus_busy)
        self.faults.update((fault.source, fault) for fault in sample.faults)
        return replace(
            found,
            gpus=sample.gpus,
            gpus_mono_s=sample.read_mono_s,
            gpus_awaited=sample.awaited,
            driver_version=sample.driver_version,
        )

    def close(self) -> None:
        """End the threads without waiting for them: a device may never answer."""
        self._background.close()
        if self._gpu is not None:
            self._gpu.close()

    def _read_heat_and_power(self, now_mono_s: float) -> Hardware | None:
        device = self._device
        if device is None:
            if now_mono_s < self._next_scan_mono_s:
                return None
            self._next_scan_mono_s = now_mono_s + _SCAN_EVERY_S
            if not self._reader.has_sensors():
                return None
            device = self._device = _Device("heat", self._reader.read, _HEAT_EVERY_S)
        _poll_all((device,), self._background, now_mono_s, self._first_wait_s)
        if device.problem is not None:
            self.faults[_SOURCE] = Fault(
                _SOURCE,
                f"Heat and power are not watched: {device.problem}. Memory still is.",
                "It is tried again all the time. See the kernel's log for the device: "
                "dmesg --level=err,warn",
            )
        return device.value


_NO_HARDWARE = Hardware()
