"""Cards, and all hardware figures of one sample, as the sensors measure them."""

from __future__ import annotations

from dataclasses import field, fields
from enum import StrEnum
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.status import Battery, Temperature


def gpu_label(gpu: Gpu) -> str:
    """The name of a card for the user: `GPU 0 (NVIDIA H100)`."""
    if gpu.parent_id is None:
        return f"GPU {gpu.index} ({clean(gpu.name, 40)})"
    return f"{gpu_place(gpu)} ({clean(gpu.name, 40)}, MIG)"


def gpu_place(gpu: Gpu) -> str:
    """The short name of a card: `GPU 0`; of a MIG instance: `GPU 0 GI 3 / CI 0`."""
    return f"GPU {gpu.index} {partition(gpu) or ''}".rstrip()


def partition(gpu: Gpu) -> str | None:
    """Of a MIG instance `GI 3 / CI 0`, the form of nvidia-smi; None: a whole card."""
    if gpu.parent_id is None:
        return None
    parts = gpu.id.partition("/")[2].split(".")
    return " / ".join(f"{each[:2].upper()} {each[2:]}" for each in parts if each)


class GpuState(StrEnum):
    """Whether a card answers."""

    OK = "ok"
    ASLEEP = "asleep"  # powered down by a laptop's system; watchdog does not wake it
    LOST = "lost"  # the card fell off the bus
    NEEDS_RESET = "needs_reset"
    SILENT = "silent"  # the driver does not answer within the deadline
    UNREADABLE = "unreadable"  # the driver answers with errors


class ClockEvent(StrEnum):
    """
    Why a GPU runs slower than it could.

    Source: NVIDIA, NVML API reference, nvmlClocksEventReasons ("clock event reasons").
    """

    IDLE = "idle"
    APPLICATION_CLOCKS = "application_clocks"
    SOFTWARE_POWER_CAP = "software_power_cap"  # normal at full load
    # Heat, power brake or a fast rise in power; set briefly at a P-state change.
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    SYNC_BOOST = "sync_boost"
    SOFTWARE_THERMAL = "software_thermal"
    HARDWARE_THERMAL = "hardware_thermal"
    POWER_BRAKE = "power_brake"  # external signal, from the power supply
    DISPLAY_CLOCKS = "display_clocks"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on a card, as the driver lists it."""

    pid: int
    memory_bytes: int | None  # None: the driver does not report it (WSL, WDDM, some MIG)
    foreign: bool = False  # not in this /proc: pid of another container or the host, or garbage
    name: str | None = None  # name of its program; untrusted; None: foreign, or unreadable
    # Share of the time in which it used the processors (SM) of the card; None: not reported.
    utilization_percent: float | None = None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A fault that the driver reported (NVIDIA's Xid catalogue)."""

    code: int
    at_unix_s: float
    pid: int | None = None  # pid, if the kernel log has it
    text: str | None = None  # text of the driver; untrusted


@dataclass(frozen=True, slots=True)
class Figure:
    """Name, unit and range of a GPU figure; a value outside the range counts as missing."""

    label: str
    unit: str
    least: float
    most: float


def figure(label: str, unit: str, least: float, most: float) -> Any:
    """
    A field of `Gpu` with a figure of the driver, None if the driver does not report it.

    Args:
        label: name on screens.
        unit: unit on screens.
        least: smallest plausible value.
        most: largest plausible value.
    """
    return field(default=None, metadata={"figure": Figure(label, unit, least, most)})


