"""
GPUs as the daemon sees them: the reader's last answers and their age.

This module never waits and never loads a driver library. It does not treat the last answer as new:
each one has a time. Only one request runs at a time, and a later sample collects its answer.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.base import children
from watchdog_app.base.linux.files import KERNEL_LOG, KernelLog
from watchdog_app.base.linux.process import read_comm
from watchdog_app.base.text.plain import clean
from watchdog_app.core.diagnosis import gpu_faults
from watchdog_app.core.model.hardware import Gpu, GpuState, XidEvent
from watchdog_app.core.model.machine import Fault
from watchdog_app.machine.gpu.backend import (
    BACKENDS,
    BackendRow,
    GpuSample,
    parse_processes,
    printable,
    validate_row,
)
from watchdog_app.machine.gpu.events import KEEP_S, DeviceEvents, parse_record
from watchdog_app.machine.gpu.nvml_driver import DRIVER, NOT_WATCHED, UPDATED, Library
from watchdog_app.machine.gpu.pci import PciGpu, PciGpus, PowerSaving, short_address
from watchdog_app.machine.gpu.reader_process import PARSE_ERRORS, ReaderProcess

READER = children.module_argv("watchdog_app.machine.gpu.reader")
BUSY_EVERY_S = 1.0
IDLE_EVERY_S = 5.0
BROKEN_EVERY_S = 60.0
NEW_READER_S = 300.0  # a lost GPU answers only a new reader
_DRIVER_SCAN_EVERY_S = 60.0
# A sample may come a little early. Without this slack the request would wait for the sample after
# it.
_TICK_SLACK_S = 0.2
_FIRST_WAIT_S = 3.0  # how long the first figures are expected in a moment
_LOST_SHOWN_S = 3600.0  # how long a GPU that the driver no longer lists is shown as lost
_CHANGED_BYTES = 32 * 1024**2  # windows of a desktop change less memory
_BUSY_AFTER_CHANGE_S = 60.0
_IDENTITY = ("id", "index", "name", "uuid", "bus_id", "parent_id", "unified_memory")
_BROKEN = (GpuState.LOST, GpuState.NEEDS_RESET)
_ASLEEP = "It sleeps, powered down by the system, and is left alone."
_SILENT = "The driver has not answered in time: its figures are not known."
_SKIPPED = "The driver hung or crashed when asked about this GPU; it is asked again later."
_MISSING = "The driver no longer lists this GPU."
_NOT_READ = "Its figures are old: no program uses it, so it is read rarely and may sleep."


@dataclass(slots=True)
class _Device:
    """A GPU or a part of one, as last read."""

    gpu: Gpu
    computing: int
    rows: Sequence[Sequence[Any]]  # of its processes, from the reader
    # If the last reading left the device out: its state until the next one, and since when.
    unread: GpuState | None = None
    unread_mono_s: float = 0.0


class GpuMonitor:
    """
    The GPUs of this machine, through a separate reader process. Not thread-safe.

    A machine without a GPU costs two file lookups per sample. A missing GPU is not an error.
    """

    def __init__(
        self,
        *,
        proc: str = "/proc",
        root: str = "",
        env: Mapping[str, str] | None = None,
        reader_argv: Sequence[str] = READER,
        backend: BackendRow = BACKENDS[0],
        deadline_s: float = 5.0,
        start_deadline_s: float = 60.0,
        kernel_log: str | None = KERNEL_LOG,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            proc: where processes are looked up; a pid that is missing there is foreign.
            root: prefix of /sys, /etc and the library's folders; of /proc for the reader.
            env: environment for the reader; None: ours. Only the variables that a reader needs are
                passed on.
            reader_argv: the reader's command line.
            backend: the vendor to search for.
            deadline_s: for one GPU, and for the driver as a whole.
            start_deadline_s: for the driver's own start, which takes seconds per GPU.
            kernel_log: path of the kernel log; None: not read.
            wall_clock: seconds of the epoch, for events.
        """
        self._root = root
        self._env = os.environ if env is None else env
        self._backend = backend
        self._proc = proc if os.path.isdir(proc) else None  # only Linux has one
        self._wall_clock = wall_clock
        self._max_age_s = IDLE_EVERY_S + deadline_s
        self._library: Library | None = None
        self._update_fault: Fault | None = None
        self._scanned_mono_s: float | None = None
        self._existing_paths: tuple[bool, ...] = ()
        self._bus = PciGpus(backend.pci_vendors, root)
        # Its GPUs are counted after those of earlier rows: nvidia-smi begins at 0.
        earlier = itertools.takewhile(lambda row: row.name != backend.name, BACKENDS)
        self._earlier = [(row, PciGpus(row.pci_vendors, root)) for row in earlier]
        self._first_index = 0
        self._bus_gpus: tuple[PciGpu, ...] = ()
        self._power_saving = PowerSaving()
        self._reader = ReaderProcess(
            reader_argv, self._env, deadline_s, start_deadline_s, row=backend, root=root
        )
        # Only NVIDIA's lines in the log are understood.
        reads_log = backend.name == BACKENDS[0].name
        self._log = KernelLog(kernel_log) if kernel_log is not None and reads_log else None
        self._events = DeviceEvents()
        self._devices: dict[str, _Device] = {}
        self._incoming: dict[str, _Device] = {}  # from the unfinished reading
        self._read_mono_s: float | None = None
        self._memory_changed_mono_s: float | None = None
        # GPUs were read before, and the driver's library has since been removed
        self._library_removed = False

    def read(self, now_mono_s: float, busy: bool = False) -> GpuSample:
        """
        Return the GPUs as last read, and request the next reading when it is due. Never waits.

        Args:
            now_mono_s: monotonic time of the sample.
            busy: the caller needs figures each second, even if nothing uses the GPUs.
        """
        self._scan_for_driver(now_mono_s)
        if self._library is None and not self._reader.running:
            return self._sample_without_driver()
        self._library_removed = False
        self._collect(now_mono_s)
        self._read_log(now_mono_s)
        self._bus_gpus = self._bus.read()
        self._control_reader(now_mono_s, busy)
        return self._build_sample(now_mono_s)

    @property
    def reader_pid(self) -> int | None:
        """Pid of the reader process; None: not running."""
        return self._reader.pid

    def close(self) -> None:
        """End the reader, waiting a second at most, and close the kernel log."""
        self._reader.close()
        if self._log is not None:
            self._log.close()

    # Detection of the driver

    def _scan_for_driver(self, now_mono_s: float) -> None:
        """Find library, module and PCI devices: once a minute, and when a driver path changes."""
        backend = self._backend
        seen = tuple(os.path.exists(self._root + path) for path in backend.driver_paths)
        since = None if self._scanned_mono_s is None else now_mono_s - self._scanned_mono_s
        if since is not None and since < _DRIVER_SCAN_EVERY_S and seen == self._existing_paths:
            return
        self._scanned_mono_s = now_mono_s
        if seen != self._existing_paths:
            self._existing_paths = seen
            self._reader.reset_backoff()
        self._library = backend.find_library(self._env, self._root)
        self._update_fault = backend.update_fault(self._library, self._root)
        places = self._first_index, [gpu.address for gpu in self._bus_gpus]
        self._bus.scan()
        self._bus_gpus = self._bus.read()
        self._first_index = sum(len(_counted(row, bus)) for row, bus in self._earlier)
        found = self._first_index, [gpu.address for gpu in self._bus_gpus]
        if since is not None and found != places:
            # The driver counts its GPUs only when it starts, so it needs a new reader.
            self._reader.stop()

    def _sample_without_driver(self) -> GpuSample:
        self._reader.clear_fault()
        self._library_removed = self._library_removed or bool(self._devices)
        self._devices, self._incoming, self._read_mono_s = {}, {}, None
        gone = Fault(
            DRIVER,
            f"The {self._backend.vendor} driver is gone: it was removed, or is being updated. New "
            f"GPU jobs fail. {NOT_WATCHED}",
            "If an update of the driver is under way, let it end; else install the driver again as "
            "a whole. Then restart the machine once trainings have saved. To see more: watchdog "
            "doctor",
        )
        return GpuSample(faults=(gone,) if self._library_removed else ())

    # Requests

    def _control_reader(self, now_mono_s: float, busy: bool) -> None:
        """Start the reader, send a request, or stop it."""
        reader, gpus = self._reader, [each.gpu for each in self._devices.values()]
        in_use = any(gpu.processes for gpu in gpus)
        if not self._power_saving.may_read(self._bus_gpus, in_use, now_mono_s):
            reader.stop()
            return
        if any(gpu.state in _BROKEN for gpu in gpus):
            reader.stop_for(now_mono_s, 0.0, NEW_READER_S)
        if not reader.running:
            if self._library is not None:
                reader.start(now_mono_s, self._library.folder)
            return
        every_s = BUSY_EVERY_S if busy or self._is_busy(now_mono_s) else IDLE_EVERY_S
        awake = None
        if self._first_index or any(gpu.asleep for gpu in self._bus_gpus):
            places = enumerate(self._driver_gpus(), self._first_index)
            awake = [(index, gpu.address) for index, gpu in places if not gpu.asleep]
        reader.ask(now_mono_s, every_s - _TICK_SLACK_S, awake)
        if gpus and all(gpu.state in _BROKEN for gpu in gpus):
            # A reset works only while no process has the GPU open, so the reader must close it.
            # After a reset, the GPU answers only a new reader.
            reader.stop_for(now_mono_s, BROKEN_EVERY_S)

    def _is_busy(self, now_mono_s: float) -> bool:
        """
        Return whether a process computes on a GPU, or its memory has changed lately.

        The second test is for containers and WSL, where the driver does not list computing
        processes.
        """
        moved = self._memory_changed_mono_s
        return any(each.computing for each in self._devices.values()) or (
            moved is not None and now_mono_s - moved <= _BUSY_AFTER_CHANGE_S
        )

    def _driver_gpus(self) -> list[PciGpu]:
        """List the GPUs that the driver counts, in its order: by address."""
        return [gpu for gpu in self._bus_gpus if gpu.driver in self._backend.kernel_drivers]

    # Messages from the reader and the kernel log

    def _collect(self, now_mono_s: float) -> None:
        try:
            for message in self._reader.collect(now_mono_s):
                if "device" in message:
                    self._add_row(message["device"], now_mono_s)
                elif "events" in message:
                    for bus_id, code in message["events"]:
                        event = XidEvent(int(code), self._wall_clock())
                        self._add_event(printable(bus_id), event, "driver")
                elif "end" in message:
                    self._finish_reading(now_mono_s)
        except PARSE_ERRORS:
            self._reader.restart_damaged(now_mono_s)

    def _add_row(self, row: Mapping[str, Any], now_mono_s: float) -> None:
        """
        Store one GPU of the reading in progress.

        Raises:
            One of PARSE_ERRORS: the row is not a valid GPU.
        """
        fields = validate_row(row)
        gpu_id, parent_id = self._identity(row, fields)
        before = self._devices.get(gpu_id)
        if before is not None:
            known = before.gpu
            fields = {"uuid": known.uuid, "name": known.name, "bus_id": known.bus_id} | fields
        elif "bus_id" not in fields and parent_id is None and short_address(gpu_id) is not None:
            fields["bus_id"] = f"0000{gpu_id}"
        rows, computing = row.get("processes", ()), int(row.get("computing", 0))
        same = before is not None and rows == before.rows
        processes = (
            before.gpu.processes if before and same else parse_processes(rows, self._program)
        )
        name = {"name": f"{self._backend.vendor} GPU"}
        gpu = Gpu(**name | fields, id=gpu_id, parent_id=parent_id, processes=processes)
        if before is not None and _memory_changed(before.gpu, gpu):
            self._memory_changed_mono_s = now_mono_s
        # Show it at once: reading the GPUs after it may crash the driver.
        device = _Device(gpu, computing, rows)
        self._devices[gpu_id] = self._incoming[gpu_id] = device

    def _identity(
        self, row: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> tuple[str, str | None]:
        """Return the id of a GPU and, for a partition, of the whole GPU with that index."""
        index = fields["index"]
        if "partition" in row:
            parent_id = _gpu_ids_at(index, self._incoming)[-1]
            return f"{parent_id}/{printable(row['partition'])}", parent_id
        unknown = f"gpu{index}"
        found = short_address(fields.get("bus_id"))
        if found is not None:
            self._devices.pop(unknown, None)  # the GPU has given its address since
        else:
            # The GPU cannot give its address. Use the GPU that last had this index, or its place on
            # the bus.
            places = [place.address for place in self._driver_gpus()]
            place = index - self._first_index
            found = [*_gpu_ids_at(index, self._devices), *places[place : place + 1], unknown][0]
        return found, None

    def _finish_reading(self, now_mono_s: float) -> None:
        """Store the end of a reading; mark GPUs that it left out."""
        self._read_mono_s = self._reader.asked_mono_s or now_mono_s
        for gpu_id, device in self._devices.items():
            if gpu_id not in self._incoming and device.unread is not GpuState.LOST:
                device.unread = self._reader.skipped_state(device.gpu.index) or GpuState.LOST
                device.unread_mono_s = self._read_mono_s
        self._incoming = {}
        in_use = any(each.gpu.processes for each in self._devices.values())
        self._power_saving.record_reading(now_mono_s, in_use)

    def _read_log(self, now_mono_s: float) -> None:
        for record in () if self._log is None else self._log.read():
            line = parse_record(record)
            if line is None:
                continue
            at_unix_s = self._wall_clock() - max(0.0, now_mono_s - line.mono_s)
            if self._wall_clock() - at_unix_s <= KEEP_S:
                event = XidEvent(line.code, at_unix_s, line.pid, line.text)
                self._add_event(line.address, event, "log")

    def _add_event(self, bus_id: str | None, event: XidEvent, source: str) -> None:
        gpu_id = short_address(bus_id)
        if gpu_id is not None:
            self._events.add(gpu_id, event, source)

    # The sample that callers get

    def _build_sample(self, now_mono_s: float) -> GpuSample:
        read = self._read_mono_s
        current = read is not None and now_mono_s - read <= self._max_age_s
        skipped = self._reader.skipped(now_mono_s)
        gpus = self._visible_gpus(now_mono_s, current, skipped)
        faults = self._faults()
        updated = any(fault.source == UPDATED for fault in faults)
        for gpu in gpus:
            # If the driver as a whole is silent, one fault is enough.
            if gpu.state is not GpuState.SILENT or (gpu.index in skipped and not updated):
                faults += _state_faults(gpu)
        asleep = gpus and all(gpu.state is GpuState.ASLEEP for gpu in gpus)
        return GpuSample(
            gpus=gpus,
            read_mono_s=read if current and not asleep else None,
            driver_version=self._reader.driver_version,
            faults=tuple({fault.source: fault for fault in faults}.values()),
            awaited=self._is_awaited(now_mono_s),
        )

    def _is_awaited(self, now_mono_s: float) -> bool:
        """Whether the first figures come in a moment: a reader has just been started."""
        reader = self._reader
        waiting = reader.running and self._read_mono_s is None
        return waiting and now_mono_s - (reader.started_mono_s or 0.0) <= _FIRST_WAIT_S

    def _visible_gpus(
        self, now_mono_s: float, current: bool, skipped: frozenset[int]
    ) -> tuple[Gpu, ...]:
        """Build every GPU as it is shown now, by index, MIG instances after their GPU."""
        places = {gpu.address: gpu for gpu in self._bus_gpus}
        found: list[Gpu] = []
        for gpu_id, device in list(self._devices.items()):
            gpu = self._visible_gpu(device, places.get(gpu_id), current, skipped)
            if device.unread is GpuState.LOST and gpu.state is GpuState.LOST:
                place, since_s = places.get(gpu_id), now_mono_s - device.unread_mono_s
                drivers = (None, *self._backend.kernel_drivers)
                taken = place is not None and place.driver not in drivers
                # A MIG instance was removed, or a virtual machine uses the GPU now.
                if gpu.parent_id is not None or taken or since_s > _LOST_SHOWN_S:
                    del self._devices[gpu_id]
                    continue
            events = self._events.recent(gpu_id, self._wall_clock())
            found.append(replace(gpu, xids=events) if events else gpu)
        for index, place in enumerate(self._driver_gpus(), self._first_index):
            if place.asleep and place.address not in self._devices:
                bus_id = f"0000{place.address}"
                asleep = Gpu(place.address, index, f"{place.vendor} GPU", bus_id=bus_id)
                found.append(_without_figures(asleep, GpuState.ASLEEP, _ASLEEP))
        found.sort(key=lambda gpu: (gpu.index, gpu.parent_id is not None))
        return tuple(found)

    def _visible_gpu(
        self, device: _Device, place: PciGpu | None, current: bool, skipped: frozenset[int]
    ) -> Gpu:
        """Return a GPU with its figures, or with the reason why they are missing."""
        gpu = device.gpu
        if place is not None and place.asleep:
            return _without_figures(gpu, GpuState.ASLEEP, _ASLEEP)
        if gpu.index in skipped:
            return _without_figures(gpu, GpuState.SILENT, _SKIPPED)
        if device.unread is GpuState.LOST:
            return _without_figures(gpu, GpuState.LOST, _MISSING)
        if gpu.state is not GpuState.OK or (current and device.unread is None):
            return gpu
        if device.unread is GpuState.SILENT:
            return _without_figures(gpu, GpuState.SILENT, _SKIPPED)
        if device.unread is None and self._reader.fault is not None:
            return _without_figures(gpu, GpuState.SILENT, _SILENT)
        return _without_figures(gpu, GpuState.OK, _NOT_READ)

    def _faults(self) -> list[Fault]:
        fault, reader = self._reader.fault, self._reader
        if fault is None:
            return [self._update_fault] if self._update_fault is not None and reader.running else []
        # A library without a GPU is common: in containers and in images for any machine.
        if not reader.absent or self._bus_gpus or any(self._existing_paths):
            return [fault]
        return []

    def _program(self, pid: int) -> tuple[bool, str | None]:
        """Return whether a pid is not in our /proc, and the name of its program."""
        if self._proc is None:
            return False, None
        name = read_comm(pid, self._proc)
        if name is None:
            return not os.path.exists(f"{self._proc}/{pid}"), None
        return False, clean(name)


def _counted(row: BackendRow, bus: PciGpus) -> list[PciGpu]:
    """List the GPUs on the bus that a vendor's own tool counts."""
    bus.scan()
    return [gpu for gpu in bus.read() if gpu.driver in row.kernel_drivers]


def _gpu_ids_at(index: int, devices: Mapping[str, _Device]) -> list[str]:
    """List the ids of the GPUs with this index, without partitions."""
    return [
        gpu_id
        for gpu_id, each in devices.items()
        if each.gpu.index == index and each.gpu.parent_id is None
    ]


def _state_faults(gpu: Gpu) -> list[Fault]:
    """Build the fault of a GPU that cannot be read; empty if it is read or suspended."""
    found = gpu_faults.STATES.get(gpu.state)
    if found is None:
        return []
    why = f" {gpu.notes[0]}" if gpu.notes and gpu.state is GpuState.UNREADABLE else ""
    message = f"GPU {gpu.index} ({gpu.name}) {found.title}: {found.text}.{why}"
    return [Fault(f"gpu.{gpu.index}", message, found.remedy(gpu.index, gpu.name))]


def _memory_changed(before: Gpu, now: Gpu) -> bool:
    one, other = before.memory_used_bytes, now.memory_used_bytes
    if one is None or other is None or now.unified_memory:
        return False
    return abs(other - one) >= _CHANGED_BYTES


def _without_figures(gpu: Gpu, state: GpuState, note: str) -> Gpu:
    """Keep a GPU's identity, drop its figures, and add the reason."""
    known: dict[str, Any] = {name: getattr(gpu, name) for name in _IDENTITY}
    return Gpu(**known, state=state, notes=(note,))
