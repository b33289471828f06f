"""
GPUs as the kernel lists them. Whether a GPU is suspended is read here, never from the driver.

Any call to the driver wakes a GPU that the kernel has suspended (runtime power management). A read
of its `power/runtime_status` does not. Source: kernel, Documentation/power/runtime_pm.rst and
Documentation/ABI/testing/sysfs-devices-power.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from watchdog_app.base.linux.files import read_or_empty, sysfs_names
from watchdog_app.base.records import dataclass
from watchdog_app.machine.gpu.nvml_driver import Library

DEVICES = "/sys/bus/pci/devices"
DRM = "/sys/class/drm"
NVIDIA, AMD, INTEL = "0x10de", "0x1002", "0x8086"
DRM_DRIVERS = ("amdgpu", "i915", "xe")
VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}
UNUSED_S = 30.0
FIRST_PAUSE_S = 60.0
MAX_PAUSE_S = 600.0
_DISPLAY_CLASS = b"0x03"  # VGA, 3D and other display controllers
_ACCELERATOR_CLASS = b"0x12"  # of AMD's Instinct cards, and of Intel's and others' AI engines


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One GPU on the PCI bus."""

    address: str  # "0000:01:00.0"
    asleep: bool
    may_sleep: bool  # the kernel suspends it while it is unused
    driver: str | None  # "nvidia", "nouveau", "vfio-pci"; None: not bound
    vendor: str = "NVIDIA"


class PciGpus:
    """
    The GPUs on the PCI bus: `scan` lists them, `read` reads their state.

    Args:
        vendors: vendor ids to include, as in the file `vendor`.
        root: prefix of /sys.
    """

    def __init__(self, vendors: Sequence[str], root: str = "") -> None:
        self._vendors = frozenset(vendors)
        self._folder = root + DEVICES
        self._gpu_vendors: dict[str, str] = {}  # by address

    def scan(self) -> None:
        """List the bus again."""
        names = sysfs_names(self._folder)  # empty without a PCI bus: Jetson, WSL
        vendors = {name: self._read(name, "vendor").decode("ascii", "replace") for name in names}
        self._gpu_vendors = {
            name: vendor
            for name, vendor in vendors.items()
            if vendor in self._vendors and self._is_gpu(name, vendor)
        }

    def read(self) -> tuple[PciGpu, ...]:
        """Read every listed GPU, by address: the order in which nvidia-smi counts."""
        found = []
        for address, vendor in self._gpu_vendors.items():
            folder = f"{self._folder}/{address}"
            if not os.path.isdir(folder):
                continue
            status = self._read(address, "power/runtime_status")
            found.append(
                PciGpu(
                    address,
                    asleep=status in (b"suspended", b"suspending"),
                    may_sleep=self._read(address, "power/control") == b"auto",
                    driver=link_name(f"{folder}/driver"),
                    vendor=VENDORS[vendor],
                )
            )
        return tuple(found)

    def _is_gpu(self, name: str, vendor: str) -> bool:
        kind = self._read(name, "class")
        accelerates = vendor == AMD and kind.startswith(_ACCELERATOR_CLASS)
        return accelerates or kind.startswith(_DISPLAY_CLASS)

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


def find_drm_driver(_env: Mapping[str, str], root: str = "") -> Library | None:
    """
    Find a card that a driver in DRM_DRIVERS has claimed; asks no device.

    Args:
        _env: not used.
        root: prefix of /sys.
    """
    return next(map(Library, drm_devices(root)), None)


def drm_devices(root: str = "") -> list[str]:
    """
    List the PCI addresses of the GPUs that a driver in DRM_DRIVERS has claimed; asks no device.

    Args:
        root: prefix of /sys.
    """
    cards = [f"{root}{DRM}/{name}/device" for name in sysfs_names(root + DRM)]
    bound = [card for card in cards if link_name(f"{card}/driver") in DRM_DRIVERS]
    return sorted({str(link_name(card)) for card in bound})


def link_name(path: str) -> str | None:
    """Return the last part of a link's target; None: no link, or not to be read."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


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