_MOST_BYTES = 1 << 50  # the largest cards have 1/2000 of this
_MOST_ERRORS = 1 << 62
_MOST_W = 3000  # the largest boards draw 1.4 kW
_MOST_MHZ = 50_000  # the fastest memory reports 14,000
_MOST_BYTES_PER_S = 1 << 40  # PCIe 7.0 x16 moves a quarter of it


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card, or one MIG instance of a card."""

    # PCI address as in sysfs, "0000:65:00.0"; a MIG instance adds "/gi3.ci0". It needs no driver,
    # so a lost or sleeping GPU has it too.
    id: str
    index: int  # index in nvidia-smi
    name: str
    uuid: str | None = None  # UUID as frameworks name it; None: unknown
    bus_id: str | None = None  # PCI address, "00000000:65:00.0"
    parent_id: str | None = None  # id of a MIG instance's card
    state: GpuState = GpuState.OK
    # Without the memory that the driver reserves, if the driver reports both.
    memory_used_bytes: int | None = figure("Memory", "bytes", 0, _MOST_BYTES)
    memory_reserved_bytes: int | None = figure("Reserved memory", "bytes", 0, _MOST_BYTES)
    memory_total_bytes: int | None = figure("Memory", "bytes", 0, _MOST_BYTES)
    unified_memory: bool = False  # it shares the host's RAM, which is its limit
    utilization_percent: float | None = figure("Utilisation", "%", 0, 100)
    # Share of the time in which memory was read or written: use of its bandwidth.
    memory_utilization_percent: float | None = figure("Memory bandwidth", "%", 0, 100)
    graphics_clock_mhz: float | None = figure("Graphics clock", "MHz", 0, _MOST_MHZ)
    graphics_clock_max_mhz: float | None = figure("Graphics clock", "MHz", 1, _MOST_MHZ)
    memory_clock_mhz: float | None = figure("Memory clock", "MHz", 0, _MOST_MHZ)
    memory_clock_max_mhz: float | None = figure("Memory clock", "MHz", 1, _MOST_MHZ)
    performance_state: str | None = None  # "P0" (the fastest) to "P15"
    # Silicon survives about 125 °C. A missing sensor reports 0.
    temperature_c: float | None = figure("Temperature", "°C", 1, 130)
    slowdown_c: float | None = figure("Slowdown temperature", "°C", 50, 130)  # clocks drop here
    shutdown_c: float | None = figure("Shutdown temperature", "°C", 50, 130)  # card powers off
    fan_percent: float | None = figure("Fan", "%", 0, 200)  # above 100: faster than nominal
    power_w: float | None = figure("Power", "W", 0, _MOST_W)
    power_limit_w: float | None = figure("Power limit", "W", 1, _MOST_W)  # enforced limit
    throttling: frozenset[str] | None = None  # `ClockEvent` values, or other names of the driver
    pcie_generation: int | None = figure("PCIe generation", "", 1, 15)
    pcie_generation_max: int | None = figure("PCIe generation", "", 1, 15)  # of card and slot
    pcie_width: int | None = figure("PCIe width", "lanes", 1, 32)
    pcie_width_max: int | None = figure("PCIe width", "lanes", 1, 32)
    pcie_rx_bytes_per_s: float | None = figure("PCIe traffic", "B/s", 0, _MOST_BYTES_PER_S)
    pcie_tx_bytes_per_s: float | None = figure("PCIe traffic", "B/s", 0, _MOST_BYTES_PER_S)
    # Memory errors since the driver was loaded, and in the life of the card.
    ecc_corrected: int | None = figure("ECC", "errors", 0, _MOST_ERRORS)
    ecc_uncorrected: int | None = figure("ECC", "errors", 0, _MOST_ERRORS)
    ecc_corrected_aggregate: int | None = figure("ECC", "errors", 0, _MOST_ERRORS)
    ecc_uncorrected_aggregate: int | None = figure("ECC", "errors", 0, _MOST_ERRORS)
    remap_pending: bool | None = None  # the next reset will replace a memory row
    remap_failed: bool | None = None
    recovery_action: str | None = None  # "reset", "reboot", "drain", "drain_and_reset" or None
    xids: tuple[XidEvent, ...] = ()  # events of the last hour, oldest first
    processes: tuple[GpuProcess, ...] = ()
    processes_mono_s: float | None = None  # time of the process list; None: same as the figures
    notes: tuple[str, ...] = ()  # reasons for missing figures, one sentence each


FIGURES: dict[str, Figure] = {
    each.name: each.metadata["figure"] for each in fields(Gpu) if "figure" in each.metadata
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cards, temperatures and power in one sample. An empty field: absent, or unreadable."""

    gpus: tuple[Gpu, ...] = ()
    gpus_mono_s: float | None = None  # time of the cards' figures, which are read less often
    gpus_awaited: bool = False  # their first figures come in a moment
    driver_version: str | None = None
    temperatures: tuple[Temperature, ...] = ()
    batteries: tuple[Battery, ...] = ()
    on_mains: bool | None = None  # None: unknown, no power supply reports it
