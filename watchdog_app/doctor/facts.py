"""What several checks need to know, found out once, by whoever asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from watchdog_app.base import paths
from watchdog_app.base.errors import SensorError, WatchdogError
from watchdog_app.base.text.quantities import GIB
from watchdog_app.core.model.machine import HostMemory
from watchdog_app.doctor import driver_files, environments, gpu
from watchdog_app.doctor.environments import Environment
from watchdog_app.doctor.gpu import Driver
from watchdog_app.doctor.machine import Machine, Process, processes
from watchdog_app.machine.gpu.nvml_driver import Code
from watchdog_app.machine.sensors.host import HostReader

T = TypeVar("T")

_FIRST_SWITCH = 0x1000
_USE_BYTES = 2 * GIB  # device memory: a CUDA context with cuDNN takes up to 1 GiB


class _Once(Generic[T]):
    """A value that is computed by the first who asks; an error is raised for everybody."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None
        self._error: Exception | None = None
        self._done = False

    def __call__(self) -> T:
        with self._lock:
            if not self._done:
                try:
                    self._value = self._make()
                except Exception as error:
                    self._error = error
                self._done = True
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Facts:
    """Facts about one machine; safe to ask from several threads."""

    def __init__(
        self,
        machine: Machine,
        gpu_reader: tuple[str, ...] = gpu.READER,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            machine: where to look.
            gpu_reader: the program that asks the driver library.
            tell: is told what is being waited for.
        """
        self.machine = machine
        self._tell = tell
        self._gpu_reader = gpu_reader
        self.driver: Callable[[], Driver] = _Once(self._ask_driver)
        self.processes: Callable[[], list[Process]] = _Once(lambda: processes(machine))
        self.memory: Callable[[], HostMemory | None] = _Once(self._read_memory)
        self.daemon: Callable[[], dict[str, Any]] = _Once(self._ask_daemon)
        self.environments: Callable[[], list[Environment]] = _Once(self._look_at_environments)

    @property
    def cards(self) -> list[str]:
        """PCI addresses of NVIDIA's graphics cards, whatever the driver says."""
        return self._pci("0x03")

    @property
    def switches(self) -> list[str]:
        """PCI addresses of NVSwitches."""
        # Network adapters of NVIDIA's old mainboard chips have the same class, and low numbers.
        folder = "/sys/bus/pci/devices"
        return [
            address
            for address in self._pci("0x0680")
            if (self.machine.number(folder, address, "device") or _FIRST_SWITCH) >= _FIRST_SWITCH
        ]

    def _pci(self, kind: str) -> list[str]:
        folder = "/sys/bus/pci/devices"
        found = []
        for address in self.machine.names(folder):
            vendor = self.machine.read(folder, address, "vendor")
            class_ = self.machine.read(folder, address, "class") or ""
            if vendor == "0x10de" and class_.startswith(kind):
                found.append(address)
        return found

    @property
    def expects_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU to be used here, on the bus, through WSL or in a chip."""
        here = bool(self.cards) or self.lent_by_windows or self.is_tegra
        return here or self.gpu_behind_library

    @property
    def lent_by_windows(self) -> bool:
        """WSL with NVIDIA's driver in Windows; /dev/dxg alone can be a GPU of any maker."""
        machine = self.machine
        if not machine.exists("/dev/dxg"):
            return False
        stored = machine.names("/usr/lib/wsl/drivers")  # Windows' driver store
        return machine.exists("/usr/lib/wsl/lib/libcuda.so.1") or any(
            name.startswith("nv") and ".inf_" in name for name in stored
        )

    @property
    def gpu_behind_library(self) -> bool:
        """A GPU that only the driver's library shows: sandboxes hide the PCI bus."""
        if self.cards or not driver_files.libraries(self.machine, "libnvidia-ml.so.1"):
            return False
        told = self.driver()
        absent = (None, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.GPU_NOT_FOUND)
        if told.hung_in or told.crashed_in:
            return True
        return bool(told.cards) if told.answers else told.code not in absent

    @property
    def is_tegra(self) -> bool:
        """A Jetson: its GPU is no PCI device."""
        machine = self.machine
        compatible = machine.read("/proc/device-tree/compatible") or ""
        return machine.exists("/etc/nv_tegra_release") or "nvidia,tegra" in compatible

    @property
    def asleep(self) -> bool:
        """Whether a card is powered down (a laptop's): asking the driver would wake it."""
        return any(
            self.machine.read("/sys/bus/pci/devices", card, "power/runtime_status") == "suspended"
            for card in self.cards
        )

    def _ask_driver(self) -> Driver:
        if self.asleep:
            return Driver(None, "the GPU is asleep to save power")
        self._tell("asking the driver")
        return gpu.ask(self.machine, self._gpu_reader)

    def _ask_daemon(self) -> dict[str, Any]:
        """Its status; empty: it does not run, or does not answer (`watchdogs` says why)."""
        from watchdog_app.client.client import Client

        try:
            with Client.connect(paths.socket_path(self.machine.env), timeout_s=5.0) as daemon:
                status = daemon.call("status")
        except WatchdogError:
            return {}
        return status if isinstance(status, dict) else {}

    def _read_memory(self) -> HostMemory | None:
        machine = self.machine
        reader = HostReader(
            machine.path("/proc"), machine.path("/dev", "shm"), machine.path("/sys")
        )
        try:
            return reader.read()
        except SensorError:
            return None
        finally:
            reader.close()

    def _look_at_environments(self) -> list[Environment]:
        machine = self.machine
        found: dict[object, Environment] = {}
        for python, source in environments.find(machine, self.processes()):
            self._tell(f"looking at {python}")
            environment = environments.look(machine, python, source)
            # Shims and links lead to the same environment.
            key = environment.installed.values.get("prefix") or python
            found.setdefault(key, environment)
        if machine.fast:
            return list(found.values())
        if self.expects_gpu and self.driver().hangs:
            reason = "the driver does not answer, and an import would hang with it"
            return [environments.not_imported(one, reason) for one in found.values()]
        memory = self.memory()
        available = memory.available_bytes if memory else None
        use_gpu = self._may_use_gpu()
        return [
            environments.import_frameworks(machine, one, available, use_gpu, self._tell)
            for one in found.values()
        ]

    def _may_use_gpu(self) -> bool:
        """Whether a small computation cannot take memory that a training needs."""
        if not self.expects_gpu:
            return True  # nothing of ours is there to be disturbed; another maker's may be
        driver = self.driver()
        free = [card.get("memory_free_bytes") for card in driver.usable]
        return all(one is None or one >= _USE_BYTES for one in free)
