"""Facts that several checks need, each computed once by the first caller."""

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
from watchdog_app.doctor import environments, finding, gpu
from watchdog_app.doctor.environments import Environment
from watchdog_app.doctor.finding import Finding
from watchdog_app.doctor.gpu import Driver
from watchdog_app.doctor.machine import Machine, Process, libraries, module_loaded, processes
from watchdog_app.machine.gpu.nvml_driver import Code
from watchdog_app.machine.gpu.pci import DEVICES, NVIDIA, PciGpu, PciGpus
from watchdog_app.machine.sensors.host import HostReader

T = TypeVar("T")

_SWITCH = "0x0680"  # class of NVSwitches
_USE_BYTES = 2 * GIB  # device memory: a CUDA context with cuDNN takes up to 1 GiB


class DaemonAnswer(NamedTuple):
    """What the daemon said about itself, or why it did not answer."""

    status: dict[str, Any]  # empty: no answer
    version: str | None = None
    error: WatchdogError | None = None


class Facts:
    """Facts about one machine. Thread-safe."""

    def __init__(
        self,
        machine: Machine,
        gpu_reader: tuple[str, ...] = gpu.READER,
        report_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Args:
            machine: machine to examine.
            gpu_reader: command line of the process that reads the driver library.
            report_progress: called with a text about the current step.
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
        """Build a finding from an entry of the table, in the words for this machine."""
        return finding.finding(name, *details, **self._words | values)

    def fine(self, name: str, /, *details: str, **values: Any) -> Finding:
        """Build the finding that says that all is well."""
        return finding.fine(name, *details, **self._words | values)

    def daemon(self) -> dict[str, Any]:
        """Return the daemon's status; empty: not running, or no answer."""
        return self.ask_daemon().status

    def settings(self) -> Settings:
        """Return the configuration in force; the defaults if it is invalid."""
        from watchdog_app.config import load

        try:
            return load(None, self.machine.env, warn=lambda _: None)[0]
        except (WatchdogError, OSError):
            return Settings()

    def pci_gpus(self, vendor: str = NVIDIA) -> tuple[PciGpu, ...]:
        """Return a vendor's graphics cards on the PCI bus, independent of the driver."""
        bus = PciGpus((vendor,), self.machine.root.rstrip("/"))
        bus.scan()
        return bus.read()

    @property
    def cards(self) -> list[str]:
        """PCI addresses of NVIDIA graphics cards."""
        return [gpu.address for gpu in self.pci_gpus()]

    @property
    def has_switches(self) -> bool:
        """Whether NVSwitches connect the cards."""
        machine = self.machine
        return any(
            machine.read(DEVICES, address, "vendor") == NVIDIA
            and (machine.read(DEVICES, address, "class") or "").startswith(_SWITCH)
            for address in machine.names(DEVICES)
        )

    @property
    def expects_gpu(self) -> bool:
        """Whether this machine has a usable NVIDIA GPU: on the bus, through WSL or in the chip."""
        here = bool(self.cards) or self.is_wsl_gpu or self.is_tegra
        return here or self.gpu_behind_library

    @property
    def is_wsl_gpu(self) -> bool:
        """
        Whether this is WSL with NVIDIA's Windows driver; /dev/dxg alone may be any vendor's GPU.
        """
        machine = self.machine
        if not machine.exists("/dev/dxg"):
            return False
        stored = machine.names("/usr/lib/wsl/drivers")  # Windows' driver store
        return machine.exists("/usr/lib/wsl/lib/libcuda.so.1") or any(
            name.startswith("nv") and ".inf_" in name for name in stored
        )

    @property
    def gpu_behind_library(self) -> bool:
        """Whether only the driver's library shows a GPU: sandboxes hide the PCI bus."""
        if self.cards or not libraries(self.machine, "libnvidia-ml.so.1"):
            return False
        told = self.driver()
        absent = (None, Code.DRIVER_NOT_LOADED, Code.LIBRARY_NOT_FOUND, Code.GPU_NOT_FOUND)
        if told.hung_in or told.crashed_in:
            return True
        return bool(told.cards) if told.answers else told.code not in absent

    @property
    def can_ask_driver(self) -> bool:
        """Whether the driver can answer about its cards without waking them."""
        machine = self.machine
        loaded = module_loaded(machine) or not self.cards
        has_library = bool(libraries(machine, "libnvidia-ml.so.1"))
        return loaded and has_library and not self.asleep and self.expects_gpu

    @property
    def is_tegra(self) -> bool:
        """Whether this is a Jetson, whose GPU is not a PCI device."""
        machine = self.machine
        compatible = machine.read("/proc/device-tree/compatible") or ""
        return machine.exists("/etc/nv_tegra_release") or "nvidia,tegra" in compatible

    @property
    def asleep(self) -> bool:
        """Whether a card is suspended, as in laptops: a call to the driver would wake it."""
        return any(gpu.asleep for gpu in self.pci_gpus())

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
            # Shims and links may lead to the same environment.
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
        """Return whether a small computation cannot take memory that a training needs."""
        if not self.expects_gpu:
            return True  # no NVIDIA GPU is in use here; another vendor's may be
        free = [card.get("memory_free_bytes") for card in self.driver().usable]
        return all(one is None or one >= _USE_BYTES for one in free)


def _compute_once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that computes a value at its first call, while other callers wait."""
    lock, cached = threading.Lock(), functools.cache(make)

    def ask() -> T:
        with lock:
            return cached()

    return ask
