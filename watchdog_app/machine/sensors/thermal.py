"""
Heat of everything but graphics cards of NVIDIA, fans, and how often the CPU was slowed down.

Read from files that stay open; `heat_sources` knows which.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import KeptFile, parse_int, sysfs_text
from watchdog_app.core.model.hardware import Fan, Temperature, Throttling
from watchdog_app.machine.sensors.heat_sources import counters, every_s, find, shown

_DISCOVER_S = 60.0
_SLOW_S = 10.0  # fans and counters: the controllers that know them are slow to answer
_FASTEST_RPM = 30_000


class _Sensor:
    """One temperature with its file held open."""

    __slots__ = ("_due_mono_s", "_every_s", "_last", "_status", "file", "record")

    def __init__(self, path: str, record: Temperature, every_s: float) -> None:
        self.file = KeptFile(path)
        self.record = record
        # Reading a card that the system has put to sleep wakes it, on kernels before 6.13.
        status = f"{os.path.dirname(path)}/device/power/runtime_status"
        asleep_at_times = sysfs_text(status) in ("active", "suspended", "suspending", "resuming")
        self._status = status if asleep_at_times else None
        self._every_s = every_s
        self._due_mono_s = float("-inf")
        self._last: Temperature | None = None

    def read(self, now_mono_s: float) -> Temperature | None:
        """
        The sensor now, or as it was when it may not be asked again yet.

        None while it shows nonsense, or its device is asleep.

        Raises:
            SensorError: it cannot be read, or is gone.
        """
        if now_mono_s < self._due_mono_s:
            return self._last
        self._last = None
        if self._status is None or sysfs_text(self._status) == "active":
            self._last = self._ask()
            self._due_mono_s = now_mono_s + self._every_s
        return self._last

    def _ask(self) -> Temperature | None:
        degrees = shown(parse_int(self.file.read(64)))
        if degrees is None:
            return None
        known = self.record
        return Temperature(
            known.key, known.label, degrees, known.slowdown_c, known.shutdown_c, known.is_cpu
        )


class HeatReader:
    """
    Temperatures and fans below one /sys. For one thread, which may have to wait for devices.

    Temperatures are read at each call; fans and counters every 10 s; which sensors there are is
    looked up every minute, and at once when one has vanished.
    """

    def __init__(self, sys_root: str = "/sys") -> None:
        self._root = sys_root
        self._sensors: dict[str, _Sensor] = {}  # by file
        self._fan_files: list[tuple[str, KeptFile]] = []
        self._counters: list[KeptFile] = []
        self._fans: tuple[Fan, ...] = ()
        self._throttling: Throttling | None = None
        self._discover_mono_s = self._slow_mono_s = float("-inf")

    def read(
        self, now_mono_s: float
    ) -> tuple[tuple[Temperature, ...], tuple[Fan, ...], Throttling | None]:
        """What can be read now; what cannot is left out."""
        if now_mono_s >= self._discover_mono_s:
            self._discover_mono_s = now_mono_s + _DISCOVER_S
            self._discover()
        found = []
        for path, sensor in list(self._sensors.items()):
            try:
                temperature = sensor.read(now_mono_s)
            except SensorError:
                # EIO and EAGAIN pass, ENODEV stays; either way the next look finds out.
                sensor.file.close()
                if not os.path.exists(path):
                    del self._sensors[path]
                    self._discover_mono_s = now_mono_s
                continue
            if temperature is not None:
                found.append(temperature)
        if now_mono_s >= self._slow_mono_s:
            self._slow_mono_s = now_mono_s + _SLOW_S
            self._fans = tuple(self._read_fans())
            self._throttling = self._read_throttling()
        return tuple(found), self._fans, self._throttling

    def close(self) -> None:
        """Give the descriptors back."""
        for file in (
            *(sensor.file for sensor in self._sensors.values()),
            *(file for _, file in self._fan_files),
            *self._counters,
        ):
            file.close()
        self._sensors, self._fan_files, self._counters = {}, [], []

    def _discover(self) -> None:
        temperatures, fans = find(self._root)
        for path in self._sensors.keys() - temperatures.keys():
            self._sensors.pop(path).file.close()
        for path, record in temperatures.items():
            known = self._sensors.get(path)
            if known is None:
                self._sensors[path] = _Sensor(path, record, every_s(record))
            elif known.record != record:  # another device has the number now
                known.file.close()
                self._sensors[path] = _Sensor(path, record, every_s(record))
        if [path for path, _ in fans] != [file.path for _, file in self._fan_files]:
            for _, file in self._fan_files:
                file.close()
            self._fan_files = [(label, KeptFile(path)) for path, label in fans]
        paths = counters(self._root)
        if paths != [file.path for file in self._counters]:
            for file in self._counters:
                file.close()
            self._counters = [KeptFile(path) for path in paths]

    def _read_fans(self) -> Iterator[Fan]:
        for label, file in self._fan_files:
            try:
                rpm = parse_int(file.read(64))
            except SensorError:
                continue
            if rpm is not None and 0 <= rpm <= _FASTEST_RPM:
                yield Fan(label, rpm)

    def _read_throttling(self) -> Throttling | None:
        total, known = 0, False
        for file in self._counters:
            try:
                count = parse_int(file.read(64))
            except SensorError:
                continue  # a CPU that was taken offline
            if count is not None and count >= 0:
                total, known = total + count, True
        return Throttling(total) if known else None
