"""GPUs, read by child processes, so that a hung or crashed driver cannot harm the daemon."""

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

    Each vendor has a monitor and a reader process of its own, so that one vendor's hung driver
    delays no other. `GpuMonitor` is imported only once a driver exists. That saves 0.4 MB in a
    daemon without GPUs. A driver that is installed while the daemon runs is found within a minute.

    Args:
        root: prefix of /sys, /dev and the library's folders; of /proc for the readers.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._next_scan_mono_s = float("-inf")
        self.monitors: dict[str, GpuMonitor] = {}  # by row of BACKENDS

    def read(self, now_mono_s: float, busy: bool = False) -> GpuSample:
        """
        Return the GPUs as last read, each second while `busy`; never waits for a driver.

        Args:
            now_mono_s: of the sample.
            busy: a client waits for figures, even if no process uses the GPUs.
        """
        if now_mono_s >= self._next_scan_mono_s:
            self._next_scan_mono_s = now_mono_s + _DRIVER_SCAN_EVERY_S
            self._find_drivers()
        samples = [each.read(now_mono_s, busy) for each in self.monitors.values()]
        if len(samples) < 2:
            return samples[0] if samples else _NO_GPUS
        gpus = [gpu for each in samples for gpu in each.gpus]
        times = [each.read_mono_s for each in samples if each.read_mono_s is not None]
        return GpuSample(
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
            # The readers are asked at the same times, unless one vendor's GPUs are idle.
            read_mono_s=max(times, default=None),
            driver_version=next(filter(None, (each.driver_version for each in samples)), None),
            faults=tuple(fault for each in samples for fault in each.faults),
            awaited=any(each.awaited for each in samples),
        )

    def close(self) -> None:
        """End the readers, if any run."""
        for monitor in self.monitors.values():
            monitor.close()

    def _find_drivers(self) -> None:
        for row in BACKENDS:
            if row.name in self.monitors or row.find_library(os.environ, self._root) is None:
                continue
            from watchdog_app.machine.gpu.monitor import GpuMonitor

            proc = f"{self._root}/proc"
            self.monitors[row.name] = GpuMonitor(root=self._root, proc=proc, backend=row)


_NO_GPUS = GpuSample()
