"""
When the next look is due, how late the last ones were, and what happened to the clocks.

Without a processor, or with its own memory swapped out, the daemon looks late and cannot know
it from what it reads: the clock shows it, and people are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from watchdog_app.base.linux.process import since_boot_s
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.settings import WatchSettings

_LEAST_STEP_S = 2.0  # less is the drift of a clock that is being corrected
_BUSY_SHARE = 0.25  # looking may take this share of a core, however short the interval

LATE_S = 0.25  # less is how machines at work are
_REPORT_FROM_S = 1.0
_WINDOW_S = 60.0
LOOP_LAG = "loop_lag"  # source of the fault


class LoopLag:
    """
    Lateness of the looks, on the monotonic clock.

    `missed` counts looks that were not made since the start: those that fell due while another
    was late.
    """

    def __init__(self) -> None:
        self.missed = 0
        self._worst_s, self._worst_mono_s = 0.0, float("-inf")  # by how much, and when

    def record(self, due_mono_s: float, now_mono_s: float, interval_s: float) -> float:
        """
        Record that a look starts; return by how many seconds it is late.

        Args:
            due_mono_s: when it should have begun; not in the future.
            now_mono_s: now.
            interval_s: between two looks at this rate.
        """
        late_s = max(0.0, now_mono_s - due_mono_s)
        if late_s >= LATE_S:
            self.missed += int(late_s / interval_s)
            if late_s >= self.latest_s(now_mono_s):
                self._worst_s, self._worst_mono_s = late_s, now_mono_s
        return late_s

    def latest_s(self, now_mono_s: float) -> float:
        """By how much the latest look of the last minute was late; 0: none by over 0.25 s."""
        return self._worst_s if now_mono_s - self._worst_mono_s <= _WINDOW_S else 0.0

    def fault(self, now_mono_s: float) -> Fault | None:
        """What people should know: looks of the last minute were late by a second or more."""
        late_s = self.latest_s(now_mono_s)
        if late_s < _REPORT_FROM_S:
            return None
        return Fault(
            LOOP_LAG,
            f"A look at the machine came {format_duration(late_s)} late. "
            "Growth meanwhile was not seen.",
            "Where this repeats, leave the daemon a part of a core: start jobs with nice, or with "
            "fewer threads. Let it lock its memory: LimitMEMLOCK=infinity in its unit.",
        )


class Pace:
    """The times of the looks. Whoever changes something asks here for an earlier one."""

    def __init__(self, settings: WatchSettings) -> None:
        """
        Args:
            settings: those in force; replaced when the configuration is read again.
        """
        self.settings = settings
        self.interval_s = settings.interval_s
        self.next_look_mono_s = 0.0
        self.loop_lag = LoopLag()
        self._began_mono_s = self._ended_mono_s = float("-inf")  # the latest look
        self._due_mono_s: float | None = None  # when the next look should begin; None: the first

    @property
    def is_fresh(self) -> bool:
        """Whether the latest look shows the machine as it is."""
        # From its end: a look that lasts longer than the interval shows the machine as it is, too.
        return time.monotonic() - self._ended_mono_s < self.settings.interval_s

    def started(self) -> float:
        """Record that a look starts now; return that time. The next is due an interval later."""
        began = self._began_mono_s = time.monotonic()
        self.next_look_mono_s = began + self.interval_s
        if self._due_mono_s is not None:
            self.loop_lag.record(min(self._due_mono_s, began), began, self.interval_s)
        return began

    def ended(self, wanted_s: float, computed_s: float) -> None:
        """
        Record that the look has ended, or has failed; schedule the next one.

        Args:
            wanted_s: from its beginning to the next one, as the policy and people want it.
            computed_s: processor time that it took. Not how long it took: without a processor the
                daemon must not look less often.
        """
        fastest_s = max(self.settings.fast_interval_s, computed_s / _BUSY_SHARE)
        self.interval_s = max(fastest_s, wanted_s)
        self._ended_mono_s = time.monotonic()
        # From the beginning of this look, so that the rate holds whatever a look takes.
        self._due_mono_s = self.next_look_mono_s = self._began_mono_s + self.interval_s

    def look_soon(self) -> None:
        """Do not wait for the next look, but do not look more often than allowed."""
        earliest = self._began_mono_s + self.settings.fast_interval_s
        self.next_look_mono_s = min(self.next_look_mono_s, earliest)
        self._bring_due_time_forward()

    def look_now(self) -> None:
        """
        Do not wait at all: a save has ended and the next may be due.

        At the very end every step counts, and a step can be shorter than `fast_interval_s`. How
        often this happens is bounded by how often a training can save.
        """
        self.next_look_mono_s = 0.0
        self._bring_due_time_forward()

    def _bring_due_time_forward(self) -> None:
        # A look that was requested in between is late from its request on only.
        if self._due_mono_s is not None:
            asked = max(self.next_look_mono_s, time.monotonic())
            self._due_mono_s = min(self._due_mono_s, asked)


class Clocks:
    """
    Three clocks that are compared with each other. Arguments: for tests.

    The monotonic clock stands still while a machine sleeps, so that nothing that lives by it sees
    a gap; but a battery has been drained meanwhile, and all else that is no program has moved on.

    In a container that is moved, or a machine that was restored, they may jump in any direction:
    whatever cannot be a sleep is none.

    Source: clock_gettime(2), CLOCK_BOOTTIME.
    """

    def __init__(
        self,
        mono: Callable[[], float] = time.monotonic,
        boot: Callable[[], float] = since_boot_s,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._mono, self._boot, self._wall = mono, boot, wall
        self._last = mono(), boot(), wall()

    def poll(self) -> tuple[float, float]:
        """
        Compare the clocks with the call before.

        Returns:
            Seconds that the machine slept; seconds by which the wall clock was put forward, or back
            where negative. 0: it did not happen.
        """
        before, self._last = self._last, (self._mono(), self._boot(), self._wall())
        mono_s, boot_s, wall_s = (now - then for now, then in zip(self._last, before, strict=True))
        slept_s, set_s = boot_s - mono_s, wall_s - boot_s
        slept_s = slept_s if slept_s >= _LEAST_STEP_S else 0.0
        return slept_s, set_s if abs(set_s) >= _LEAST_STEP_S else 0.0
