"""
Processes on a GPU, as the driver lists them. Runs only in the reader process.

Some 535 drivers wrote records of 32 bytes into an array of 24-byte records, so pids came from other
fields. Records that cannot be a process are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchdog_app.machine.gpu.nvml_driver import UNSUPPORTED, Code, Driver, DriverError

_MAX_PID = 4194304  # kernel, include/linux/threads.h: PID_MAX_LIMIT
_UNKNOWN_NOTE = (
    "Memory by process: the driver does not tell it for every process (WSL, WDDM, some MIG)."
)
_ZERO_NOTE = "Memory by process: the driver says 0 bytes, as in some containers: not known."
_GARBLED_NOTE = "Processes: the driver's records are garbled (known of some 535 drivers)."


@dataclass(frozen=True, slots=True)
class ProcessList:
    """Pids with their bytes on the GPU, and how many of them compute."""

    rows: tuple[tuple[int, int | None], ...] = ()
    computing: int = 0
    notes: tuple[str, ...] = ()


class ProcessLister:
    """Lists the processes of one device, for any driver version."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # by kind: suffix of the newest function that the driver has
        self._suffix: dict[str, str] = {}
        self._unsupported: set[str] = set()

    def read(self, handle: Any, total_bytes: int | None) -> ProcessList:
        """
        List the processes on the device, each pid once.

        Args:
            handle: of the device.
            total_bytes: the device's memory, which a process cannot exceed; None: unknown.

        Raises:
            DriverError: the driver supports neither list.
        """
        found: dict[int, int | None] = {}
        notes: list[str] = []
        computing: set[int] = set()
        failures: list[DriverError] = []
        for kind in ("Compute", "Graphics", "MPSCompute"):
            if kind in self._unsupported:
                continue
            try:
                records = self._list_records(kind, handle)
            except DriverError as error:
                if error.code not in UNSUPPORTED:
                    raise
                self._unsupported.add(kind)
                failures.append(error)
                continue
            for pid, memory in records:
                if not _is_plausible(pid, memory, total_bytes):
                    notes.append(_GARBLED_NOTE)
                    continue
                if memory == 0:
                    notes.append(_ZERO_NOTE)
                elif memory is None:
                    notes.append(_UNKNOWN_NOTE)
                # A process has one size per GPU, which both lists repeat.
                found[pid] = max(memory or 0, found.get(pid) or 0) or None
                if kind != "Graphics":
                    computing.add(pid)
        if failures and {"Compute", "Graphics"} <= self._unsupported:
            raise failures[0]
        return ProcessList(
            tuple(sorted(found.items())), len(computing), tuple(dict.fromkeys(notes))
        )

    def _list_records(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:
        failure = DriverError(Code.FUNCTION_NOT_FOUND, "it was not asked")
        for suffix in (self._suffix[kind],) if kind in self._suffix else ("_v3", "_v2"):
            try:
                found = self._driver.ask(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", handle)
            except DriverError as error:
                failure = error
                if error.code not in UNSUPPORTED:
                    break
                continue
            self._suffix[kind] = suffix
            memory = (each.usedGpuMemory for each in found)
            sizes = (None if size is None else int(size) for size in memory)
            return [(int(each.pid), size) for each, size in zip(found, sizes, strict=True)]
        raise failure


def _is_plausible(pid: int, memory: int | None, total_bytes: int | None) -> bool:
    return 0 < pid <= _MAX_PID and (memory is None or not total_bytes or memory <= total_bytes)
