"""
Temperatures of everything but GPUs, and how often the CPU was throttled.

The meaning of "max" and "crit" differs between chips. On Intel and AMD processors "crit" is where
throttling begins, and laptops run there all day. On mainboards the firmware sets both to any value.
So watchdog uses a threshold only if it knows what happens there.

Sources: kernel, Documentation/hwmon/{sysfs-interface,coretemp,k10temp}.rst,
Documentation/driver-api/thermal/sysfs-api.rst;
drivers/thermal/intel/therm_throt.c for the counters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog_app.base.linux.files import sysfs_int, sysfs_names, sysfs_text
from watchdog_app.core.model.status import Temperature

_SCAN_EVERY_S = 60.0
_MAX_SENSORS = 32
_INPUT = re.compile(r"temp(\d+)_input")
_TRIP = re.compile(r"trip_point_(\d+)_type")
# An unconnected sensor shows -128, -62, 0, 127 or 255; a disk without a threshold shows 65261.
_COLDEST_C, _HOTTEST_C = 1.0, 126.0
_LOWEST_PASSIVE_C = 70.0
_LOWEST_LIMIT_C, _HIGHEST_LIMIT_C = 40.0, 130.0
# Zones of Intel's INT340x and chipset drivers. They are named after ACPI devices of four letters
# (TCPU, B0D4, SEN1) or pch_*. Since Linux 5.12 the kernel only logs their critical point.
# Processors run at it, so it is harmless (int340x_thermal_zone.c, intel_pch_thermal.c, both
# `.critical`).
_LOGGED_ONLY = re.compile(r"[A-Z][A-Z0-9_]{3}|TCPU_PCI|B0D4_PCI|pch_\w+")
_CPU_ZONE = re.compile(r"x86_pkg_temp|(cpu|soc|bigcore|cluster|tcpu)[-_0-9a-z]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Chip:
    """What watchdog knows about the sensors of one driver."""

    label: str
    is_cpu: bool = False
    main: tuple[str, ...] = ()  # label prefixes of the channel for the whole chip, best first
    slowdown: str | None = None  # attribute with the temperature at which the chip throttles itself
    # attribute with the temperature at which the chip switches itself off
    shutdown: str | None = None
    every_s: float = 0.0  # shortest interval between reads that does not disturb the device


_PROCESSOR = ("Package id", "Physical id", "Tdie", "Tctl")
_CHIPS = {
    "coretemp": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    "k10temp": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    "zenpower": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    # Each read keeps the disk out of its power-saving states.
    "nvme": _Chip("NVMe disk", False, ("Composite",), "max", "crit", every_s=10.0),
    # SATA disks (drivetemp) are left out: some spin up to answer, and they do not throttle.
    "jc42": _Chip("memory module"),
    "spd5118": _Chip("memory module"),
}


@dataclass(slots=True)
class _Sensor:
    """One temperature sensor and its last reading."""

    record: Temperature  # without degrees
    every_s: float
    may_sleep: str | None  # file that says whether its device sleeps; None: it never sleeps
    due_mono_s: float = float("-inf")
    last: Temperature | None = None  # None: the value is implausible, or the device is asleep


class TemperatureReader:
    """
    Reads temperatures below one /sys. For one thread, since a device may block it.

    The reader searches for sensors every minute, and at once when one has vanished.
    """

    def __init__(self, sys_root: str = "/sys") -> None:
        self._root = sys_root
        self._sensors: dict[str, _Sensor] = {}  # by file
        self._next_scan_mono_s = float("-inf")

    def read(self, now_mono_s: float) -> tuple[Temperature, ...]:
        """
        Read the temperatures; unreadable values are left out.

        Args:
            now_mono_s: monotonic time of the sample.
        """
        if now_mono_s >= self._next_scan_mono_s:
            self._next_scan_mono_s = now_mono_s + _SCAN_EVERY_S
            self._find_sensors()
        for path, sensor in self._sensors.items():
            if now_mono_s >= sensor.due_mono_s:
                self._read_sensor(path, sensor, now_mono_s)
        return tuple(each.last for each in self._sensors.values() if each.last is not None)

    def _read_sensor(self, path: str, sensor: _Sensor, now_mono_s: float) -> None:
        sensor.last = None
        if sensor.may_sleep is not None and sysfs_text(sensor.may_sleep) != "active":
            return
        degrees = _celsius(sysfs_int(path), _COLDEST_C, _HOTTEST_C)
        if degrees is not None:
            sensor.last = Temperature.from_object(sensor.record, celsius=degrees)
            sensor.due_mono_s = now_mono_s + sensor.every_s
        elif not os.path.exists(path):  # EIO, EAGAIN: temporary; no file: device removed
            self._next_scan_mono_s = now_mono_s

    def _find_sensors(self) -> None:
        known = self._sensors
        self._sensors = {
            # The number in the path may belong to another device now.
            path: known[path]
            if path in known and known[path].record == record
            else _new_sensor(path, record)
            for path, record in _find_temperatures(self._root).items()
        }


def _new_sensor(path: str, record: Temperature) -> _Sensor:
    name, _, _ = record.key.partition("/")
    chip = _CHIPS.get(name.split(" ")[0])
    # A read wakes a device that the system has suspended.
    status = f"{os.path.dirname(path)}/device/power/runtime_status"
    may_sleep = sysfs_text(status) in ("active", "suspended", "suspending", "resuming")
    return _Sensor(record, 0.0 if chip is None else chip.every_s, status if may_sleep else None)


def _find_temperatures(root: str) -> dict[str, Temperature]:
    """Find every temperature worth watching, by its file."""
    found: dict[str, Temperature] = {}
    base = f"{root}/class/hwmon"
    zones = {_zone_name(kind) for _, kind in _list_zones(root)}
    seen: dict[str, int] = {}
    for folder in sysfs_names(base):
        path = f"{base}/{folder}"
        name = sysfs_text(f"{path}/name")
        if name is None:
            continue
        if _zone_name(name) in zones or "/thermal_zone" in os.path.realpath(path):
            continue  # a zone of the same sensor says more about what happens at its limits
        channels = [match[1] for each in sysfs_names(path) if (match := _INPUT.fullmatch(each))]
        chip = _CHIPS.get(name)
        if chip is not None and channels:
            number_of = seen[name] = seen.get(name, 0) + 1
            key = name if number_of == 1 else f"{name} {number_of}"
            found.update(_chip_temperatures(path, key, chip, channels))
    found.update(_zone_temperatures(root, any(each.is_cpu for each in found.values())))
    _number_labels(found)
    return dict(list(found.items())[:_MAX_SENSORS])


def _chip_temperatures(
    path: str, key: str, chip: _Chip, channels: list[str]
) -> dict[str, Temperature]:
    """
    Build temperatures of the channels for the whole chip; of all channels if none is labelled so.
    """
    labels = {channel: sysfs_text(f"{path}/temp{channel}_label") for channel in channels}
    chosen: list[str] = []
    for prefix in chip.main:
        chosen = [c for c in channels if (labels[c] or "").startswith(prefix)]
        if chosen:
            break
    found = {}
    for channel in chosen or channels:
        limit = f"{path}/temp{channel}_"
        slowdown = _read_limit_c(limit + chip.slowdown) if chip.slowdown else None
        shutdown = _read_limit_c(limit + chip.shutdown) if chip.shutdown else None
        slowdown = _plausible_slowdown(slowdown, shutdown)
        found[f"{path}/temp{channel}_input"] = Temperature(
            key=f"{key}/{labels[channel] or f'temp{channel}'}",
            label=chip.label,
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            is_cpu=chip.is_cpu,
        )
    return found


def _list_zones(root: str) -> Iterator[tuple[str, str]]:
    base = f"{root}/class/thermal"
    for folder in sysfs_names(base):
        if folder.startswith("thermal_zone"):
            kind = sysfs_text(f"{base}/{folder}/type")
            if kind is not None:
                yield folder, kind


def _zone_name(kind: str) -> str:
    return kind.replace("-", "_").lower()


def _zone_temperatures(root: str, cpu_known: bool) -> dict[str, Temperature]:
    """Build temperatures of the CPU's zones and of zones at whose trip points the kernel acts."""
    found = {}
    for folder, kind in _list_zones(root):
        path = f"{root}/class/thermal/{folder}"
        is_cpu = _CPU_ZONE.fullmatch(kind) is not None
        logged_only = _LOGGED_ONLY.fullmatch(kind) is not None
        slowdown, shutdown = (None, None) if logged_only else _read_trip_points(path)
        if is_cpu and cpu_known and shutdown is None:
            continue  # the driver of the CPU already reports this temperature
        if not is_cpu and slowdown is None and shutdown is None:
            continue
        found[f"{path}/temp"] = Temperature(
            key=folder,
            label="CPU" if is_cpu else "mainboard" if kind == "acpitz" else kind,
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            is_cpu=is_cpu,
        )
    return found


