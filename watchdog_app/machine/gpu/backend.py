"""
What the driver of a GPU vendor has to tell, how that is checked, and the table of vendors.

The daemon imports this module: there is no driver and no binding of one in it. A new vendor is a
module with a `GpuBackend` and a row of BACKENDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from watchdog_app.core.model.hardware import FIGURES, Gpu, GpuProcess, GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu import nvml_driver
from watchdog_app.machine.gpu.nvml_driver import Library

# Fields of core.model.hardware.Gpu by name, in its units. What is not known is left out, with a
# sentence in "notes". A part of a GPU has its name there in "partition"; "processes" are pairs of
# pid and bytes; "computing" is how many of them compute.
DeviceRow = dict[str, Any]

_MAX_TEXT = 200
_MAX_DEVICES = 1024
_MAX_NOTES = 20
# Boards briefly draw more than their limit.
_OVER_LIMIT_RATIO = 1.5
_OVER_LIMIT_W = 25.0
# Some laptop GPUs, which tell no limit, said 593 W with nothing to do.
_IDLE_PERCENT = 5
_MAX_IDLE_W = 250.0


class DeviceError(Exception):
    """
    One GPU does not answer; the others may.

    Args:
        state: of the GPU from now on.
        text: why, in a sentence.
        bus_id: its PCI address, where that is known.
    """

    def __init__(self, state: GpuState, text: str, bus_id: str | None = None) -> None:
        super().__init__(text)
        self.state = state
        self.text = text
        self.bus_id = bus_id


class BackendError(Exception):
    """The driver as a whole does not answer."""

    def __init__(
        self, fault: Fault, driver_text: str, code: int | None = None, absent: bool = False
    ) -> None:
        """
        Args:
            fault: what people are told.
            driver_text: the driver's own words.
            code: the driver's own number of the error.
            absent: there may be nothing to watch, which is no fault then.
        """
        super().__init__(driver_text)
        self.fault = fault
        self.driver_text = driver_text
        self.code = code
        self.absent = absent


class GpuBackend(Protocol):
    """One vendor's driver. Lives in the reader process: may block, may crash, may be killed."""

    def open(self) -> dict[str, Any]:
        """
        Begin; versions as `driver` and `cuda`, None where they are not told.

        Raises:
            BackendError: why not.
        """

    def devices(self, now_mono_s: float, awake: Sequence[tuple[int, str]] | None) -> Sequence[int]:
        """
        Indices of the GPUs that may be asked, as the vendor's own tool counts.

        Args:
            now_mono_s: when.
            awake: index and PCI address of those that do not sleep; None: none sleeps.

        Raises:
            BackendError: the driver as a whole does not answer.
        """

    def read(self, index: int, now_mono_s: float) -> Iterable[DeviceRow]:
        """
        One GPU, and its partitions behind it.

        Args:
            index: one of `devices`.
            now_mono_s: when; a backend may ask for slow figures more rarely.

        Raises:
            DeviceError: this one does not answer.
            BackendError: none does.
        """

    def events(self) -> Iterable[tuple[str, int]]:
        """PCI address and Xid of each fault that came since the last call; never waits."""


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A vendor, as far as the daemon itself knows it."""

    vendor: str
    backend: str  # module and class, which is made of (trace, everything) in the reader alone
    pci_vendor: str
    kernel_drivers: frozenset[str]
    driver_paths: tuple[str, ...]  # paths that appear when the driver is loaded
    find_library: Callable[[Mapping[str, str], str], Library | None]  # the user-space library
    update_fault: Callable[[Library | None, str], Fault | None]  # under the running system


BACKENDS = (
    BackendRow(
        vendor="NVIDIA",
        backend="watchdog_app.machine.gpu.nvml:NvmlBackend",
        pci_vendor="0x10de",
        kernel_drivers=frozenset(("nvidia",)),
        # /dev/dxg is Windows' GPU seen from WSL.
        driver_paths=(
            "/proc/driver/nvidia/version",
            "/sys/module/nvidia",
            "/dev/nvidiactl",
            "/dev/dxg",
        ),
        find_library=nvml_driver.find_library,
        update_fault=nvml_driver.update_fault,
    ),
)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The GPUs at one tick."""

    gpus: tuple[Gpu, ...] = ()  # by index, MIG instances behind their GPU
    read_mono_s: float | None = None  # when the figures were true; None: there are none
    driver_version: str | None = None
    faults: tuple[Fault, ...] = ()


