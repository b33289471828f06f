"""
NVIDIA GPUs through nvidia-ml-py. Runs only in the reader process.

The table QUESTIONS lists the figures to read. A question that a GPU does not support is skipped for
ten minutes, without any wait, and a note says why its figure is missing.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.linux.cgroups import available_memory
from watchdog_app.core.model.hardware import FIGURES, ClockEvent, GpuState
from watchdog_app.machine.gpu import nvml_driver
from watchdog_app.machine.gpu.backend import BackendError, DeviceError, DeviceRow
from watchdog_app.machine.gpu.nvml_driver import UNSUPPORTED, Code, Driver, DriverError
from watchdog_app.machine.gpu.nvml_processes import ProcessList, ProcessLister

SLOW_S = 10.0  # interval for figures that hardly change
PROCESSES_S = 5.0
UNSUPPORTED_RETRY_S = 600.0  # a driver update may add support; a GPU hardly gains it
# Memory change that suggests a process started or ended: list processes before the list is due.
_CHANGED_BYTES = 256 * 1024**2
_PROCESSES_MIN_S = 1.0
_RETRY_S = 10.0  # after opening a GPU has failed
# The driver as a whole does not answer any more: restart the reader process.
_FATAL = (Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.VERSION_MISMATCH)
_ABSENT = (Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND)
_BROKEN: dict[int, tuple[GpuState, str]] = {
    Code.GPU_IS_LOST: (GpuState.LOST, "The driver has lost this GPU: it fell off the bus."),
    Code.RESET_REQUIRED: (
        GpuState.NEEDS_RESET,
        "The driver wants this GPU to be reset before it answers again.",
    ),
}
_REASONS: dict[int, str] = {
    Code.NOT_SUPPORTED: "this GPU does not tell",
    Code.FUNCTION_NOT_FOUND: "this driver is too old to tell",
    Code.NO_PERMISSION: "the driver tells it to root alone",
}
_XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
_MAX_EVENTS = 64
_ALL_ONES = (2**32 - 1, 2**64 - 1)  # N/A, or a bus whose device does not answer
_MEMORY_V2_STRUCT = 0x02000028  # nvmlMemory_v2
_SHUTDOWN, _SLOWDOWN = 0, 1  # nvmlTemperatureThresholds_t
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
# Bits of nvmlClocksEventReasons, in the order of ClockEvent.
_CLOCK_EVENTS = {1 << bit: str(event) for bit, event in enumerate(ClockEvent)}
_RECOVERIES = {1: "reset", 2: "reboot", 3: "drain", 4: "drain_and_reset"}
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_SINCE_LOAD, _IN_ALL = 0, 1  # nvmlEccCounterType_t
_GRAPHICS, _MEMORY_CLOCK = 0, 2  # nvmlClockType_t
_SENT, _RECEIVED = 0, 1  # nvmlPcieUtilCounter_t
_SLOWEST_STATE = 15  # of nvmlPstates_t; a larger number is unknown
# Default for GPUs that report neither threshold nor margin. NVIDIA's thresholds are between 85 and
# 100, with shutdown some degrees above slowdown.
_DEFAULT_SLOWDOWN_C = 90.0
_SHUTDOWN_ABOVE_SLOWDOWN_C = 5.0


@dataclass(frozen=True, slots=True)
class Question:
    """One figure to read from the driver."""

    field: str  # field of core.model.hardware.Gpu
    function: str  # function of the binding
    arguments: tuple[Any, ...] = ()  # arguments after the handle
    convert: Callable[[Any], Any] = lambda answer: answer  # to the field's unit; None: unknown
    every_s: float = 0.0
    fallback: str | None = None  # function for drivers that lack the first one
    optional: bool = False  # many GPUs do not support it: no note if it is missing

    @property
    def label(self) -> str:
        """The label that starts a note."""
        return FIGURES[self.field].label if self.field in FIGURES else self.field.capitalize()


def _count_or_none(answer: Any) -> int | None:
    return None if answer in _ALL_ONES else int(answer)


def _clock_events(mask: int) -> list[str] | None:
    if mask in _ALL_ONES:
        return None
    bits = (1 << position for position in range(mask.bit_length()))
    return [_CLOCK_EVENTS.get(bit, hex(bit)) for bit in bits if mask & bit]


def _bytes_per_s(kib_per_s: Any) -> int | None:
    return None if kib_per_s in _ALL_ONES else int(kib_per_s) * 1024


def _pstate(number: int) -> str | None:
    return f"P{number}" if 0 <= number <= _SLOWEST_STATE else None


def _watts(milliwatts: Any) -> float:
    return float(milliwatts) / 1000


def _plausible_threshold(celsius: Any) -> float | None:
    figure = FIGURES["slowdown_c"]
    return float(celsius) if figure.least <= celsius <= figure.most else None


def _recovery(answer: Any) -> str | None:
    field = answer[0]
    return _RECOVERIES.get(int(field.value.uiVal)) if field.nvmlReturn == 0 else None


_slow_question = partial(Question, every_s=SLOW_S, optional=True)
_count_question = partial(_slow_question, convert=_count_or_none)
_clock_question = partial(_count_question, every_s=PROCESSES_S)
_RATES = "nvmlDeviceGetUtilizationRates"
_ECC_FUNCTION = "nvmlDeviceGetTotalEccErrors"
_PCIE_FUNCTION = "nvmlDeviceGetPcieThroughput"  # waits 20 ms
_THRESHOLD_FUNCTION = "nvmlDeviceGetTemperatureThreshold"
QUESTIONS = (
    Question("utilization_percent", _RATES, convert=lambda rates: rates.gpu),
    Question("memory_utilization_percent", _RATES, (), lambda rates: rates.memory, optional=True),
    Question(
        "temperature_c", "nvmlDeviceGetTemperature", (0,), fallback="nvmlDeviceGetTemperatureV"
    ),
    Question("power_w", "nvmlDeviceGetPowerUsage", convert=_watts),
    Question(
        "throttling",
        "nvmlDeviceGetCurrentClocksEventReasons",
        convert=_clock_events,
        fallback="nvmlDeviceGetCurrentClocksThrottleReasons",  # drivers before 535
    ),
    Question("fan_percent", "nvmlDeviceGetFanSpeed", every_s=SLOW_S),
    Question("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), _watts, SLOW_S),
    _slow_question("slowdown_c", _THRESHOLD_FUNCTION, (_SLOWDOWN,), _plausible_threshold),
    _slow_question("shutdown_c", _THRESHOLD_FUNCTION, (_SHUTDOWN,), _plausible_threshold),
    _clock_question("graphics_clock_mhz", "nvmlDeviceGetClockInfo", (_GRAPHICS,)),
    _clock_question("memory_clock_mhz", "nvmlDeviceGetClockInfo", (_MEMORY_CLOCK,)),
    _clock_question("performance_state", "nvmlDeviceGetPerformanceState", convert=_pstate),
    _count_question("graphics_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_GRAPHICS,)),
    _count_question("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_MEMORY_CLOCK,)),
    _count_question("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _count_question("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _count_question("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _count_question("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _slow_question("pcie_rx_bytes_per_s", _PCIE_FUNCTION, (_RECEIVED,), _bytes_per_s),
    _slow_question("pcie_tx_bytes_per_s", _PCIE_FUNCTION, (_SENT,), _bytes_per_s),
    _count_question("ecc_corrected", _ECC_FUNCTION, (_CORRECTED, _SINCE_LOAD)),
    _count_question("ecc_uncorrected", _ECC_FUNCTION, (_UNCORRECTED, _SINCE_LOAD)),
    _count_question("ecc_corrected_aggregate", _ECC_FUNCTION, (_CORRECTED, _IN_ALL)),
    _count_question("ecc_uncorrected_aggregate", _ECC_FUNCTION, (_UNCORRECTED, _IN_ALL)),
    _slow_question(
        "remap_pending", "nvmlDeviceGetRemappedRows", convert=lambda rows: bool(rows[2])
    ),
    _slow_question("remap_failed", "nvmlDeviceGetRemappedRows", convert=lambda rows: bool(rows[3])),
    _slow_question(
        "recovery_action", "nvmlDeviceGetFieldValues", ((_RECOVERY_ACTION,),), _recovery
    ),
    # With MIG on, the GPU's instances have the memory and the processes, not the GPU itself.
    _slow_question("partitioned", "nvmlDeviceGetMigMode", convert=lambda mode: mode[0] == 1),
)
# Figures that only `watchdog doctor` reads.
DOCTOR_QUESTIONS = (
    _slow_question("capability", "nvmlDeviceGetCudaComputeCapability"),
    _slow_question("compute_mode", "nvmlDeviceGetComputeMode"),
    _slow_question("persistence", "nvmlDeviceGetPersistenceMode"),
    _slow_question("power_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", convert=_watts),
    _slow_question("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus"),
)
_MEMORY = Question("memory_used_bytes", "nvmlDeviceGetMemoryInfo")
_MEMORY_V2 = Question("memory_v2", "nvmlDeviceGetMemoryInfo", (_MEMORY_V2_STRUCT,), optional=True)
_PROCESSES = Question("processes", "nvmlDeviceGetComputeRunningProcesses")
_MARGIN = Question("margin_c", "nvmlDeviceGetMarginTemperature", optional=True)


class NvmlBackend:
    """
    NVIDIA's driver: GPUs as it counts them, MIG instances after their GPU.

    Args:
        trace: called with the name of each driver function before the call.
        everything: also read DOCTOR_QUESTIONS.
        root: not used; NVIDIA's library reads the machine itself.
    """

    def __init__(
        self,
        trace: Callable[[str], None] | None = None,
        everything: bool = False,
        root: str = "",  # noqa: ARG002 - the arguments of every backend
    ) -> None:
        self._trace = trace
        self._questions = QUESTIONS + DOCTOR_QUESTIONS if everything else QUESTIONS
        self._driver: Driver
        self._slots: list[_Slot] = []
        self._counted_mono_s: float | None = None
        self._awake: Sequence[tuple[int, str]] | None = None
        self._events: _Events

    def open(self) -> dict[str, Any]:
        """Load the driver, as `GpuBackend.open` describes."""
        paths.add_vendored()
        if self._trace is not None:
            self._trace("import pynvml")
        try:
            import pynvml
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:300]
            raise BackendError(nvml_driver.binding_fault(message), message) from error
        self._driver = Driver(pynvml, self._trace)
        self._events = _Events(self._driver)
        try:
            self._driver.ask("nvmlInit")
        except DriverError as error:
            raise _backend_error(error) from error
        versions: dict[str, Any] = {}
        for name, function in (
            ("driver", "nvmlSystemGetDriverVersion"),
            ("cuda", "nvmlSystemGetCudaDriverVersion_v2"),
        ):
            try:
                versions[name] = self._driver.ask(function)
            except DriverError:
                versions[name] = None
        return versions

    def devices(self, now_mono_s: float, awake: Sequence[tuple[int, str]] | None) -> Sequence[int]:
        """
        List the GPUs, as `GpuBackend.devices` describes; counted every ten seconds.

        Args:
            now_mono_s: monotonic time of the request.
            awake: index and PCI address of the GPUs that are not suspended; None: all are awake.
        """
        due = self._counted_mono_s is None or now_mono_s - self._counted_mono_s >= SLOW_S
        if due or awake != self._awake:
            self._counted_mono_s = now_mono_s
            # Open GPUs by address: by index the driver would wake suspended ones.
            places: Sequence[tuple[int, str | None]] = (
                awake if awake is not None else self._list_places()
            )
            if awake != self._awake or len(places) != len(self._slots):
                self._slots = [_Slot(index, address) for index, address in places]
                self._awake = awake
        return [slot.index for slot in self._slots]

    def read(self, index: int, now_mono_s: float) -> Iterable[DeviceRow]:
        """
        Read one GPU, as `GpuBackend.read` describes.

        Args:
            index: one of `devices`.
            now_mono_s: monotonic time of the request.
        """
        slot = next(each for each in self._slots if each.index == index)
        if slot.failed is not None and now_mono_s < slot.retry_mono_s:
            raise DeviceError(*slot.failed)
        try:
            device = slot.device = slot.device or self._open_device(slot)
            rows = [device.read(now_mono_s)]
            partitioned = rows[0].get("partitioned")
            slot.instances = self._mig_instances(slot, now_mono_s) if partitioned else []
        except DriverError as error:
            if error.code in _FATAL:
                raise _backend_error(error) from error
            if error.code in _BROKEN:
                slot.device = None
            slot.instances_mono_s = None
            slot.retry_mono_s = now_mono_s + (_RETRY_S if slot.device is None else 0.0)
            slot.failed = (*_error_state(error), slot.bus_id)
            raise DeviceError(*slot.failed) from error
        slot.failed = None
        return rows + [_instance_row(each, now_mono_s) for each in slot.instances]

    def events(self) -> Iterable[tuple[str, int]]:
        """Return Xid errors since the last call, oldest first, as `GpuBackend.events` describes."""
        return self._events.poll()

    def _list_places(self) -> list[tuple[int, str | None]]:
        try:
            return [(index, None) for index in range(int(self._driver.ask("nvmlDeviceGetCount")))]
        except DriverError as error:
            raise _backend_error(error) from error

    def _open_device(self, slot: _Slot) -> _Device:
        driver = self._driver
        if slot.bus_id is None or self._awake is None:
            handle = driver.ask("nvmlDeviceGetHandleByIndex", slot.index)
        else:
            handle = driver.ask("nvmlDeviceGetHandleByPciBusId", slot.bus_id.encode())
        device = _Device(driver, handle, slot.index, self._questions)
        slot.bus_id = device.identity.get("bus_id", slot.bus_id)
        if slot.bus_id is not None:
            self._events.register(handle, slot.bus_id)
        return device

    def _mig_instances(self, slot: _Slot, now_mono_s: float) -> list[_Device]:
        """List the MIG instances of a GPU, every ten seconds."""
        since, device = slot.instances_mono_s, slot.device
        if device is None or (since is not None and now_mono_s - since < SLOW_S):
            return slot.instances
        slot.instances_mono_s = now_mono_s
        known = {each.identity["uuid"]: each for each in slot.instances}
        found: list[_Device] = []
        device.notes.pop("instances", None)
        try:
            count = int(self._driver.ask("nvmlDeviceGetMaxMigDeviceCount", device.handle))
            for instance in filter(
                None, (self._open_instance(device, place) for place in range(count))
            ):
                old = known.get(instance.identity["uuid"], instance)
                old.handle = instance.handle
                found.append(old)
        except DriverError as error:
            if error.code not in UNSUPPORTED:
                device.notes["instances"] = f"MIG instances: not all can be read ({error.text})."
        return found

    def _open_instance(self, device: _Device, place: int) -> _Device | None:
        ask = self._driver.ask
        try:
            handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, place)
            found = _Device(self._driver, handle, device.index, ())
        except DriverError as error:
            if error.code == Code.NOT_FOUND:
                return None
            raise
        numbers = (ask(f"nvmlDeviceGet{kind}InstanceId", handle) for kind in ("Gpu", "Compute"))
        found.identity["partition"] = "gi{}.ci{}".format(*numbers)
        return found


@dataclass(slots=True)
class _Slot:
    """A place in the driver's count, and the GPU in it."""

    index: int
    bus_id: str | None
    device: _Device | None = None
    instances: list[_Device] = field(default_factory=list)
    instances_mono_s: float | None = None
    failed: tuple[GpuState, str, str | None] | None = None
    retry_mono_s: float = 0.0


