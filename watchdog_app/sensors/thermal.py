"""
Heat of everything but graphics cards of NVIDIA, fans, and how often the CPU was slowed down.

What a chip calls "max" or "crit" means something else for each: on Intel and AMD
processors "crit" is where they begin to slow themselves down, and laptops work there
all day; on mainboards both are whatever the firmware was shipped with. So thresholds
are believed only where it is known what happens at them.

Sources: kernel, Documentation/hwmon/{sysfs-interface,coretemp,k10temp}.rst,
Documentation/driver-api/thermal/sysfs-api.rst, Documentation/gpu/amdgpu/thermal.rst;
arch/x86/include: thermal_throttle in drivers/thermal/intel/therm_throt.c.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from watchdog_app.core.hardware import Fan, Temperature, Throttling
from watchdog_app.errors import SensorError
from watchdog_app.sensors.files import KeptFile
from watchdog_app.sensors.sysfs import folders, number, parse_number, words

_DISCOVER_S = 60.0
_SLOW_S = 10.0  # fans and counters: the controllers that know them are slow to answer
_MOST_SENSORS = 32
_MOST_COUNTERS = 64
_INPUT = re.compile(r"(temp|fan)(\d+)_input")
_TRIP = re.compile(r"trip_point_(\d+)_type")
# A sensor that is not connected shows -128, -62, 0, 127 or 255; a disk without a threshold 65261.
_COLDEST_C, _HOTTEST_C = 1.0, 126.0
_LOWEST_LIMIT_C, _HIGHEST_LIMIT_C = 40.0, 130.0
_FASTEST_RPM = 30_000
_CPU_LABEL = re.compile(r"CPU|PECI|TSI0|SMBUSMASTER 0", re.IGNORECASE)
_CPU_ZONE = re.compile(r"x86_pkg_temp|(cpu|soc|bigcore|cluster|tcpu)[-_0-9a-z]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Chip:
    """What is known of the sensors of one driver."""

    label: str
    is_cpu: bool = False
    main: tuple[str, ...] = ()  # prefixes of the labels that stand for the whole, best first
    slowdown: str | None = None  # the attribute at which it slows itself down
    shutdown: str | None = None  # ... and switches itself off


_PROCESSOR = ("Package id", "Physical id", "Tdie", "Tctl")
_CHIPS = {
    "coretemp": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    "k10temp": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    "zenpower": _Chip("CPU", True, _PROCESSOR, slowdown="crit"),
    "k8temp": _Chip("CPU", True, _PROCESSOR),
    "via_cputemp": _Chip("CPU", True, slowdown="crit"),
    "nvme": _Chip("NVMe disk", False, ("Composite",), slowdown="max", shutdown="crit"),
    "amdgpu": _Chip("AMD GPU", False, ("junction", "edge"), slowdown="crit", shutdown="emergency"),
    "drivetemp": _Chip("SATA disk"),
    "jc42": _Chip("memory module"),
    "spd5118": _Chip("memory module"),
}


class _Sensor:
    """One temperature with its file held open."""

    __slots__ = ("file", "record")

    def __init__(self, path: str, record: Temperature) -> None:
        self.file = KeptFile(path)
        self.record = record

    def read(self) -> Temperature | None:
        """
        The sensor now; None while it shows nonsense.

        Raises:
            SensorError: it cannot be read, or is gone.
        """
        celsius = _celsius(parse_number(self.file.read(64)), _COLDEST_C, _HOTTEST_C)
        if celsius is None:
            return None
        known = self.record
        return Temperature(
            known.key, known.label, celsius, known.slowdown_c, known.shutdown_c, known.is_cpu
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
                temperature = sensor.read()
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
        temperatures, fans = _look(self._root)
        for path in self._sensors.keys() - temperatures.keys():
            self._sensors.pop(path).file.close()
        for path, record in temperatures.items():
            known = self._sensors.get(path)
            if known is None:
                self._sensors[path] = _Sensor(path, record)
            elif known.record != record:  # another device has the number now
                known.file.close()
                self._sensors[path] = _Sensor(path, record)
        if [path for path, _ in fans] != [file.path for _, file in self._fan_files]:
            for _, file in self._fan_files:
                file.close()
            self._fan_files = [(label, KeptFile(path)) for path, label in fans]
        counters = _counters(self._root)
        if counters != [file.path for file in self._counters]:
            for file in self._counters:
                file.close()
            self._counters = [KeptFile(path) for path in counters]

    def _read_fans(self) -> Iterator[Fan]:
        for label, file in self._fan_files:
            try:
                rpm = parse_number(file.read(64))
            except SensorError:
                continue
            if rpm is not None and 0 <= rpm <= _FASTEST_RPM:
                yield Fan(label, rpm)

    def _read_throttling(self) -> Throttling | None:
        total, known = 0, False
        for file in self._counters:
            try:
                count = parse_number(file.read(64))
            except SensorError:
                continue  # a CPU that was taken offline
            if count is not None and count >= 0:
                total, known = total + count, True
        return Throttling(total) if known else None


def _look(root: str) -> tuple[dict[str, Temperature], list[tuple[str, str]]]:
    """Every temperature worth watching by its file, and every fan as (file, label)."""
    found: dict[str, Temperature] = {}
    spare: dict[str, Temperature] = {}
    fans: list[tuple[str, str]] = []
    base = f"{root}/class/hwmon"
    zones = {_zone_name(kind) for _, kind in _zones(root)}
    seen: dict[str, int] = {}
    for folder in folders(base):
        path = f"{base}/{folder}"
        # Until Linux 3.x a driver's attributes lay in its device.
        if not os.path.exists(f"{path}/name") and os.path.exists(f"{path}/device/name"):
            path = f"{path}/device"
        name = words(f"{path}/name")
        if name is None:
            continue
        inputs = [match for entry in folders(path) if (match := _INPUT.fullmatch(entry))]
        for match in inputs:
            if match[1] == "fan":
                label = words(f"{path}/fan{match[2]}_label") or f"{name} fan {match[2]}"
                fans.append((f"{path}/{match[0]}", label))
        if _zone_name(name) in zones or "/thermal_zone" in os.path.realpath(path):
            continue  # the same sensor as a zone, which says more of what happens at its limits
        channels = [match[2] for match in inputs if match[1] == "temp"]
        chip = _CHIPS.get(name)
        if chip is None:
            spare.update(_of_unknown(path, name, channels))
        elif channels:
            number_of = seen[name] = seen.get(name, 0) + 1
            key = name if number_of == 1 else f"{name} {number_of}"
            found.update(_of_chip(path, key, chip, channels))
    found.update(_of_zones(root, any(each.is_cpu for each in found.values())))
    if not any(each.is_cpu for each in found.values()):
        found.update(spare)
    _number_labels(found)
    return dict(list(found.items())[:_MOST_SENSORS]), fans[:_MOST_SENSORS]


def _of_chip(path: str, key: str, chip: _Chip, channels: list[str]) -> dict[str, Temperature]:
    """The channels that stand for the whole chip; all where none does."""
    labels = {channel: words(f"{path}/temp{channel}_label") for channel in channels}
    chosen: list[str] = []
    for prefix in chip.main:
        chosen = [c for c in channels if (labels[c] or "").startswith(prefix)]
        if chosen:
            break
    found = {}
    for channel in chosen or channels:
        slowdown = _limit(path, channel, chip.slowdown)
        shutdown = _limit(path, channel, chip.shutdown)
        if slowdown is not None and shutdown is not None and slowdown >= shutdown:
            slowdown = None
        found[f"{path}/temp{channel}_input"] = Temperature(
            key=f"{key}/{labels[channel] or f'temp{channel}'}",
            label=chip.label,
            celsius=0.0,
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            is_cpu=chip.is_cpu,
        )
    return found


def _of_unknown(path: str, name: str, channels: list[str]) -> dict[str, Temperature]:
    """What a mainboard calls the CPU, for machines whose CPU has no driver: without limits."""
    for channel in channels:
        label = words(f"{path}/temp{channel}_label")
        if label is not None and _CPU_LABEL.match(label):
            key = f"{name}/{label}"
            return {f"{path}/temp{channel}_input": Temperature(key, "CPU", 0.0, is_cpu=True)}
    return {}


def _zones(root: str) -> Iterator[tuple[str, str]]:
    base = f"{root}/class/thermal"
    for folder in folders(base):
        if folder.startswith("thermal_zone"):
            kind = words(f"{base}/{folder}/type")
            if kind is not None:
                yield folder, kind


def _zone_name(kind: str) -> str:
    return kind.replace("-", "_").lower()


def _of_zones(root: str, cpu_known: bool) -> dict[str, Temperature]:
    """Zones at whose trip points the kernel itself acts, and those of the CPU."""
    found = {}
    for folder, kind in _zones(root):
        path = f"{root}/class/thermal/{folder}"
        is_cpu = _CPU_ZONE.fullmatch(kind) is not None
        slowdown, shutdown = _trips(path)
        if is_cpu and cpu_known and shutdown is None:
            continue  # its own driver has told
        if not is_cpu and slowdown is None and shutdown is None:
            continue
        found[f"{path}/temp"] = Temperature(
            key=folder,
            label="CPU" if is_cpu else "mainboard" if kind == "acpitz" else kind,
            celsius=0.0,
            slowdown_c=slowdown,
            shutdown_c=shutdown,
            is_cpu=is_cpu,
        )
    return found


def _trips(path: str) -> tuple[float | None, float | None]:
    """Where the kernel slows down and where it powers off; None each where it does not."""
    if words(f"{path}/mode") == "disabled":
        return None, None
    passive: list[float] = []
    hot: list[float] = []
    critical: list[float] = []
    for entry in folders(path):
        match = _TRIP.fullmatch(entry)
        if match is None:
            continue
        celsius = _celsius(
            number(f"{path}/trip_point_{match[1]}_temp"), _LOWEST_LIMIT_C, _HIGHEST_LIMIT_C
        )
        by_type = {"passive": passive, "hot": hot, "critical": critical}
        found = by_type.get(words(f"{path}/{entry}") or "")
        if found is not None and celsius is not None:
            found.append(celsius)
    shutdown = min(critical, default=None)
    # Where two are passive, the lower one only switches the regulation on.
    slowdown = max(passive, default=min(hot, default=None))
    if slowdown is not None and shutdown is not None and slowdown >= shutdown:
        slowdown = None
    return slowdown, shutdown


def _number_labels(found: dict[str, Temperature]) -> None:
    """Tell apart what is called the same: "CPU 0", "CPU 1"."""
    labels = [each.label for each in found.values()]
    counts: dict[str, int] = {}
    for path, each in list(found.items()):
        if labels.count(each.label) > 1:
            index = counts.get(each.label, 0)
            counts[each.label] = index + 1
            found[path] = Temperature(
                each.key,
                f"{each.label} {index}",
                0.0,
                each.slowdown_c,
                each.shutdown_c,
                each.is_cpu,
            )


def _counters(root: str) -> list[str]:
    """Files that count, each package and each core once, however many threads show them."""
    base = f"{root}/devices/system/cpu"
    found: dict[tuple[str, int | None, int | None], str] = {}
    for folder in folders(base):
        if not (folder.startswith("cpu") and folder[3:].isdigit()):
            continue
        path = f"{base}/{folder}"
        if not os.path.isdir(f"{path}/thermal_throttle"):
            continue
        package = number(f"{path}/topology/physical_package_id")
        core = number(f"{path}/topology/core_id")
        core = int(folder[3:]) if core is None else core
        for which, identity in (("package", None), ("core", core)):
            file = f"{path}/thermal_throttle/{which}_throttle_count"
            if (which, package, identity) not in found and os.path.exists(file):
                found[which, package, identity] = file
    # Packages first: theirs say most, and a machine of two hundred cores costs no more.
    return sorted(found.values(), key=lambda file: "package" not in file)[:_MOST_COUNTERS]


def _limit(path: str, channel: str, attribute: str | None) -> float | None:
    if attribute is None:
        return None
    return _celsius(number(f"{path}/temp{channel}_{attribute}"), _LOWEST_LIMIT_C, _HIGHEST_LIMIT_C)


def _celsius(milli: int | None, lowest: float, highest: float) -> float | None:
    """Degrees from thousandths; None outside what a working sensor can show."""
    if milli is None:
        return None
    celsius = milli / 1000.0
    return celsius if lowest < celsius <= highest else None
