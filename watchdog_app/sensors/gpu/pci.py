"""
NVIDIA's cards as the kernel lists them: whether one sleeps is asked here, never of the driver.

Any question to the driver wakes a card that the kernel has powered down (runtime power
management); reading its `power/runtime_status` does not. Source: kernel,
Documentation/power/runtime_pm.rst and Documentation/ABI/testing/sysfs-devices-power.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import read_bytes

DEVICES = "/sys/bus/pci/devices"
_VENDOR = b"0x10de"
_DISPLAY = b"0x03"  # VGA, 3D and other display controllers


@dataclass(frozen=True, slots=True)
class PciCard:
    """One card of NVIDIA's on the bus."""

    address: str  # "0000:01:00.0"
    asleep: bool
    may_sleep: bool  # the kernel powers it down when nobody uses it
    driver: str | None  # "nvidia", "nouveau", "vfio-pci"; None: none is bound


class PciCards:
    """The cards on the bus, listed now and then and looked at each time."""

    def __init__(self, root: str = "") -> None:
        self._folder = root + DEVICES
        self._addresses: tuple[str, ...] = ()

    def scan(self) -> None:
        """List the bus anew."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            names = []  # no PCI here: Jetson, WSL, another operating system
        self._addresses = tuple(name for name in names if self._is_card(name))

    def look(self) -> tuple[PciCard, ...]:
        """Every listed card as it is now, by address: the order in which nvidia-smi counts."""
        found = []
        for address in self._addresses:
            folder = f"{self._folder}/{address}"
            if not os.path.isdir(folder):
                continue
            status = self._read(address, "power/runtime_status")
            try:
                driver = os.path.basename(os.readlink(f"{folder}/driver"))
            except OSError:
                driver = None
            found.append(
                PciCard(
                    address,
                    asleep=status in (b"suspended", b"suspending"),
                    may_sleep=self._read(address, "power/control") == b"auto",
                    driver=driver,
                )
            )
        return tuple(found)

    def _is_card(self, name: str) -> bool:
        return self._read(name, "vendor") == _VENDOR and self._read(name, "class").startswith(
            _DISPLAY
        )

    def _read(self, address: str, name: str) -> bytes:
        try:
            return read_bytes(f"{self._folder}/{address}/{name}", 64).strip()
        except SensorError:
            return b""


def short_address(bus_id: str | None) -> str | None:
    """
    A bus id as the driver (`00000000:65:00.0`) or the kernel log (`0000:65:00`) writes it, as
    sysfs does: `0000:65:00.0`. None for what is no such address.
    """
    parts = (bus_id or "").strip().lower().split(":")
    if len(parts) != 3:
        return None
    device, _, function = parts[2].partition(".")
    try:
        numbers = [int(part, 16) for part in (parts[0], parts[1], device, function or "0")]
    except ValueError:
        return None
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*numbers)