@dataclass(slots=True)
class _Answer:
    """The last answer to one question."""

    value: Any = None
    due_mono_s: float = -math.inf
    unsupported: bool = False  # the GPU does not support it: asked again when due
    function: str = ""  # function that this driver knows


class _Device:
    """A GPU or a MIG instance, as long as its handle is valid."""

    def __init__(
        self, driver: Driver, handle: Any, index: int, questions: Sequence[Question]
    ) -> None:
        """
        Args:
            driver: the library.
            handle: of the library.
            index: as nvidia-smi counts; for a MIG instance, its GPU's.
            questions: empty for a MIG instance, since temperature and power belong to its GPU.

        Raises:
            DriverError: the driver does not give the GPU's UUID.
        """
        self._driver = driver
        self.handle = handle
        self.index = index
        self._questions = questions
        self.notes: dict[str, str] = {}
        self._answers: dict[str, _Answer] = {}  # by field
        # Of this reading, by function and arguments: one answer may hold several figures.
        self._results: dict[tuple[Any, ...], Any] = {}
        self._limits: dict[str, float] = {}
        self._limits_mono_s: float | None = None
        self._listed_mono_s: float | None = None
        self._listed_bytes = 0
        self._listed: ProcessList | None = None
        self._lister = ProcessLister(driver)
        self._asked = self._answered = 0
        self.identity = {"uuid": driver.ask("nvmlDeviceGetUUID", handle), "name": "NVIDIA GPU"}
        try:
            self.identity["name"] = driver.ask("nvmlDeviceGetName", handle)
        except DriverError as error:
            self.notes["name"] = f"Name: the driver does not tell ({error.text})."
        if questions:
            # fails in WSL; the daemon knows the bus
            with suppress(DriverError, UnicodeDecodeError):
                self.identity["bus_id"] = driver.ask("nvmlDeviceGetPciInfo", handle).busId

    def read(self, now_mono_s: float) -> DeviceRow:
        """
        Read every figure.

        Raises:
            DriverError: the GPU is lost, needs a reset, or does not answer any question.
        """
        self._asked = self._answered = 0
        self._results.clear()
        told = ((each.field, self._ask(each, now_mono_s)) for each in self._questions)
        found = {name: value for name, value in told if value is not None}
        if self._questions:
            found |= self._read_temperature_limits(found, now_mono_s)
        if found.get("partitioned"):
            self.notes["memory"] = "Memory and processes are those of its MIG instances."
        else:
            self._read_memory(found, now_mono_s)
            self._read_processes(found, now_mono_s)
        if self._asked and not self._answered:
            raise DriverError(-1, "it answers no question")
        return {**found, **self.identity, "index": self.index, "notes": list(self.notes.values())}

    def _ask(
        self, question: Question, now_mono_s: float, call: Callable[[], Any] | None = None
    ) -> Any:
        """
        Return the answer in the field's unit, asking only when it is due; None: unanswered.

        Args:
            question: without an answer a note says why, unless the question is optional.
            now_mono_s: of the reading.
            call: replaces the call of the question's own functions.
        """
        answer = self._answers.setdefault(question.field, _Answer(function=question.function))
        if now_mono_s < answer.due_mono_s:
            return answer.value
        answer.due_mono_s = now_mono_s + question.every_s
        answer.value, answer.unsupported = None, False
        self._asked += 1
        try:
            value = call() if call is not None else self._call(question, answer)
        except DriverError as error:
            if error.code in _BROKEN:
                raise
            if error.code in UNSUPPORTED:
                self._answered += 1  # "not supported" is an answer, too
                answer.unsupported, answer.due_mono_s = True, now_mono_s + UNSUPPORTED_RETRY_S
                answer.function = question.function
            if not question.optional:
                other = f"the driver answers with an error ({error.text})"
                self.notes[question.field] = f"{question.label}: {_REASONS.get(error.code, other)}."
            return None
        self._answered += 1
        self.notes.pop(question.field, None)
        answer.value = question.convert(value)
        return answer.value

    def _call(self, question: Question, answer: _Answer) -> Any:
        try:
            return self._ask_once(answer.function, question.arguments)
        except DriverError as error:
            if error.code not in UNSUPPORTED or question.fallback in (None, answer.function):
                raise
        answer.function = str(question.fallback)
        return self._ask_once(answer.function, question.arguments)

    def _ask_once(self, function: str, arguments: tuple[Any, ...]) -> Any:
        call = (function, *arguments)
        if call not in self._results:
            self._results[call] = self._driver.ask(function, self.handle, *arguments)
        return self._results[call]

    def _read_temperature_limits(self, found: DeviceRow, now_mono_s: float) -> dict[str, float]:
        """
        Find the slowdown and shutdown temperatures; derive the ones that the GPU does not report.
        """
        since = self._limits_mono_s
        if since is not None and now_mono_s - since < SLOW_S:
            return self._limits
        self._limits_mono_s = now_mono_s
        slowdown, shutdown, how = found.get("slowdown_c"), found.get("shutdown_c"), None
        celsius = found.get("temperature_c")
        margin = None if slowdown is not None else self._ask(_MARGIN, now_mono_s)
        if slowdown is None and margin is not None and celsius is not None:
            slowdown = _plausible_threshold(celsius + margin)
            how = f"it says {margin} °C are left until the slowdown"
        if slowdown is None and shutdown is not None:
            slowdown = shutdown - _SHUTDOWN_ABOVE_SLOWDOWN_C
            how = "the slowdown is taken from the shutdown"
        if slowdown is None:
            slowdown = _DEFAULT_SLOWDOWN_C
            how = f"{slowdown:.0f} °C is assumed for the slowdown"
        if how is not None:
            self.notes["limits"] = f"Temperature limits: the driver does not tell them; {how}."
        elif shutdown is None:
            self.notes["limits"] = (
                "Shutdown temperature: the driver does not tell; "
                f"taken as {_SHUTDOWN_ABOVE_SLOWDOWN_C:.0f} °C above the slowdown."
            )
        else:
            self.notes.pop("limits", None)
        shutdown = slowdown + _SHUTDOWN_ABOVE_SLOWDOWN_C if shutdown is None else shutdown
        self._limits = {"slowdown_c": slowdown, "shutdown_c": shutdown}
        return self._limits

    def _read_memory(self, found: DeviceRow, now_mono_s: float) -> None:
        memory = self._ask(_MEMORY_V2, now_mono_s) or self._ask(_MEMORY, now_mono_s)
        unsupported = memory is None and self._answers[_MEMORY.field].unsupported
        self.notes.pop("memory", None)
        if unsupported or (memory is not None and not memory.total):
            self.notes.pop(_MEMORY.field, None)
            self._share_host_memory(found)
        elif memory is not None and _count_or_none(memory.total) is None:
            self.notes["memory"] = "Memory: the driver does not know it (N/A)."
        elif memory is not None:
            found["memory_used_bytes"] = int(memory.used)
            found["memory_total_bytes"] = int(memory.total)
            reserved = _count_or_none(getattr(memory, "reserved", _ALL_ONES[1]))
            if reserved is not None:
                found["memory_reserved_bytes"] = reserved

    def _share_host_memory(self, found: DeviceRow) -> None:
        """Use the host's RAM as the limit of boards without their own memory (GB10, Jetson)."""
        host = available_memory(None)
        found["unified_memory"] = True
        found["memory_used_bytes"] = host.total_bytes - host.free_bytes
        found["memory_total_bytes"] = host.total_bytes
        self.notes["memory"] = "Memory: this GPU shares the host's RAM, which is shown here."

    def _read_processes(self, found: DeviceRow, now_mono_s: float) -> None:
        used = found.get("memory_used_bytes", 0)
        since = None if self._listed_mono_s is None else now_mono_s - self._listed_mono_s
        moved = abs(used - self._listed_bytes) >= _CHANGED_BYTES
        if since is None or since >= (_PROCESSES_MIN_S if moved else PROCESSES_S):
            self._listed_mono_s, self._listed_bytes = now_mono_s, used
            total = None if found.get("unified_memory") else found.get("memory_total_bytes")
            read = partial(self._lister.read, self.handle, total)
            self._listed = self._ask(_PROCESSES, now_mono_s, read)
            if self._listed is not None and self._listed.notes:
                self.notes["processes"] = " ".join(self._listed.notes)
        if self._listed is not None:
            found["processes"] = [list(row) for row in self._listed.rows]
            found["computing"] = self._listed.computing
            found["processes_mono_s"] = self._listed_mono_s


