"""
A driver library of our own: compiled, loaded by the real nvidia-ml-py, steered while in use.

    stub = DriverStub(tmp_path, cards=2)        # compiles once a machine, then copies
    run([sys.executable, ...], env=stub.env())  # LD_LIBRARY_PATH and the state file
    stub.set(0, used=20 * GIB, temperature=81)  # any field of `Card`, live
    stub.processes(0, [(pid, 3 * GIB)])         # memory NOT_AVAILABLE is the driver's N/A
    stub.samples(0, {pid: 60})                  # percent of the SMs, measured now
    stub.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED, card=0)  # or an error of all cards
    stub.fail("nvmlDeviceGetUtilizationRates", HANG, card=1)        # hung until stub.heal()
    stub.fail("nvmlInitWithFlags", VERSION_MISMATCH); stub.heal()
    stub.lose(1); stub.find(1)                  # every call on it answers GPU_IS_LOST, and back
    stub.remove_card(1); stub.add_card()        # not counted any more; one more
    stub.partition(0, 3)                        # MIG instances, as cards: their numbers come back
    stub.xid(0, 79)                             # an event in the driver's event set
    stub.uninstall(); stub.install()            # the library file itself goes and comes
    stub.calls(), stub.reset_calls()            # calls by function since then
    stub.touched(1)                             # calls that named this card

`set`, `fail` and the rest work at any time, in any process that runs with `env()`. Needs gcc.
In a test of another folder: `from gpu_stub.driver_stub import DriverStub` (tests/conftest.py puts
tests/ on the path).
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

GIB = 1024**3
NOT_AVAILABLE = 2**64 - 1

# Behaviours of a function: an error code of nvml.h, or one of these.
HANG, CRASH, MISSING, ABORT = -1, -2, -3, -4
OK = 0
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 4, 9, 15
RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 16, 18, 999

FUNCTIONS = (
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieThroughput",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlEventSetCreate",
    "nvmlEventSetFree",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
)
_NUMBER = {name: number for number, name in enumerate(FUNCTIONS)}
_DEVICES, _PROCESSES, _EVENTS = 128, 64, 64
_SOURCE = Path(__file__).with_name("nvml_stub.c")
_XID = 8

u32, u64, i32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32


class Process(ctypes.Structure):
    _fields_ = (
        ("pid", u32),
        ("graphics", u32),
        ("gpu_instance", u32),
        ("compute_instance", u32),
        ("memory", u64),
        ("sampled_us", u64),
        ("sm", u32),
        ("unused", u32),
    )


class Card(ctypes.Structure):
    """Everything that `set` can change; bytes, degrees, milliwatts, percent, MHz, KiB/s."""

    _fields_ = (
        ("present", i32),
        ("card", i32),
        ("slot", i32),
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("bus", ctypes.c_char * 32),
        ("total", u64),
        ("used", u64),
        ("reserved", u64),
        ("reasons", u64),
        ("ecc", u64),  # uncorrected errors
        ("ecc_corrected", u64),
        ("ecc_aggregate", u64),
        ("ecc_corrected_aggregate", u64),
        ("utilization", u32),
        ("memory_utilization", u32),
        ("temperature", u32),
        ("slowdown", u32),  # 0: the driver does not tell
        ("shutdown", u32),
        ("margin", i32),
        ("fan", u32),
        ("power_mw", u32),
        ("limit_mw", u32),
        ("remap_pending", u32),
        ("remap_failed", u32),
        ("recovery", u32),
        ("mig", u32),
        ("graphics_clock", u32),
        ("graphics_clock_max", u32),
        ("memory_clock", u32),
        ("memory_clock_max", u32),
        ("pstate", u32),
        ("pcie_generation", u32),
        ("pcie_generation_max", u32),
        ("pcie_width", u32),
        ("pcie_width_max", u32),
        ("rx_kib", u32),
        ("tx_kib", u32),
        ("touched", u64),
        ("process_count", u32),
        ("process", Process * _PROCESSES),
        ("behaviour", i32 * len(FUNCTIONS)),
    )


class _Event(ctypes.Structure):
    _fields_ = (("device", u32), ("type", u64), ("data", u64))


class _State(ctypes.Structure):
    _fields_ = (
        ("size", u64),
        ("driver", ctypes.c_char * 80),
        ("nvml", ctypes.c_char * 80),
        ("cuda", i32),
        ("record_bytes", i32),
        ("written", u64),
        ("taken", u64),
        ("event", _Event * _EVENTS),
        ("behaviour", i32 * len(FUNCTIONS)),
        ("delay_us", u32 * len(FUNCTIONS)),
        ("calls", u64 * len(FUNCTIONS)),
        ("device", Card * _DEVICES),
    )


class DriverStub:
    """One driver with its cards, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        cards: int = 1,
        driver: str = "570.124.06",
        cuda: int = 12080,
        installed: bool = True,
    ) -> None:
        """
        Args:
            folder: an empty folder, or one that does not exist yet.
            cards: idle ones of 24 GiB to begin with.
            driver: version of driver and library.
            cuda: what the driver offers: 12080 is 12.8.
            installed: whether the library file is there from the start.
        """
        self.folder = folder / "driver"
        self.library = self.folder / "libnvidia-ml.so.1"
        self.state_file = folder / "driver_state"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.state_file.open("wb") as file:
            file.truncate(ctypes.sizeof(_State))
        with self.state_file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._state = _State.from_buffer(self._map)
        self._state.size = ctypes.sizeof(_State)
        self._state.driver = driver.encode()
        self._state.nvml = f"12.{driver}".encode()
        self._state.cuda = cuda
        for device in self._state.device:
            device.card = -1
        for _ in range(cards):
            self.add_card()
        if installed:
            self.install()

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which nvidia-ml-py loads this library."""
        env = dict(os.environ if base is None else base)
        env["LD_LIBRARY_PATH"] = str(self.folder)
        env["WATCHDOG_GPU_STUB"] = str(self.state_file)
        return env

    def install(self) -> None:
        """The library file is there."""
        shutil.copy(_compiled(), self.library)

    def uninstall(self) -> None:
        """The library file is gone; who has it loaded goes on."""
        self.library.unlink(missing_ok=True)

    def add_card(self, **fields: int | str | bytes) -> int:
        """One more idle card; its number for all other calls."""
        number = next(i for i, device in enumerate(self._state.device) if not device.uuid)
        self._reset(number, card=-1, slot=number)
        self.set(
            number,
            name="NVIDIA GeForce RTX 3090",
            bus=f"00000000:{5 + number:02X}:00.0",
            uuid=f"GPU-{number:08x}-1111-2222-3333-444444444444",
        )
        self.set(number, **fields)
        return number

    def partition(self, card: int, instances: int, total: int = 5 * GIB) -> list[int]:
        """Switch MIG on for a card, with so many instances; their numbers."""
        self.set(card, mig=1)
        numbers = []
        for slot in range(instances):
            number = next(i for i, device in enumerate(self._state.device) if not device.uuid)
            self._reset(number, card=card, slot=slot)
            self.set(
                number,
                total=total,
                name=f"{self._state.device[card].name.decode()} MIG 1g.5gb",
                uuid=f"MIG-{card:08x}-{slot:04x}-5555-6666-777777777777",
            )
            for name in ("UtilizationRates", "Temperature", "TemperatureV", "FanSpeed"):
                self.fail(f"nvmlDeviceGet{name}", NOT_SUPPORTED, card=number)
            for name in ("PowerUsage", "EnforcedPowerLimit", "MigMode", "TotalEccErrors"):
                self.fail(f"nvmlDeviceGet{name}", NOT_SUPPORTED, card=number)
            self.fail("nvmlDeviceGetProcessUtilization", NOT_SUPPORTED, card=number)
            numbers.append(number)
        return numbers

    def remove_card(self, card: int) -> None:
        """It is not counted any more; the numbers of the others stay, their indices move up."""
        self._state.device[card].present = 0
        self._state.device[card].uuid = b""

    def lose(self, card: int) -> None:
        """It fell off the bus: counted, but every call on it fails."""
        self._state.device[card].present = 0

    def find(self, card: int) -> None:
        """It is back."""
        self._state.device[card].present = 1

    def set(self, card: int, **fields: int | str | bytes) -> None:
        """Change fields of one card; see Card."""
        device = self._state.device[card]
        for name, value in fields.items():
            getattr(device, name)  # a field that there is not
            setattr(device, name, value.encode() if isinstance(value, str) else value)

    def set_driver(self, version: str) -> None:
        """The version that the library reports."""
        self._state.driver = version.encode()

    def set_record_bytes(self, size: int) -> None:
        """24, or 32 as some 535 drivers wrote them."""
        self._state.record_bytes = size

    def processes(
        self,
        card: int,
        running: Iterable[tuple[int, int]],
        graphics: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Who is on a card: pid and bytes."""
        device = self._state.device[card]
        rows = [(pid, memory, 0) for pid, memory in running]
        rows += [(pid, memory, 1) for pid, memory in graphics]
        for row, (pid, memory, kind) in enumerate(rows):
            device.process[row] = Process(pid, kind, 2**32 - 1, 2**32 - 1, memory)
        device.process_count = len(rows)

    def running(self, card: int) -> list[int]:
        """The pids on a card."""
        device = self._state.device[card]
        return [each.pid for each in device.process[: device.process_count]]

    def samples(self, card: int, percents: Mapping[int, int], at_us: int | None = None) -> None:
        """
        The newest samples of the SM use; they stay until `processes` is called.

        Args:
            card: its number.
            percents: percent by pid, of those on the card first; others get rows after them.
            at_us: when they were measured; None: now.
        """
        device = self._state.device[card]
        places = {each.pid: place for place, each in enumerate(device.process) if each.pid}
        for pid, percent in percents.items():
            row = device.process[places.setdefault(pid, len(places))]
            row.pid, row.sm = pid, percent
            row.sampled_us = time.time_ns() // 1000 if at_us is None else at_us

    def fail(self, function: str, behaviour: int, card: int | None = None) -> None:
        """
        Let a function fail, hang or crash from the next call on.

        Args:
            function: as the library exports it.
            behaviour: an error code of nvml.h, or HANG, CRASH, MISSING, ABORT, OK.
            card: on this one alone; None: always.
        """
        where = self._state if card is None else self._state.device[card]
        where.behaviour[_NUMBER[function]] = behaviour

    def fail_all(self, behaviour: int, card: int) -> None:
        """Let every query of one card fail, its handle included."""
        for name in FUNCTIONS:
            self.fail(name, behaviour, card)

    def heal(self) -> None:
        """No function fails any more; hung calls return."""
        for where in (self._state, *self._state.device):
            for number in range(len(FUNCTIONS)):
                where.behaviour[number] = OK

    def delay(self, function: str, microseconds: int) -> None:
        """Each call of a function takes this much processor time more."""
        self._state.delay_us[_NUMBER[function]] = microseconds

    def xid(self, card: int, code: int) -> None:
        """The driver reports a fault through its event set."""
        self._state.event[self._state.written % _EVENTS] = _Event(card, _XID, code)
        self._state.written += 1

    def calls(self) -> dict[str, int]:
        """How often each function was called, those that were."""
        return {name: n for name, n in zip(FUNCTIONS, self._state.calls, strict=True) if n}

    def reset_calls(self) -> None:
        """Count from zero."""
        ctypes.memset(self._state.calls, 0, ctypes.sizeof(self._state.calls))
        for device in self._state.device:
            device.touched = 0

    def touched(self, card: int) -> int:
        """Calls that named this card since the last reset."""
        return int(self._state.device[card].touched)

    def _reset(self, number: int, *, card: int, slot: int) -> None:
        ctypes.memset(ctypes.byref(self._state.device[number]), 0, ctypes.sizeof(Card))
        device = self._state.device[number]
        device.card, device.slot = card, slot
        self.set(
            number,
            present=1,
            total=24 * GIB,
            reserved=GIB // 4,
            temperature=40,
            slowdown=95,
            shutdown=98,
            margin=47,
            fan=30,
            power_mw=25_000,
            limit_mw=350_000,
            reasons=1,
            graphics_clock=210,
            graphics_clock_max=2100,
            memory_clock=405,
            memory_clock_max=9751,
            pstate=8,
            pcie_generation=1,
            pcie_generation_max=4,
            pcie_width=16,
            pcie_width_max=16,
        )


def _compiled() -> Path:
    """The library, compiled once for each version of its source."""
    header = "".join(f"#define FN_{name} {number}\n" for name, number in _NUMBER.items())
    header += f"#define FUNCTIONS {len(FUNCTIONS)}\n"
    digest = hashlib.sha256(_SOURCE.read_bytes() + header.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"watchdog-gpu-stub-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest}.so"
    if library.exists():
        return library
    if shutil.which("gcc") is None:
        raise RuntimeError("the stub driver needs gcc: sudo apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(dir=folder) as build:
        Path(build, "stub_functions.h").write_text(header)
        built = Path(build, "stub.so")
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", build]
        command += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(built), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the stub driver cannot be compiled:\n{done.stderr}")
        built.replace(library)
    return library