def validate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """
    Fields of `Gpu` that a row of any vendor tells, without those that cannot be.

    Args:
        row: see DeviceRow. It comes from a process that a driver may have damaged.

    Returns:
        Arguments of `Gpu`: `index`, `state`, `notes`, and the figures that are believed.

    Raises:
        ValueError, TypeError, KeyError, ArithmeticError: no backend says that.
    """
    index = int(row["index"])
    if not 0 <= index < _MAX_DEVICES:
        raise ValueError(f"GPU {index}")
    found: dict[str, Any] = {}
    notes = [printable(note) for note in row.get("notes", ())]
    for name, convert in _FIELDS.items():
        if name not in row:
            continue
        value, figure = convert(row[name]), FIGURES.get(name)
        if figure is not None and not figure.least <= value <= figure.most:
            notes.append(_implausible(figure.label, f"{value:.0f} {figure.unit}"))
        else:
            found[name] = value
    notes += _drop_contradictions(found)
    return {
        **found,
        "index": index,
        "state": GpuState(row.get("state", GpuState.OK)),
        "notes": tuple(dict.fromkeys(notes))[:_MAX_NOTES],
    }


def _drop_contradictions(found: dict[str, Any]) -> list[str]:
    """Take out the figures that others contradict; what is said of them."""
    notes = []
    used, total = found.get("memory_used_bytes", 0), found.get("memory_total_bytes", math.inf)
    if used > total:
        del found["memory_used_bytes"]
        notes.append("Memory: the driver says more is used than there is: not believed.")
    elif used + found.get("memory_reserved_bytes", 0) > total:
        del found["memory_reserved_bytes"]
    watts, limit_w = found.get("power_w", 0.0), found.get("power_limit_w")
    if limit_w is not None:
        most_w, where = (
            limit_w * _OVER_LIMIT_RATIO + _OVER_LIMIT_W,
            f"with a limit of {limit_w:.0f} W",
        )
    elif found.get("utilization_percent", 100.0) <= _IDLE_PERCENT:
        most_w, where = _MAX_IDLE_W, "with nothing to do"
    else:
        return notes
    if watts > most_w:
        del found["power_w"]
        notes.append(_implausible("Power", f"{watts:.0f} W {where}"))
    return notes


def _implausible(label: str, said: str) -> str:
    return f"{label}: the driver says {said}: not believed."


def parse_processes(
    rows: Sequence[Sequence[Any]], is_foreign: Callable[[int], bool]
) -> tuple[GpuProcess, ...]:
    """
    Who is on a GPU.

    Args:
        rows: pid and bytes, as a backend tells them.
        is_foreign: whether a pid is none that we can see.

    Raises:
        ValueError, TypeError, ArithmeticError: those are none.
    """
    return tuple(
        GpuProcess(int(pid), None if memory is None else int(memory), is_foreign(int(pid)))
        for pid, memory in rows
    )


def printable(value: object, most_chars: int = _MAX_TEXT) -> str:
    """
    Words of a driver, without what could steer a terminal.

    Args:
        value: what it said.
        most_chars: of the result; the rest is cut off.

    Raises:
        TypeError: that is no text.
    """
    if not isinstance(value, str):
        raise TypeError("no text")
    return "".join(c if c.isprintable() else "?" for c in value[:most_chars])


def _nonnegative_int(value: Any) -> int:
    found = int(value)
    if found < 0:
        raise ValueError(f"{found} of something")
    return found


def _finite_float(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} of something")
    return found


def _printable_set(value: Any) -> frozenset[str]:
    return frozenset(printable(word) for word in value)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _nonnegative_int,
    "float": _finite_float,
    "bool": bool,
    "str": printable,
    "frozenset[str]": _printable_set,
}
_SET_BY_MONITOR = ("id", "index", "parent_id", "part")  # the monitor's own
_FIELDS = {
    each.name: _CONVERTERS[kind]
    for each in fields(Gpu)
    if (kind := str(each.type).partition(" ")[0]) in _CONVERTERS
    and each.name not in _SET_BY_MONITOR
}
