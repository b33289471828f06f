"""
The interface to a GPU vendor's driver, the checks of its answers, and the table of vendors.

The daemon imports this module, so it loads neither a driver nor its binding. A new vendor is a
module with a `GpuBackend` and a row in BACKENDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.hardware import FIGURES, Gpu, GpuProcess, GpuState
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu import nvml_driver, pci
from watchdog_app.machine.gpu.nvml_driver import Library

# Fields of core.model.hardware.Gpu by name, in its units. An unknown field is left out, with a
# sentence in "notes". A part of a GPU has its name in "partition". "processes" are pid,
# bytes and percent of use of each process, and "computing" is how many of them compute.
DeviceRow = dict[str, Any]

_MAX_TEXT = 200
_MAX_DEVICES = 1024
_MAX_NOTES = 20
# Boards briefly draw more than their limit.
_OVER_LIMIT_RATIO = 1.5
_OVER_LIMIT_W = 25.0


class DeviceError(Exception):
    """
    One GPU does not answer; others may.

    Args:
        state: of the GPU from now on.
        text: the reason, in a sentence.
        bus_id: its PCI address, if known.
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
            fault: the message for users.
            driver_text: the driver's own message.
            code: the driver's own error number.
            absent: the machine may have no GPU; without one, the error is not a fault.
        """
        super().__init__(driver_text)
        self.fault = fault
        self.driver_text = driver_text
        self.code = code
        self.absent = absent


class GpuBackend(Protocol):
    """One vendor's driver. It runs in the reader process: it may block, crash or be killed."""

    def open(self) -> dict[str, Any]:
        """
        Load the driver; return its versions as `driver` and `cuda`, None if unknown.

        Raises:
            BackendError: the driver cannot be used, and why.
        """

    def devices(self, now_mono_s: float, awake: Sequence[tuple[int, str]] | None) -> Sequence[int]:
        """
        List the indices of the GPUs that may be read, as the vendor's own tool counts them.

        Args:
            now_mono_s: monotonic time of the request.
            awake: index and PCI address of the GPUs that are not suspended; None: all are awake.

        Raises:
            BackendError: the driver as a whole does not answer.
        """

    def read(self, index: int, now_mono_s: float) -> Iterable[DeviceRow]:
        """
        Read one GPU, and its partitions after it.

        Args:
            index: one of `devices`.
            now_mono_s: monotonic time of the request; a backend may read slow figures less often.

        Raises:
            DeviceError: this GPU does not answer.
            BackendError: the driver as a whole does not answer.
        """

    def events(self) -> Iterable[tuple[str, int]]:
        """Return PCI address and Xid of each error since the last call; never waits."""


@dataclass(frozen=True, slots=True)
class BackendRow:
    """What the daemon itself knows about a vendor. Each row is read by a process of its own."""

    name: str
    vendor: str
    backend: str  # module and class; only the reader creates it, as class(trace, everything, root)
    pci_vendors: tuple[str, ...]
    kernel_drivers: frozenset[str | None]  # None: also GPUs whose driver sysfs does not show
    driver_paths: tuple[str, ...]  # paths that appear when the driver is loaded
    log_words: str  # of this driver in the kernel log, as an extended regular expression
    find_library: Callable[[Mapping[str, str], str], Library | None]  # the user-space library
    # the driver was updated under the running system
    update_fault: Callable[[Library | None, str], Fault | None] = lambda _library, _root: None


BACKENDS = (
    BackendRow(
        name="nvml",
        vendor="NVIDIA",
        backend="watchdog_app.machine.gpu.nvml:NvmlBackend",
        pci_vendors=(pci.NVIDIA,),
        kernel_drivers=frozenset(("nvidia", None)),
        # /dev/dxg is the Windows GPU as seen from WSL.
        driver_paths=(
            "/proc/driver/nvidia/version",
            "/sys/module/nvidia",
            "/dev/nvidiactl",
            "/dev/dxg",
        ),
        log_words="NVRM",
        find_library=nvml_driver.find_library,
        update_fault=nvml_driver.update_fault,
    ),
    BackendRow(
        name="drm",
        vendor="AMD or Intel",
        backend="watchdog_app.machine.gpu.drm:DrmBackend",
        pci_vendors=(pci.AMD, pci.INTEL),
        kernel_drivers=frozenset(pci.DRM_DRIVERS),
        driver_paths=tuple(f"/sys/module/{name}" for name in pci.DRM_DRIVERS),
        log_words="amdgpu|i915|xe ",
        find_library=pci.find_drm_driver,
    ),
)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The GPUs at one sample."""

    gpus: tuple[Gpu, ...] = ()  # by index, MIG instances after their GPU
    read_mono_s: float | None = None  # when the figures were read; None: there are not any
    driver_version: str | None = None
    faults: tuple[Fault, ...] = ()
    awaited: bool = False  # the first figures since the start come in a moment


def validate_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """
    Convert a vendor's row to fields of `Gpu`, without implausible values.

    Args:
        row: see DeviceRow. It comes from a process that a driver may have damaged.

    Returns:
        Arguments of `Gpu`: `index`, `state`, `notes`, and the plausible figures.

    Raises:
        ValueError, TypeError, KeyError, ArithmeticError: the row is malformed.
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
    """Remove figures that contradict each other; return notes about them."""
    notes = []
    used, total = found.get("memory_used_bytes", 0), found.get("memory_total_bytes", math.inf)
    if used > total:
        del found["memory_used_bytes"]
        notes.append("Memory: the driver says more is used than there is: not believed.")
    elif used + found.get("memory_reserved_bytes", 0) > total:
        del found["memory_reserved_bytes"]
    watts, limit_w = found.get("power_w", 0.0), found.get("power_limit_w", math.inf)
    if watts > limit_w * _OVER_LIMIT_RATIO + _OVER_LIMIT_W:
        del found["power_w"]
        notes.append(_implausible("Power", f"{watts:.0f} W with a limit of {limit_w:.0f} W"))
    return notes


def _implausible(label: str, message: str) -> str:
    return f"{label}: the driver says {message}: not believed."


def parse_processes(
    rows: Sequence[Sequence[Any]], program: Callable[[int], tuple[bool, str | None]]
) -> tuple[GpuProcess, ...]:
    """
    Convert the processes on a GPU.

    Args:
        rows: pid, bytes and percent of use, from a backend.
        program: whether a pid is not visible to us, and the name of its program.

    Raises:
        ValueError, TypeError, ArithmeticError: the rows are malformed.
    """
    return tuple(
        GpuProcess(
            int(pid),
            None if memory is None else int(memory),
            *program(int(pid)),
            utilization_percent=None if percent is None else _finite_float(percent),
        )
        for pid, memory, percent in rows
    )


def printable(value: object, most_chars: int = _MAX_TEXT) -> str:
    """
    Make a driver's text safe to print: without characters that could control a terminal.

    Args:
        value: the driver's text.
        most_chars: length limit of the result; the rest is cut off.

    Raises:
        TypeError: the value is not text.
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
_SET_BY_MONITOR = ("id", "index", "parent_id")  # set by the monitor
_FIELDS = {
    each.name: _CONVERTERS[kind]
    for each in fields(Gpu)
    if (kind := str(each.type).partition(" ")[0]) in _CONVERTERS
    and each.name not in _SET_BY_MONITOR
}