def _read_trip_points(path: str) -> tuple[float | None, float | None]:
    """Read where the kernel throttles and where it powers off; None each: it does not."""
    if sysfs_text(f"{path}/mode") == "disabled":
        return None, None
    points: dict[str | None, list[float]] = {"passive": [], "hot": [], "critical": []}
    for entry in sysfs_names(path):
        match = _TRIP.fullmatch(entry)
        if match is not None:
            degrees = _read_limit_c(f"{path}/trip_point_{match[1]}_temp")
            found = points.get(sysfs_text(f"{path}/{entry}"))
            if found is not None and degrees is not None:
                found.append(degrees)
    shutdown = min(points["critical"], default=None)
    # Of two passive points, the lower one only switches the regulation on. Some firmware names 50
    # degrees, and a busy machine is above that all day.
    believed = [each for each in points["passive"] if each >= _LOWEST_PASSIVE_C]
    slowdown = max(believed, default=min(points["hot"], default=None))
    return _plausible_slowdown(slowdown, shutdown), shutdown


def _plausible_slowdown(slowdown: float | None, shutdown: float | None) -> float | None:
    """Return the slowdown temperature if it is below the shutdown temperature, else None."""
    if slowdown is None or shutdown is None or slowdown < shutdown:
        return slowdown
    return None


def _number_labels(found: dict[str, Temperature]) -> None:
    """Number equal labels: "CPU 0", "CPU 1"."""
    labels = [each.label for each in found.values()]
    counts: dict[str, int] = {}
    for each in found.values():
        label = each.label or ""
        if labels.count(label) > 1:
            index = counts.get(label, 0)
            counts[label] = index + 1
            each.label = f"{label} {index}"


def _read_limit_c(path: str) -> float | None:
    return _celsius(sysfs_int(path), _LOWEST_LIMIT_C, _HIGHEST_LIMIT_C)


def _celsius(milli: int | None, lowest: float, highest: float) -> float | None:
    """Convert thousandths of a degree; None outside what a working sensor can show."""
    if milli is None:
        return None
    degrees = milli / 1000.0
    return degrees if lowest < degrees <= highest else None
