"""
Times and lateness of the samples, and changes of the clocks.

Without CPU time, or with its memory swapped out, the daemon samples late. The readings do not show
that, but the clock does, and the daemon reports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from watchdog_app.base.linux.process import since_boot_s
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.settings import WatchSettings

_LEAST_STEP_S = 2.0  # a smaller step is the drift of a clock that is being adjusted
_BUSY_SHARE = 0.25  # share of a core that sampling may take, however short the interval

LATE_S = 0.25  # less is normal on a busy machine
_REPORT_FROM_S = 1.0
_WINDOW_S = 60.0
LOOP_LAG = "loop_lag"  # source of the fault


class LoopLag:
    """
    Lateness of the samples, on the monotonic clock.

    `missed` counts samples omitted since the start, because they were due while another was late.
    """

    def __init__(self) -> None:
        self.missed = 0
        self._worst_s, self._worst_mono_s = 0.0, float("-inf")  # the worst lateness and its time

    def record(self, due_mono_s: float, now_mono_s: float, interval_s: float) -> None:
        """
        Record the start of a sample.

        Args:
            due_mono_s: the scheduled start; not in the future.
            now_mono_s: the current time.
            interval_s: the present interval between two samples.
        """
        late_s = max(0.0, now_mono_s - due_mono_s)
        if late_s >= LATE_S:
            self.missed += int(late_s / interval_s)
            if late_s >= self.latest_s(now_mono_s):
                self._worst_s, self._worst_mono_s = late_s, now_mono_s

    def latest_s(self, now_mono_s: float) -> float:
        """The worst lateness of the last minute in seconds; 0: none above 0.25 s."""
        return self._worst_s if now_mono_s - self._worst_mono_s <= _WINDOW_S else 0.0

    def fault(self, now_mono_s: float) -> Fault | None:
        """A fault if a sample of the last minute was late by a second or more; else None."""
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
    """The times of the samples. Other parts ask here for an earlier one."""

    def __init__(self, settings: WatchSettings) -> None:
        """
        Args:
            settings: the settings in force; replaced at a reload.
        """
        self.settings = settings
        self.interval_s = settings.interval_s
        self.next_sample_mono_s = 0.0
        self.loop_lag = LoopLag()
        self._began_mono_s = self._ended_mono_s = float("-inf")  # of the latest sample
        self._due_mono_s: float | None = None  # scheduled start of the next sample; None: the first

    @property
    def is_fresh(self) -> bool:
        """Whether the latest sample is recent enough for an answer."""
        # Measured from its end: a sample that takes longer than the interval is still recent.
        return time.monotonic() - self._ended_mono_s < self.settings.interval_s

    def started(self) -> float:
        """Record that a sample starts now; return that time. The next is due an interval later."""
        began = self._began_mono_s = time.monotonic()
        self.next_sample_mono_s = began + self.interval_s
        if self._due_mono_s is not None:
            self.loop_lag.record(min(self._due_mono_s, began), began, self.interval_s)
        return began

    def ended(self, wanted_s: float, computed_s: float) -> None:
        """
        Record that the sample has ended or failed; schedule the next one.

        Args:
            wanted_s: from its start to the next one, by the policy and by whether a client watches.
            computed_s: its CPU time. Not its duration: a lack of CPU time must not make samples
                rarer.
        """
        fastest_s = max(self.settings.fast_interval_s, computed_s / _BUSY_SHARE)
        self.interval_s = max(fastest_s, wanted_s)
        self._ended_mono_s = time.monotonic()
        # Measured from the start of this sample, so that its duration does not change the rate.
        self._due_mono_s = self.next_sample_mono_s = self._began_mono_s + self.interval_s

    def sample_soon(self) -> None:
        """Sample as soon as the fastest interval allows."""
        earliest = self._began_mono_s + self.settings.fast_interval_s
        self.next_sample_mono_s = min(self.next_sample_mono_s, earliest)
        self._bring_due_time_forward()

    def sample_now(self) -> None:
        """
        Sample at once: a save has ended and the next may be due.

        At the very end every step counts, and a step can be shorter than `fast_interval_s`. The
        time that a training takes to save limits how often this happens.
        """
        self.next_sample_mono_s = 0.0
        self._bring_due_time_forward()

    def _bring_due_time_forward(self) -> None:
        # The lateness of a sample requested in between counts from its request.
        if self._due_mono_s is not None:
            asked = max(self.next_sample_mono_s, time.monotonic())
            self._due_mono_s = min(self._due_mono_s, asked)


class Clocks:
    """
    Compares three clocks. The arguments are for tests.

    The monotonic clock stops while the machine sleeps, so code that uses it sees no gap. But a
    battery has been drained meanwhile, and other values have changed, too.

    If a container is moved or a machine restored, the clocks may jump in any direction. Only a step
    that can be a sleep counts as one.

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
        Compare the clocks with the previous call.

        Returns:
            Seconds that the machine slept, and seconds by which the wall clock was set forward
            (negative: back). 0: it did not happen.
        """
        before, self._last = self._last, (self._mono(), self._boot(), self._wall())
        mono_s, boot_s, wall_s = (now - then for now, then in zip(self._last, before, strict=True))
        slept_s, set_s = boot_s - mono_s, wall_s - boot_s
        slept_s = slept_s if slept_s >= _LEAST_STEP_S else 0.0
        return slept_s, set_s if abs(set_s) >= _LEAST_STEP_S else 0.0
