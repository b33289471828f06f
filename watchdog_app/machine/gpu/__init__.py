"""GPUs, read by a child process: a driver that hangs or crashes takes nobody along."""

from __future__ import annotations

from watchdog_app.machine.gpu import backend
from watchdog_app.machine.gpu.backend import GpuSample

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.gpu.monitor import GpuMonitor

_DRIVER_SCAN_EVERY_S = 300.0


class Gpus:
    """
    The GPUs of this machine. Not for several threads.

    `GpuMonitor` is loaded once there is a driver: 0.4 MB that a daemon without GPUs does without. A
    driver that is loaded while the daemon runs is noticed at the next look, a library that comes by
    itself within five minutes.

    Args:
        root: stands before /sys, /dev and the library's folders.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._existing_paths: tuple[bool, ...] | None = None
        self._scanned_mono_s = 0.0
        self.monitor: GpuMonitor | None = None

    def read(self, now_mono_s: float, busy: bool = False) -> GpuSample:
        """
        The GPUs as last read, each second while `busy`; never waits for a driver.

        Args:
            now_mono_s: of the sample.
            busy: somebody waits for figures, whoever is on the GPUs.
        """
        if self.monitor is None:
            if not self._find_driver(now_mono_s):
                return _NO_GPUS
            from watchdog_app.machine.gpu.monitor import GpuMonitor

            self.monitor = GpuMonitor(root=self._root)
        return self.monitor.read(now_mono_s, busy)

    def close(self) -> None:
        """End the reader, where one runs."""
        if self.monitor is not None:
            self.monitor.close()

    def _find_driver(self, now_mono_s: float) -> bool:
        paths = backend.existing_driver_paths(self._root)
        if (
            paths == self._existing_paths
            and now_mono_s - self._scanned_mono_s < _DRIVER_SCAN_EVERY_S
        ):
            return False
        self._existing_paths, self._scanned_mono_s = paths, now_mono_s
        return backend.has_driver(self._root)


_NO_GPUS = GpuSample()
