"""
GPUs as the kernel lists them. Whether a GPU is suspended is read here, never from the driver.

Any call to the driver wakes a GPU that the kernel has suspended (runtime power management). A read
of its `power/runtime_status` does not. Source: kernel, Documentation/power/runtime_pm.rst and
Documentation/ABI/testing/sysfs-devices-power.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from watchdog_app.base.linux.files import read_or_empty

DEVICES = "/sys/bus/pci/devices"
UNUSED_S = 30.0
FIRST_PAUSE_S = 60.0
MAX_PAUSE_S = 600.0
_DISPLAY_CLASS = b"0x03"  # VGA, 3D and other display controllers


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One GPU on the PCI bus."""

    address: str  # "0000:01:00.0"
    asleep: bool
    may_sleep: bool  # the kernel suspends it while it is unused
    driver: str | None  # "nvidia", "nouveau", "vfio-pci"; None: not bound


class PciGpus:
    """
    The GPUs on the PCI bus: `scan` lists them, `read` reads their state.

    Args:
        vendors: vendor ids to include, as in the file `vendor`.
        root: prefix of /sys.
    """

    def __init__(self, vendors: Sequence[str], root: str = "") -> None:
        self._vendors = frozenset(vendor.encode() for vendor in vendors)
        self._folder = root + DEVICES
        self._addresses: tuple[str, ...] = ()

    def scan(self) -> None:
        """List the bus again."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            names = []  # no PCI bus: Jetson, WSL, another operating system
        self._addresses = tuple(name for name in names if self._is_gpu(name))

    def read(self) -> tuple[PciGpu, ...]:
        """Read every listed GPU, by address: the order in which nvidia-smi counts."""
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
                PciGpu(
                    address,
                    asleep=status in (b"suspended", b"suspending"),
                    may_sleep=self._read(address, "power/control") == b"auto",
                    driver=driver,
                )
            )
        return tuple(found)

    def _is_gpu(self, name: str) -> bool:
        vendor = self._read(name, "vendor")
        return vendor in self._vendors and self._read(name, "class").startswith(_DISPLAY_CLASS)

    def _read(self, address: str, name: str) -> bytes:
        return read_or_empty(f"{self._folder}/{address}/{name}", 64).strip()


class PowerSaving:
    """
    Decides when no reader may run, so that a laptop's GPU can be suspended.

    Loading the driver's library wakes every GPU, and an open handle keeps one awake. So no reader
    runs while all GPUs are suspended. If the kernel may suspend all GPUs and they are unused, the
    reader stops for a while.
    """

    def __init__(self) -> None:
        self._unused_since_mono_s: float | None = None
        self._paused_until_mono_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._was_asleep = False

    def may_read(self, gpus: Sequence[PciGpu], in_use: bool, now_mono_s: float) -> bool:
        """
        Return whether a reader may run now.

        Args:
            gpus: GPUs on the bus; empty: power states are unknown, so all count as awake.
            in_use: a process was on a GPU at the last reading.
            now_mono_s: monotonic time now.
        """
        if gpus and all(gpu.asleep for gpu in gpus):
            self._was_asleep = True
            return False
        if self._was_asleep:
            # A program has woken the GPU: read it, since that program is what we want to see.
            self._was_asleep = False
            self._resume_reading()
            self._pause_s = FIRST_PAUSE_S
        if not gpus or not all(gpu.may_sleep for gpu in gpus):
            self._resume_reading()
            return True
        if self._paused_until_mono_s is not None:
            if now_mono_s < self._paused_until_mono_s:
                return False
            self._resume_reading()
        since = self._unused_since_mono_s
        if not in_use and since is not None and now_mono_s - since >= UNUSED_S:
            # Our own handle may keep the GPU awake. If it does not, pause longer each time.
            self._paused_until_mono_s = now_mono_s + self._pause_s
            self._pause_s = min(self._pause_s * 2, MAX_PAUSE_S)
            return False
        return True

    def record_reading(self, now_mono_s: float, in_use: bool) -> None:
        """
        Store that a reading has ended.

        Args:
            now_mono_s: monotonic time of the reading.
            in_use: a process was on a GPU.
        """
        if in_use:
            self._unused_since_mono_s = None
            self._pause_s = FIRST_PAUSE_S
        elif self._unused_since_mono_s is None:
            self._unused_since_mono_s = now_mono_s

    def _resume_reading(self) -> None:
        self._paused_until_mono_s = None
        self._unused_since_mono_s = None


def short_address(bus_id: str | None) -> str | None:
    """
    Convert a bus id to the form of sysfs, `0000:65:00.0`; None: not such an address.

    The driver writes `00000000:65:00.0`, the kernel log `0000:65:00`.
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
