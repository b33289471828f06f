"""
How often a training may publish itself: half a percent of its time goes into that.

A table is made as often as its cost allows. Where each step is told from a table (`increments`),
which costs a hundredth, tables are rare, and what a step may take goes into that. What was not
used may be used a little later.

Where the watcher refuses no jump (`watchdog exec --no-refuse`) every step may be the one that
counts, and telling them may cost two percent.
"""

from __future__ import annotations

import math
import time

_SHARE = 0.004  # of the time may go into tables
_CREDIT_S = 1.0
_LASTING_S = 2.0  # a table that steps are told from
_SHARE_ADDED = 0.005  # into telling steps from one
_SHARE_EAGER = 0.02
_CREDIT_ADDED_S = 0.5
_MEASURED = 16  # one of so many
_FIRST = 4  # and these, as the very first is dearer


class Budget:
    """Of one training. Seconds by `time.perf_counter`; costs by this thread's processor time."""

    def __init__(self) -> None:
        self.eager = False  # steps may be told for more
        self._next_s = 0.0
        self._allowed_s = 0.0
        self._next_add_s = 0.0
        self._adds = 0
        self._add_cost_s = math.inf

    @property
    def table_due(self) -> bool:
        """Whether a table is made at this boundary."""
        return time.perf_counter() >= self._next_s

    def table_made(self, cost_s: float, *, lasts: bool) -> None:
        """
        A table has been made.

        Args:
            cost_s: that counts.
            lasts: later steps are told from it.
        """
        now = time.perf_counter()
        self._allowed_s = max(self._allowed_s, now - _CREDIT_S) + cost_s / _SHARE
        self._next_s = max(self._allowed_s, now + _LASTING_S) if lasts else self._allowed_s

    def lost(self) -> None:
        """Steps can be told from the last table no more: another as soon as that is allowed."""
        self._next_s = self._allowed_s

    @property
    def add_due(self) -> bool:
        """Whether `add` would allow a step to be told."""
        return time.perf_counter() >= self._next_add_s

    def charge(self, cost_s: float) -> None:
        """What telling a step has cost beside that."""
        self._next_add_s += cost_s / (_SHARE_EAGER if self.eager else _SHARE_ADDED)

    def add(self) -> float | None:
        """
        A step is to be told from the last table; None where that would cost too much.

        Returns:
            What `added` is to be given.
        """
        now = time.perf_counter()
        if now < self._next_add_s:
            return None
        self._next_add_s = max(self._next_add_s, now - _CREDIT_ADDED_S)
        self._adds += 1
        measured = self._adds <= _FIRST or self._adds % _MEASURED == 1
        return time.thread_time() if measured else 0.0

    def added(self, began_s: float) -> None:
        """It has been told."""
        if began_s:
            # The least that it took: what else the machine does makes it dearer.
            self._add_cost_s = min(self._add_cost_s, time.thread_time() - began_s)
        self.charge(self._add_cost_s)
