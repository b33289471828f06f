"""Past values of a figure over the last minutes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from watchdog_app.core.model.machine import HostMemory

_SWAP_S = 1.0


class SwapTraffic(NamedTuple):
    """Swap traffic of the machine in bytes per second; None: the system has no counters."""

    in_per_s: float | None = None
    out_per_s: float | None = None
    since: tuple[float, int, int] | None = None  # time and counters (in, out) of the last update

    def updated(self, mono_s: float, host: HostMemory) -> SwapTraffic:
        """
        The traffic after one more sample. A counter that decreases was reset.

        Args:
            mono_s: time of the sample.
            host: counters of the machine.
        """
        if host.swap_in_bytes is None or host.swap_out_bytes is None:
            return SwapTraffic()
        now, since = (mono_s, host.swap_in_bytes, host.swap_out_bytes), self.since
        if since is None or now[1] < since[1] or now[2] < since[2]:
            return self._replace(since=now)
        passed = mono_s - since[0]
        if passed < _SWAP_S:
            return self
        return SwapTraffic((now[1] - since[1]) / passed, (now[2] - since[2]) / passed, now)


_THRASH_BYTES_PER_S = 1024**2  # in both directions at once: the same pages leave and return


def is_thrashing(swap: SwapTraffic) -> bool:
    """Whether the machine moves the same pages out to swap and back in."""
    return (
        swap.in_per_s is not None
        and swap.out_per_s is not None
        and min(swap.in_per_s, swap.out_per_s) > _THRASH_BYTES_PER_S
    )


_FINE_S = 0.2  # every second sample at 10 Hz: enough for windows of some seconds
_FINE_POINTS = 48
_COARSE_S = 5.0
_COARSE_POINTS = 56


class History:
    """
    The values of one figure over about the last five minutes: 0.2 s apart at the end, 5 s before.

    A fast leak shows within a second, a slow one within minutes. Two rings cover both with about a
    hundred points.
    """

    __slots__ = ("_coarse", "_fine", "_last", "first_mono_s")

    def __init__(self) -> None:
        self._fine: deque[tuple[float, float]] = deque(maxlen=_FINE_POINTS)
        self._coarse: deque[tuple[float, float]] = deque(maxlen=_COARSE_POINTS)
        self._last: tuple[float, float] | None = None
        self.first_mono_s: float | None = None  # time of the first value

    def add(self, mono_s: float, value: float) -> None:
        """
        Add a reading; a reading that is not newer than the last is dropped.

        Args:
            mono_s: time of the reading.
            value: the figure.
        """
        if self._last is not None and mono_s <= self._last[0]:
            return
        if self._last is None:
            self.first_mono_s = mono_s
        self._last = (mono_s, value)
        if not self._fine or mono_s - self._fine[-1][0] >= _FINE_S:
            self._fine.append(self._last)
        # All histories keep points of the same times, because their growth is compared.
        if not self._coarse or mono_s // _COARSE_S != self._coarse[-1][0] // _COARSE_S:
            self._coarse.append(self._last)

    @property
    def last(self) -> float | None:
        """The newest value."""
        return None if self._last is None else self._last[1]

    def growth(self, window_s: float) -> tuple[float, float]:
        """
        The growth over the last `window_s`, and the seconds that it covers.

        The seconds are fewer than `window_s` if the figure has been known for less time.
        """
        if self._last is None:
            return 0.0, 0.0
        then = self.point_at(self._last[0] - window_s)
        return self._last[1] - then[1], self._last[0] - then[0]

    def rate(self, window_s: float) -> float | None:
        """Growth per second over the last `window_s`; None: known for less than half of it."""
        grown, seconds = self.growth(window_s)
        return None if seconds < window_s / 2 or seconds <= 0 else grown / seconds

    def point_at(self, mono_s: float) -> tuple[float, float]:
        """
        The newest point (time, value) at or before `mono_s`, else the oldest point.

        Raises:
            IndexError: the history is empty.
        """
        if self._last is not None and self._last[0] <= mono_s:
            return self._last
        ring = self._fine if self._fine[0][0] <= mono_s else self._coarse
        return next((point for point in reversed(ring) if point[0] <= mono_s), ring[0])