class _Events:
    """One event set for all GPUs, polled; stays empty if unsupported (WSL, old GPUs)."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: Any = None
        self._bus_ids: dict[int, str] = {}
        self._supported = True

    def register(self, handle: Any, bus_id: str) -> None:
        """
        Also report this GPU's events.

        Args:
            handle: of the GPU.
            bus_id: its PCI address.
        """
        if not self._supported:
            return
        try:
            if self._set is None:
                self._set = self._driver.ask("nvmlEventSetCreate")
        except DriverError:
            self._supported = False
            return
        try:
            self._driver.ask("nvmlDeviceRegisterEvents", handle, _XID_CRITICAL_ERROR, self._set)
        except DriverError:
            return  # this GPU does not support events
        self._bus_ids[_handle_address(handle)] = bus_id

    def poll(self) -> list[tuple[str, int]]:
        """Return the events since the last call, oldest first."""
        found: list[tuple[str, int]] = []
        for _ in range(_MAX_EVENTS if self._bus_ids else 0):
            try:
                event = self._driver.ask("nvmlEventSetWait_v2", self._set, 0)
            except DriverError:
                break  # a timeout: the queue is empty. A lost GPU shows in `read`.
            bus_id = self._bus_ids.get(_handle_address(event.device))
            if bus_id is not None and int(event.eventType) & _XID_CRITICAL_ERROR:
                found.append((bus_id, int(event.eventData)))
        return found


def _instance_row(instance: _Device, now_mono_s: float) -> DeviceRow:
    """Read a MIG instance; return a row with the error if that fails."""
    try:
        return instance.read(now_mono_s)
    except DriverError as error:
        if error.code in _FATAL:
            raise _backend_error(error) from error
        state, text = _error_state(error)
        return {**instance.identity, "index": instance.index, "state": state, "notes": [text]}


def _error_state(error: DriverError) -> tuple[GpuState, str]:
    other = GpuState.UNREADABLE, f"The driver answers with an error ({error.text})."
    return _BROKEN.get(error.code, other)


def _backend_error(error: DriverError) -> BackendError:
    """Build the error that says that the driver as a whole does not answer."""
    fault = nvml_driver.init_fault(error.code, error.text, nvml_driver.find_library(os.environ))
    return BackendError(fault, error.text, error.code, error.code in _ABSENT)


def _handle_address(handle: Any) -> int:
    """Return the address in a handle: two handles are pointers that Python cannot compare."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
