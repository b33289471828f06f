"""
Power of the machine: its batteries, and whether it is plugged in.

Source: kernel, Documentation/ABI/testing/sysfs-class-power and
Documentation/power/power_supply_class.rst. Values are in micro-units. Each driver shows only what
it knows: energy in uWh or charge in uAh.
"""

from __future__ import annotations

from watchdog_app.base.linux.files import sysfs_int, sysfs_names, sysfs_text
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.status import Battery

_JOULES_IN_UWH = 3.6e-3
_PLUGS = frozenset(("Mains", "USB", "Wireless", "BrickID"))


class BatteryReader:
    """Reads the supplies below one /sys, every 10 s: their own values change no faster."""

    EVERY_S = 10.0

    def __init__(self, sys_root: str = "/sys") -> None:
        self._base = f"{sys_root}/class/power_supply"
        self._due_mono_s = float("-inf")
        self._found: tuple[tuple[Battery, ...], bool | None] = ((), None)

    def read(self, now_mono_s: float) -> tuple[tuple[Battery, ...], bool | None]:
        """Return the batteries, and whether the machine is plugged in; None: unknown."""
        if now_mono_s >= self._due_mono_s:
            self._due_mono_s = now_mono_s + self.EVERY_S
            self._found = self._read_supplies()
        return self._found

    def _read_supplies(self) -> tuple[tuple[Battery, ...], bool | None]:
        online: list[bool] = []
        stores = []
        for name in sysfs_names(self._base):
            path = f"{self._base}/{name}"
            kind = sysfs_text(f"{path}/type")
            if sysfs_text(f"{path}/scope") == "Device":
                continue  # battery of a mouse, a headset or a pen
            if kind in _PLUGS or (kind or "").startswith("USB"):
                state = sysfs_int(f"{path}/online")
                if state is not None:
                    online.append(state > 0)  # 2: plugged in, and its power can be set
            elif kind in ("Battery", "UPS") and sysfs_int(f"{path}/present") != 0:
                stores.append((name, path))
        plugged = any(online) if online else None
        found = [_read_battery(name, path, plugged) for name, path in stores]
        batteries = tuple(each for each in found if each is not None)
        if plugged is None and any(each.discharging for each in batteries):
            plugged = False
        return batteries, plugged


def _read_battery(name: str, path: str, plugged: bool | None) -> Battery | None:
    """Read one battery; None if not even its level is known."""
    left_j, full_j = _read_energy_j(path)
    percent: float | None = sysfs_int(f"{path}/capacity")
    if left_j is not None and full_j is not None:
        # Firmware rounds the percentage, and computes it from the design capacity while the battery
        # is new.
        percent = 100.0 * left_j / full_j
    if percent is None or not 0.0 <= percent <= 120.0:
        return None
    status = sysfs_text(f"{path}/status")
    discharging = status == "Discharging" or (status in (None, "Unknown") and plugged is False)
    if plugged and _is_idle(path):
        # a charge threshold or a dead battery: the driver may still report Discharging
        discharging = False
    return Battery(
        name=clean(name, 40),
        percent=min(100.0, percent),
        discharging=discharging,
        energy_j=left_j,
        full_j=full_j,
    )


def _read_energy_j(path: str) -> tuple[float | None, float | None]:
    """Read the joules left and when full; both or neither, so that their ratio is valid."""
    left, full = sysfs_int(f"{path}/energy_now"), sysfs_int(f"{path}/energy_full")
    factor = _JOULES_IN_UWH
    if left is None or not full:
        left, full = sysfs_int(f"{path}/charge_now"), sysfs_int(f"{path}/charge_full")
        # Prefer the design voltage: the measured one sags under load, which would make the level
        # jump.
        volts = sysfs_int(f"{path}/voltage_min_design") or sysfs_int(f"{path}/voltage_now")
        if not volts or volts < 0:
            return None, None
        factor = volts / 1e6 * _JOULES_IN_UWH
    if left is None or left < 0 or not full or full < 0 or left > 1.2 * full:
        return None, None
    return min(left, full) * factor, full * factor


def _is_idle(path: str) -> bool:
    """Return whether a battery reports zero current or power."""
    flows = (sysfs_int(f"{path}/power_now"), sysfs_int(f"{path}/current_now"))
    return 0 in flows
