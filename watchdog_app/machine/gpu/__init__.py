"""GPUs, read by a child process, so that a hung or crashed driver cannot harm the daemon."""

from __future__ import annotations

import os

from watchdog_app.machine.gpu.backend import BACKENDS, GpuSample

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.gpu.monitor import GpuMonitor

_DRIVER_SCAN_EVERY_S = 60.0


class Gpus:
    """
    The GPUs of this machine. Not thread-safe.

    `GpuMonitor` is imported only once a driver's library exists. That saves 0.4 MB in a daemon
    without GPUs. A driver that is installed while the daemon runs is found within a minute.

    Args:
        root: prefix of /sys, /dev and the library's folders.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._next_scan_mono_s = float("-inf")
        self.monitor: GpuMonitor | None = None

    def read(self, now_mono_s: float, busy: bool = False) -> GpuSample:
        """
        Return the GPUs as last read, each second while `busy`; never waits for a driver.

        Args:
            now_mono_s: of the sample.
            busy: a client waits for figures, even if no process uses the GPUs.
        """
        if self.monitor is None:
            if not self._find_driver(now_mono_s):
                return _NO_GPUS
            from watchdog_app.machine.gpu.monitor import GpuMonitor

            self.monitor = GpuMonitor(root=self._root)
        return self.monitor.read(now_mono_s, busy)

    def close(self) -> None:
        """End the reader, if one runs."""
        if self.monitor is not None:
            self.monitor.close()

    def _find_driver(self, now_mono_s: float) -> bool:
        if now_mono_s < self._next_scan_mono_s:
            return False
        self._next_scan_mono_s = now_mono_s + _DRIVER_SCAN_EVERY_S
        return any(row.find_library(os.environ, self._root) is not None for row in BACKENDS)


_NO_GPUS = GpuSample()
