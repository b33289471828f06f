"""
Processes on a GPU, as the driver lists them. Runs only in the reader process.

Some 535 drivers wrote records of 32 bytes into an array of 24-byte records, so pids came from other
fields. Records that cannot be a process are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from watchdog_app.machine.gpu.nvml_driver import UNSUPPORTED, Code, Driver, DriverError

_MAX_PERCENT = 100  # some drivers write garbage above it
_MAX_PID = 4194304  # kernel, include/linux/threads.h: PID_MAX_LIMIT
_UNKNOWN_NOTE = (
    "Memory by process: the driver does not tell it for every process (WSL, WDDM, some MIG)."
)
_ZERO_NOTE = "Memory by process: the driver says 0 bytes, as in some containers: not known."
_UTILIZATION = "nvmlDeviceGetProcessUtilization"
_NO_SAMPLES = (0, Code.NOT_FOUND)  # the binding raises an error for an empty list, too
_GARBLED_NOTE = "Processes: the driver's records are garbled (known of some 535 drivers)."


@dataclass(frozen=True, slots=True)
class ProcessList:
    """Pids with their bytes and percent of use of the GPU, and how many of them compute."""

    rows: tuple[tuple[int, int | None, int | None], ...] = ()
    computing: int = 0
    notes: tuple[str, ...] = ()


class ProcessLister:
    """Lists the processes of one device, for any driver version."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._unsupported: set[str] = set()
        self._sampled_us: int | None = None  # time of the newest sample of use; None: none read

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
        used = self._read_utilization(handle, found.keys())
        rows = tuple((pid, memory, used.get(pid)) for pid, memory in sorted(found.items()))
        return ProcessList(rows, len(computing), tuple(dict.fromkeys(notes)))

    def _read_utilization(self, handle: Any, pids: Collection[int]) -> dict[int, int]:
        """
        Read how busy each process kept the SMs since the last list, in percent; empty: unknown.

        The driver samples busy processes only: a listed process without a sample was idle. Samples
        of unlisted pids show that the two lists count pids differently, as in some containers.
        """
        first = self._sampled_us is None
        # Not later than now: a damaged sample or a corrected clock would hide the next ones.
        since_us = min(self._sampled_us or 0, time.time_ns() // 1000)
        samples: list[Any] = []
        if _UTILIZATION in self._unsupported:
            return {}
        try:
            samples = self._driver.ask(_UTILIZATION, handle, since_us)
        except DriverError as error:
            if error.code in UNSUPPORTED:  # MIG, WSL
                self._unsupported.add(_UTILIZATION)
            if error.code not in _NO_SAMPLES:
                return {}
        samples = sorted(
            (each for each in samples if each.smUtil <= _MAX_PERCENT),
            key=lambda each: each.timeStamp,
        )
        self._sampled_us = samples[-1].timeStamp if samples else since_us
        if first:
            return {}  # these samples may be minutes old
        found = {int(each.pid): int(each.smUtil) for each in samples}
        return dict.fromkeys(pids, 0) | found if found.keys() <= set(pids) else found

    def _list_records(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:
        found = self._driver.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        memory = (each.usedGpuMemory for each in found)
        sizes = (None if size is None else int(size) for size in memory)
        return [(int(each.pid), size) for each, size in zip(found, sizes, strict=True)]


def _is_plausible(pid: int, memory: int | None, total_bytes: int | None) -> bool:
    return 0 < pid <= _MAX_PID and (memory is None or not total_bytes or memory <= total_bytes)
