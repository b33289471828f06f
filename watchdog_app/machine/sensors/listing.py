"""
When all processes are listed anew, and how much of a look goes into those that are new.

Listing 300 processes costs 0.1 ms, a look at the pid that was given out last 1 us: so they are
listed when somebody has begun, and otherwise seldom.
"""

from __future__ import annotations

import os
import time
from array import array
from operator import le

from watchdog_app.machine.sensors.newcomers import Newcomers

_EVERY_S = 5.0
# Who has ended is not missed, and a Python that begins does not wait for it.
_AT_REST_S = 60.0
_SELDOM_S = 300.0  # ... where nobody has begun and stayed
_NEW_S = 0.03  # of a processor, for the newcomers of one look; some 50 Pythons


class Listing:
    """
    The pace at which all processes are listed.

    Args:
        newcomers: what tells whether any process has begun.
    """

    def __init__(self, newcomers: Newcomers) -> None:
        self._newcomers = newcomers
        self._listed_mono_s: float | None = None
        self._spent_until_s = float("inf")
        self._first = True

    def due(self, now_mono_s: float, *, at_rest: bool) -> bool:
        """Whether a process may have begun since the last listing, or it is overdue."""
        # At rest glances have asked whoever began.
        glanced = at_rest and not self._newcomers.found
        begun = self._newcomers.begun()
        listed_s = self._listed_mono_s
        if listed_s is not None and (begun is False or (begun and glanced)):
            every_s = _EVERY_S
            if glanced:
                every_s = _AT_REST_S if self._newcomers.stayed else _SELDOM_S
            if now_mono_s - listed_s < every_s:
                return False
        self._newcomers.listed()
        self._listed_mono_s = now_mono_s
        return True

    def listed(self) -> None:
        """All are listed now; from here on the time for the newcomers counts."""
        # The first listing takes what it takes: there is nothing to miss yet.
        spend_s = float("inf") if self._first else _NEW_S
        self._first = False
        self._spent_until_s = time.thread_time() + spend_s

    def spent(self, *, waited: bool = False) -> bool:
        """
        Whether the other newcomers have to wait for the next look.

        Args:
            waited: this look has waited long enough for those before them.
        """
        if not waited and time.thread_time() <= self._spent_until_s:
            return False
        self._listed_mono_s = None
        return True


def pids(proc: str) -> array[int]:
    """
    All processes that are there, the lowest first.

    Read one by one: a list of 5,000 names would stay in our memory as a hole of its size.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(proc) as entries:
        found = array("i")
        for each in entries:
            if each.name.isascii() and each.name.isdigit():
                found.append(int(each.name))
    # The kernel lists them so; another file system (a copy, an emulation) need not.
    return found if all(map(le, found, found[1:])) else array("i", sorted(found))
