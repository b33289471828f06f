"""
How punctual the looks are, and what held them up.

Without a processor, or with its own memory swapped out, the daemon looks late and cannot know
it from what it reads: it has to be told by the clock, and has to tell people.

The kernel says what held a look up: for how long the thread stood ready without a processor, for
how long it computed, and whether its memory had to be read from a disk.

Sources: /proc/PID/schedstat (sched-stats in the kernel's documentation: time on a processor, time
waiting for one, in ns), getrusage(2) for faults that had to read from a disk.
"""

from __future__ import annotations

import resource
import time
from collections import deque
from typing import NamedTuple

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import KeptFile
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.machine import Fault

LATE_S = 0.25  # less is how machines at work are
_TELL_S = 1.0
_OVER_S = 60.0
_MOST = 600  # late looks remembered
SOURCE = "loop_lag"


class _Spent(NamedTuple):
    """Of this thread, so far."""

    waited_s: float  # ready, without a processor
    computed_s: float
    pages: float  # that had to be read from a disk


class LoopLag:
    """
    Lateness of the looks, on monotonic clocks. Call it from the thread that looks, and no other.

    `missed` counts looks that were not made since the start: those that fell due while another
    was late.

    Args:
        waits: the kernel's file of this thread.
    """

    def __init__(self, waits: str = "/proc/thread-self/schedstat") -> None:
        self.missed = 0
        self._late: deque[tuple[float, float]] = deque(maxlen=_MOST)  # when, by how much
        self._waits = KeptFile(waits)
        self._before = self._spent()
        self._told: Fault | None = None
        self._told_until_mono_s = 0.0
        self._told_s = 0.0

    def begins(self, due_mono_s: float, now_mono_s: float, interval_s: float) -> float:
        """
        A look begins now that was due at `due_mono_s`; by how many seconds it is late.

        Args:
            due_mono_s: when it should have begun; not in the future.
            now_mono_s: now.
            interval_s: between two looks at this rate.
        """
        spent = self._spent()
        before, self._before = self._before, spent
        late_s = max(0.0, now_mono_s - due_mono_s)
        if late_s < LATE_S:
            return late_s
        gone = _Spent(*(after - then for after, then in zip(spent, before, strict=True)))
        self._late.append((now_mono_s, late_s))
        self.missed += int(late_s / interval_s)
        if late_s >= _TELL_S:
            over = now_mono_s >= self._told_until_mono_s
            self._told_until_mono_s = now_mono_s + _OVER_S
            if over or late_s > self._told_s:  # told anew where it got worse, not at every look
                self._told_s = late_s
                self._told = _fault(late_s, gone)
        return late_s

    def latest_s(self, now_mono_s: float) -> float:
        """By how much the latest look of the last minute was late; 0: none by over 0.25 s."""
        late = self._late
        while late and now_mono_s - late[0][0] > _OVER_S:
            late.popleft()
        return max((by_s for _, by_s in late), default=0.0)

    def fault(self, now_mono_s: float) -> Fault | None:
        """What people should know: looks of the last minute were late by a second or more."""
        return self._told if now_mono_s < self._told_until_mono_s else None

    def close(self) -> None:
        """Give the descriptor back."""
        self._waits.close()

    def _spent(self) -> _Spent:
        waited_s = 0.0
        try:
            waited_s = int(self._waits.read(64).split()[1]) / 1e9
        except (SensorError, ValueError, IndexError):
            pass  # a kernel without these figures, or no Linux
        usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
        return _Spent(waited_s, time.thread_time(), usage.ru_majflt)


def _fault(late_s: float, gone: _Spent) -> Fault:
    """What held a look up, and what to do about it."""
    waited_s, computed_s = gone.waited_s, gone.computed_s
    if waited_s >= max(computed_s, 0.5 * late_s - computed_s):
        why = f"the daemon waited {format_duration(waited_s)} for a processor"
        remedy = "Leave it a part of a core: start jobs with nice, or with fewer threads."
    elif computed_s >= 0.5 * late_s:
        why = "the daemon was busy with other work"
        remedy = "Please report this with the daemon's log."
    elif gone.pages:
        why = "its own memory had to be read back from a disk first"
        remedy = "Let it lock its memory: LimitMEMLOCK=infinity in its unit."
    else:
        why = "the daemon or the whole machine stood still"
        remedy = "Nothing, if it was stopped or the machine slept."
    return Fault(
        SOURCE,
        f"A look at the machine came {format_duration(late_s)} late: {why}. Growth meanwhile was "
        "not seen.",
        remedy,
    )
