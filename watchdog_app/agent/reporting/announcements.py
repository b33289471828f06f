"""
Memory that a program says beforehand it is about to take: growth up to that is no leak.

What is announced is told to the daemon at once, and before something large begins the daemon
has a moment to say whether it will fit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.reporting.breakdown import Breakdown
from watchdog_app.agent.reporting.link import Link

_LONGEST_TEXT = 100  # the daemon takes no longer ones

_WORTH_WAITING_BYTES = 256 * 2**20
_LONGEST_WAIT_S = 3.0  # a machine that is busy; else some tenths
_SILENT_WAIT_S = 1.0  # of a daemon that says nothing where it has nothing against it
_WAIT_S = 0.01

_numbers = itertools.count(1)  # of the process: the next training's are new ones too


class Announcements:
    """
    What one training announces.

    Args:
        link: to the daemon.
        breakdown: of what the training holds, which counts what was announced as that.
        guard: contains errors of ours.
        clock: monotonic seconds.
    """

    def __init__(
        self, link: Link, breakdown: Breakdown, guard: Guard, clock: Callable[[], float]
    ) -> None:
        self._link = link
        self._breakdown = breakdown
        self._guard = guard
        self._clock = clock
        self._number = 0  # of what was announced last
        self._patient = True  # while the daemon answers

    def expect(self, bytes_: int, what: str, *, at_most: bool) -> None:
        """
        The program is about to take so much more memory, and no more.

        Args:
            bytes_: so much more than now.
            what: as a person would call it.
            at_most: it may be less.

        Raises:
            ValueError: `bytes_` is negative or no number.
        """
        count = int(bytes_)
        if count < 0:
            raise ValueError(f"bytes must not be negative, but is {bytes_}")
        with self._guard:
            self._breakdown.announced(count, what)
            self._number = next(_numbers)
            self._link.report_soon(
                expected_bytes=count,
                expected_for=what[:_LONGEST_TEXT],
                expected_number=self._number,
                expected_at_most=at_most,
                expected_mono_s=self._clock(),
            )

    def refused(self, bytes_: int) -> bool:
        """
        Whether the daemon asks for a save now that so many bytes were announced.

        Waits for its word, some tenths of a second as a rule, and only for what takes longer than
        that to fill.
        """
        link = self._link
        if bytes_ < _WORTH_WAITING_BYTES:
            return False
        began = time.monotonic()
        while link.connected and link.wanted is None and link.considered != self._number:
            patient = link.acknowledges and self._patient
            if time.monotonic() - began >= (_LONGEST_WAIT_S if patient else _SILENT_WAIT_S):
                self._patient = False  # one that hangs keeps a training waiting once
                break
            time.sleep(_WAIT_S)
        else:
            self._patient = True
        return link.wanted is not None
