"""GPUs, read by a child process: a driver that hangs or crashes takes nobody along."""

from __future__ import annotations

from watchdog_app.machine.gpu import backend
from watchdog_app.machine.gpu.backend import GpuLook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.gpu.monitor import GpuMonitor

_LOOK_FOR_DRIVER_S = 300.0


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
        self._signs: tuple[bool, ...] | None = None
        self._looked_mono_s = 0.0
        self.monitor: GpuMonitor | None = None

    def read(self, now_mono_s: float, busy: bool = False) -> GpuLook:
        """
        The GPUs as last read, each second while `busy`; never waits for a driver.

        Args:
            now_mono_s: of the sample.
            busy: somebody waits for figures, whoever is on the GPUs.
        """
        if self.monitor is None:
            if not self._driver_appears(now_mono_s):
                return _NONE
            from watchdog_app.machine.gpu.monitor import GpuMonitor

            self.monitor = GpuMonitor(root=self._root)
        return self.monitor.read(now_mono_s, busy)

    def close(self) -> None:
        """End the reader, where one runs."""
        if self.monitor is not None:
            self.monitor.close()

    def _driver_appears(self, now_mono_s: float) -> bool:
        signs = backend.signs(self._root)
        if signs == self._signs and now_mono_s - self._looked_mono_s < _LOOK_FOR_DRIVER_S:
            return False
        self._signs, self._looked_mono_s = signs, now_mono_s
        return backend.present(self._root)


_NONE = GpuLook()
