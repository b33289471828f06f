"""Clocks that Python's `time` does not offer everywhere."""

from __future__ import annotations

import time


def since_boot_s() -> float:
    """
    Return the seconds since the machine was started, sleep included.

    Systems without CLOCK_BOOTTIME leave the sleep out. Source: clock_gettime(2).
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
