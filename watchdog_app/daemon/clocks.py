"""
What the clocks say between two looks: whether the machine slept, and whether somebody set it.

The monotonic clock stands still while a machine sleeps, so that nothing that lives by it sees a
gap; but a battery has been drained meanwhile, and all else that is not a program has moved on.

Source: clock_gettime(2), CLOCK_BOOTTIME.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from watchdog_app.base.linux.process import since_boot_s

_LEAST_S = 2.0  # less is the drift of a clock that is being corrected


class Passed(NamedTuple):
    """What happened to the clocks since the look before; 0: nothing."""

    slept_s: float
    set_s: float  # the wall clock was put forward by so much, or back where it is negative


class Clocks:
    """
    Three clocks that are compared with each other. Arguments: for tests.

    In a container that is moved, or a machine that was restored, they may jump in any direction:
    whatever cannot be a sleep is none.
    """

    def __init__(
        self,
        mono: Callable[[], float] = time.monotonic,
        boot: Callable[[], float] = since_boot_s,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._mono, self._boot, self._wall = mono, boot, wall
        self._last = mono(), boot(), wall()

    def look(self) -> Passed:
        """What happened since the call before."""
        before, self._last = self._last, (self._mono(), self._boot(), self._wall())
        mono_s, boot_s, wall_s = (now - then for now, then in zip(self._last, before, strict=True))
        slept_s, set_s = boot_s - mono_s, wall_s - boot_s
        return Passed(
            slept_s if slept_s >= _LEAST_S else 0.0, set_s if abs(set_s) >= _LEAST_S else 0.0
        )
