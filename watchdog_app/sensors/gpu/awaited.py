"""
Cards of a machine that mostly has none: what reads them is loaded once there is a driver.

It is 0.4 MB that a daemon without cards does without. A driver that is loaded while the daemon runs
is noticed at the next look, a library that comes by itself within five minutes.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from watchdog_app.core.model.hardware import Gpu
from watchdog_app.core.model.machine import Fault
from watchdog_app.sensors.gpu import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.sensors.gpu.watch import GpuLook, GpuWatch

_LOOK_FOR_LIBRARY_S = 300.0


class NoCards(NamedTuple):
    """What a look finds where no driver is."""

    gpus: tuple[Gpu, ...] = ()
    read_mono_s: float | None = None
    driver_version: str | None = None
    faults: tuple[Fault, ...] = ()


class AwaitedCards:
    """
    `GpuWatch` from the moment on at which there is a driver library. Not for several threads.

    Args:
        root: stands before /sys, /dev and the library's folders.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._watch: GpuWatch | None = None
        self._signs: tuple[bool, ...] | None = None
        self._looked_mono_s = 0.0

    def read(self, now_mono_s: float, busy: bool = False) -> GpuLook | NoCards:
        """The cards as `GpuWatch` says; nothing while there is no driver."""
        if self._watch is None:
            if not self._may_be_there(now_mono_s):
                return _NONE
            from watchdog_app.sensors.gpu.watch import GpuWatch

            self._watch = GpuWatch(root=self._root)
        return self._watch.read(now_mono_s, busy)

    def close(self) -> None:
        """End the reader, where one runs."""
        if self._watch is not None:
            self._watch.close()

    def _may_be_there(self, now_mono_s: float) -> bool:
        """Whether a driver library is installed: looked for now and then, and with each sign."""
        signs = library.signs(self._root)
        if signs == self._signs and now_mono_s - self._looked_mono_s < _LOOK_FOR_LIBRARY_S:
            return False
        self._signs, self._looked_mono_s = signs, now_mono_s
        return library.find(os.environ, self._root) is not None


_NONE = NoCards()
