"""What several checks need to know, found out once, by whoever asks first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from watchdog_app.base import paths
from watchdog_app.base.errors import SensorError, WatchdogError
from watchdog_app.base.text.quantities import GIB
from watchdog_app.core.model.machine import HostMemory
from watchdog_app.core.model.settings import Settings
from watchdog_app.doctor import driver_files, environments, finding, gpu
from watchdog_app.doctor.environments import Environment
from watchdog_app.doctor.finding import Finding
from watchdog_app.doctor.gpu import Driver
from watchdog_app.doctor.machine import Machine, Process, processes
from watchdog_app.machine.gpu.nvml_driver import Code
from watchdog_app.machine.sensors.host import HostReader

T = TypeVar("T")

_NVIDIA, _AMD = "0x10de", "0x1002"
_GRAPHICS, _SWITCH = "0x03", "0x0680"  # classes of PCI devices
_FIRST_SWITCH = 0x1000
_USE_BYTES = 2 * GIB  # device memory: a CUDA context with cuDNN takes up to 1 GiB


class DaemonAnswer(NamedTuple):
    """What the daemon said of itself, or why it did not."""

    status: dict[str, Any]  # empty: no answer
    version: str | None = None
    error: WatchdogError | None = None


class Facts:
    """Facts about one machine; safe to ask from several threads."""

    def __init__(
        self,
        machine: Machine,
        gpu_reader: tuple[str, ...] = gpu.READER,
        report_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            machine: where to look.
            gpu_reader: the program that asks the driver library.
            report_progress: is told what is being waited for.
        """
        self.machine = machine
        self._report_progress = report_progress
        self._gpu_reader = gpu_reader
        self.driver: Callable[[], Driver] = _compute_once(self._ask_driver)
        self.processes: Callable[[], list[Process]] = _compute_once(lambda: processes(machine))
        self.memory: Callable[[], HostMemory | None] = _compute_once(self._read_memory)
        self.ask_daemon: Callable[[], DaemonAnswer] = _compute_once(self._ask_daemon)
        self.environments: Callable[[], list[Environment]] = _compute_once(self._read_environments)
        self._words = {"places": machine.places(), "container": machine.container or ""}

    def finding(self, name: str, /, *details: str, **values: Any) -> Finding:
        """The finding of an entry of the table, in the words for this machine."""
        return finding.finding(name, *details, **self._words | values)

    def fine(self, name: str, /, *details: str, **values: Any) -> Finding:
        """Nothing to do: what the entry says where all is well."""
        return finding.fine(name, *details, **self._words | values)

    def daemon(self) -> dict[str, Any]:
        """The daemon's status; empty: it does not run, or does not answer."""
        return self.ask_daemon().status

    def settings(self) -> Settings:
        """The configuration in force; the defaults where it is not good."""
        from watchdog_app.config import load

        try:
            return load(None, self.machine.env, warn=lambda _: None)[0]
        except (WatchdogError, OSError):
            return Settings()

    @property
    def cards(self) -> list[str]:
        """PCI addresses of NVIDIA's graphics cards, whatever the driver says."""
        return self._pci(_NVIDIA, _GRAPHICS)

    @property
    def amd_cards(self) -> list[str]:
        """PCI addresses of AMD's graphics cards."""
        return self._pci(_AMD, _GRAPHICS)

    @property
    def switches(self) -> list[str]:
        """PCI addresses of NVSwitches."""
        # Network adapters of NVIDIA's old mainboard chips have the same class, and low numbers.
        folder = "/sys/bus/pci/devices"
        return [
            address
            for address in self._pci(_NVIDIA, _SWITCH)
            if (self.machine.number(folder, address, "device") or _FIRST_SWITCH) >= _FIRST_SWITCH
        ]

    def _pci(self, vendor: str, kind: str) -> list[str]:
        folder = "/sys/bus/pci/devices"
        return [
            address
            for address in self.machine.names(folder)
            if self.machine.read(folder, address, "vendor") == vendor
            and (self.machine.read(folder, address, "class") or "").startswith(kind)
        ]

    @property
    def expects_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU to be used here, on the bus, through WSL or in a chip."""
        here = bool(self.cards) or self.is_wsl_gpu or self.is_tegra
        return here or self.gpu_behind_library

    @property
    def is_wsl_gpu(self) -> bool:
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
    def can_ask_driver(self) -> bool:
        """Whether the driver would answer about its cards without being woken."""
        machine = self.machine
        loaded = driver_files.module_loaded(machine) or not self.cards
        has_library = bool(driver_files.libraries(machine, "libnvidia-ml.so.1"))
        return loaded and has_library and not self.asleep and self.expects_gpu

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
        self._report_progress("asking the driver")
        return gpu.ask(self.machine, self._gpu_reader)

    def _ask_daemon(self) -> DaemonAnswer:
        from watchdog_app.client.client import Client

        try:
            with Client.connect(paths.socket_path(self.machine.env), timeout_s=5.0) as daemon:
                status = daemon.call("status")
                return DaemonAnswer(
                    status if isinstance(status, dict) else {}, daemon.daemon_version
                )
        except WatchdogError as error:
            return DaemonAnswer({}, error=error)

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

    def _read_environments(self) -> list[Environment]:
        machine = self.machine
        found: dict[object, Environment] = {}
        for python, source in environments.find(machine, self.processes()):
            self._report_progress(f"looking at {python}")
            environment = environments.read_installed(machine, python, source)
            # Shims and links lead to the same environment.
            key = environment.installed.values.get("prefix") or python
            found.setdefault(key, environment)
        if machine.fast:
            return list(found.values())
        memory = self.memory()
        available = memory.available_bytes if memory else None
        hangs = self.expects_gpu and self.driver().hangs
        use_gpu = not hangs and self._may_use_gpu()
        return [
            environments.import_frameworks(
                machine,
                one,
                available,
                driver_hangs=hangs,
                use_gpu=use_gpu,
                report_progress=self._report_progress,
            )
            for one in found.values()
        ]

    def _may_use_gpu(self) -> bool:
        """Whether a small computation cannot take memory that a training needs."""
        if not self.expects_gpu:
            return True  # nothing of ours is there to be disturbed; another maker's may be
        free = [card.get("memory_free_bytes") for card in self.driver().usable]
        return all(one is None or one >= _USE_BYTES for one in free)


def _compute_once(make: Callable[[], T]) -> Callable[[], T]:
    """A value that the first who asks computes, while the others wait."""
    lock, cached = threading.Lock(), functools.cache(make)

    def ask() -> T:
        with lock:
            return cached()

    return ask
