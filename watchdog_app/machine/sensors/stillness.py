"""
Whether nothing at all has happened since the last look, in as few steps as possible.

At rest this is asked every few seconds, and hardly anything else happens. Each function that it
went through and each file that it opened would find the caches of a busy machine cold, which costs
far more than what is done there: so it is written out, holds its files open, and makes nothing.
What is not plainly still is left to the glance.
"""

from __future__ import annotations

from collections.abc import Callable

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import KeptFile
from watchdog_app.core.policy.glance import Rest


class Stillness:
    """
    The short way through a glance.

    Args:
        proc: where the proc file system is mounted.
        begun: whether a Python has begun, or may have; to be asked again as often as one likes.
        limited: whether a limit may have been set; the same.
        changed: whether a process has another limit or group. Says so once.
    """

    def __init__(
        self,
        proc: str,
        begun: Callable[[float], bool],
        limited: Callable[[], bool],
        changed: Callable[[float], bool],
    ) -> None:
        self._memory = KeptFile(f"{proc}/meminfo")
        self._begun = begun
        self._limited = limited
        self._changed = changed
        self.turned_up = False  # `changed` has said so, and a glance has still to be told

    def holds(self, rest: Rest, now_mono_s: float) -> bool:
        """
        Whether nothing has happened, and `rest` has been told the figures; False: take a glance.
        """
        low, both_low = rest.low, rest.both_low
        if low is None or now_mono_s >= rest.until_mono_s:
            return False
        try:
            data = self._memory.read(1536 if rest.swaps else 128)
            at = data.index(b"MemAvailable:") + 13
            available = int(data[at : data.index(b"k", at)]) * 1024
            swap_free = 0
            if rest.swaps:
                at = data.index(b"SwapFree:") + 9
                swap_free = int(data[at : data.index(b"k", at)]) * 1024
        except (SensorError, ValueError):
            return False
        if not (
            low <= available <= rest.high
            and both_low <= available + swap_free <= rest.both_high
            and not self._begun(now_mono_s)
            and not self._limited()
        ):
            return False
        if self._changed(now_mono_s):
            self.turned_up = True
            return False
        rest.still.append((now_mono_s, available, swap_free))
        return True

    def close(self) -> None:
        """Give the descriptor back."""
        self._memory.close()
