"""Cards, temperatures, batteries as the sensors read them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from watchdog_app.base.text.plain import clean


def gpu_label(gpu: Gpu) -> str:
    """`GPU 0 (NVIDIA H100)`: as a person tells the cards apart."""
    if gpu.parent_id is None:
        return f"GPU {gpu.index} ({clean(gpu.name, 40)})"
    return f"{gpu_place(gpu)} ({clean(gpu.name, 40)}, MIG)"


def gpu_place(gpu: Gpu) -> str:
    """`GPU 0`; of a MIG instance `GPU 0 part 2`."""
    if gpu.parent_id is None:
        return f"GPU {gpu.index}"
    return f"GPU {gpu.index} part" + ("" if gpu.part is None else f" {gpu.part}")


class GpuState(StrEnum):
    """Whether a card answers."""

    OK = "ok"
    ASLEEP = "asleep"  # a laptop's card, powered down by the system: left alone
    LOST = "lost"  # it fell off the bus
    NEEDS_RESET = "needs_reset"
    SILENT = "silent"  # its driver does not answer within the deadline
    UNREADABLE = "unreadable"  # it answers with errors


class ClockEvent(StrEnum):
    """
    Why a GPU runs slower than it could.

    Source: NVIDIA, NVML API reference, nvmlClocksEventReasons ("clock event reasons").
    """

    IDLE = "idle"
    APPLICATION_CLOCKS = "application_clocks"
    SOFTWARE_POWER_CAP = "software_power_cap"  # normal at full load
    # Heat, power brake, too fast a draw; flashes at a P-state change.
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    SYNC_BOOST = "sync_boost"
    SOFTWARE_THERMAL = "software_thermal"
    HARDWARE_THERMAL = "hardware_thermal"
    POWER_BRAKE = "power_brake"  # asserted from outside: the power supply
    DISPLAY_CLOCKS = "display_clocks"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on a card, as the driver lists it."""

    pid: int
    memory_bytes: int | None  # None: the driver does not say (WSL, WDDM, some MIG)
    foreign: bool = False  # not in our /proc: another container's or host's, or a garbage record


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A fault that the driver reported (NVIDIA's Xid catalogue)."""

    code: int
    at_unix_s: float
    pid: int | None = None  # where the kernel log names it
    text: str | None = None  # the driver's own words; untrusted


@dataclass(frozen=True, slots=True)
class Figure:
    """What a figure of a GPU can be; a driver that says anything else is not believed."""

    label: str
    unit: str
    least: float
    most: float


def figure(label: str, unit: str, least: float, most: float) -> Any:
    """
    A field of `Gpu` that a driver tells, None where it does not; see `Figure`.

    Args:
        label: as screens name it.
        unit: as screens show it.
        least: the smallest value that is believed.
        most: the largest.
    """
    return field(default=None, metadata={"figure": Figure(label, unit, least, most)})


_MOST_BYTES = 1 << 50  # the largest cards have a two-thousandth of that
_MOST_ERRORS = 1 << 62
_MOST_W = 3000  # the largest boards draw 1.4 kW


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card, or one MIG instance of a card."""

    # PCI address as in sysfs, "0000:65:00.0"; a MIG instance adds "/gi3.ci0". It is known without
    # the driver: a GPU that is lost, or asleep, has it too.
    id: str
    index: int  # as nvidia-smi counts
    name: str
    uuid: str | None = None  # as frameworks name it; None: the driver has not told it
    bus_id: str | None = None  # PCI address, "00000000:65:00.0"
    parent_id: str | None = None  # of a MIG instance: its card
    part: int | None = None  # of a MIG instance: which of its card's, from 0
    state: GpuState = GpuState.OK
    # Without what the driver reserves, where it can tell the two apart.
    memory_used_bytes: int | None = figure("Memory", "bytes", 0, _MOST_BYTES)
    memory_reserved_bytes: int | None = figure("Reserved memory", "bytes", 0, _MOST_BYTES)
    memory_total_bytes: int | None = figure("Memory", "bytes", 0, _MOST_BYTES)
    unified_memory: bool = False  # it shares the host's RAM: that is the limit
    utilization_percent: float | None = figure("Utilisation", "%", 0, 100)
    # The hottest that silicon survives is near 125; 0 is what a sensor says that is not there.
    temperature_c: float | None = figure("Temperature", "°C", 1, 130)
    slowdown_c: float | None = figure(
        "Slowdown temperature", "°C", 50, 130
    )  # clocks down from here
    shutdown_c: float | None = figure("Shutdown temperature", "°C", 50, 130)  # switches itself off
    fan_percent: float | None = figure("Fan", "%", 0, 200)  # above 100: over the nominal speed
    power_w: float | None = figure("Power", "W", 0, _MOST_W)
    power_limit_w: float | None = figure("Power limit", "W", 1, _MOST_W)  # enforced
    throttling: frozenset[str] | None = None  # `ClockEvent`, or what the driver calls another
    # Since the driver was loaded.
    ecc_uncorrected: int | None = figure("ECC", "errors", 0, _MOST_ERRORS)
    remap_pending: bool | None = None  # a memory row will be replaced at the next reset
    remap_failed: bool | None = None
    recovery_action: str | None = None  # "reset", "reboot", "drain", "drain_and_reset"; None: none
    xids: tuple[XidEvent, ...] = ()  # of the last hour, oldest first
    processes: tuple[GpuProcess, ...] = ()
    processes_mono_s: float | None = None  # when these were listed; None: with the other figures
    notes: tuple[str, ...] = ()  # why a figure is missing, each a short sentence


FIGURES: dict[str, Figure] = {
    each.name: each.metadata["figure"] for each in fields(Gpu) if "figure" in each.metadata
}


@dataclass(frozen=True, slots=True)
class Temperature:
    """One sensor of heat that is no graphics card's."""

    key: str  # stable over ticks: "coretemp/Package id 0", "thermal_zone0", ...
    label: str  # as a person reads it: "CPU package", "NVMe disk"
    celsius: float
    slowdown_c: float | None = None  # "high", or the passive trip point
    shutdown_c: float | None = None  # "critical"
    is_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Battery:
    """One battery of the machine itself, not of a mouse."""

    name: str
    percent: float
    discharging: bool
    energy_j: float | None = None  # left in it
    full_j: float | None = None
    power_w: float | None = None  # what is drawn from it


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cards, heat and power at one look. An empty field: there is none, or it cannot be read."""

    gpus: tuple[Gpu, ...] = ()
    gpus_mono_s: float | None = None  # when the cards were read: they are read less often
    driver_version: str | None = None
    temperatures: tuple[Temperature, ...] = ()
    batteries: tuple[Battery, ...] = ()
    on_mains: bool | None = None  # None: no power supply says so
    cpu_throttle_events: int | None = None  # clocked down for heat, since boot (thermal_throttle)
