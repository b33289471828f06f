"""
Predict where growth ends if a training reports how many steps of its loop are left.

Growth per step times the steps left is what the loop still needs. A need that does not fit gets a
warning long before the trend shows the end. Growth that fits gets none while it follows the steps.
"""

from __future__ import annotations

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.history import History
from watchdog_app.core.model.resource import Reading, ResourceKey

_WARM_UP_STEPS = 20  # they trace functions and allocate what later steps reuse
_ALIGNED_S = 5.0  # after this time two histories have points of the same times
_LEAST_S = 10.0  # besides the warm-up
_WINDOWS_S = (240.0, 20.0, 8.0)  # growth per step must be alike in all windows
_ALIKE = 1.6  # as a multiple of the growth per step in the longest window, or its inverse
_SEEN = 0.3  # growth so far, as a share of the free room, before a need counts
_MARGIN = 0.05  # share of the limit that must stay free for growth to count as fitting
_NOISE = 0.01  # share of the limit
_LEAD_S = 30.0  # a warning is early enough so long before the end
_EARLY_S, _TAIL_S = 3.0, 8.0  # around the predicted end, in which the trend still shows growth


class Loop:
    """The progress of one training through its loop."""

    def __init__(self) -> None:
        self._left = self._began = self._in_epoch = 0
        # Steps to the end of the loop, or of its first pass over the data, which fills caches.
        self._ends_in = 0
        self._now, self._trains = 0.0, False
        self._steps = History()  # steps left after the warm-up, negative
        # Level and time of the predicted end of growth that fits, by resource.
        self._ends: dict[ResourceKey, tuple[float, float]] = {}

    def observe(self, now: float, view: AgentState) -> None:
        """Process one sample: the last report of the training's agent."""
        left, in_epoch = view.steps_left or 0, view.epoch_steps or 0
        if left > self._left or in_epoch != self._in_epoch:
            self._began, self._steps = left, History()
        self._now, self._left, self._in_epoch = now, left, in_epoch
        self._trains = view.training and view.phase in (None, "train") and left > 0
        if left <= self._began - _WARM_UP_STEPS:
            self._steps.add(now, -left)
        in_pass = in_epoch + left - self._began
        newest = self._steps.growth(_WINDOWS_S[-1])[0]  # may still show growth in the first pass
        self._ends_in = max(0, in_pass) if -newest < in_pass < left else left

    def shortage(self, reading: Reading, memory: History) -> str | None:
        """
        Return that the loop needs more of a resource than is free, as a text. None: it may fit.

        Args:
            reading: current reading of the resource.
            memory: what the training holds of it.
        """
        rates, left = self._growth_per_step(reading, memory), self._ends_in
        room, seen = reading.limit - reading.used, self._steps.growth(_WINDOWS_S[0])[0]
        if not rates or rates[0] * seen < _SEEN * room:
            return None
        if min(rates) * left <= room + _NOISE * reading.limit:
            return None
        where = " in this epoch" if left < self._left else ""
        return (
            f"grows by {format_bytes(rates[0])} per step and has {left:,} steps left{where}: "
            f"needs {format_bytes(rates[0] * left)}, {format_bytes(room)} are free"
        )

    def fits(self, reading: Reading, memory: History, low_s: float) -> bool:
        """
        Whether the growth ends in time, with a margin, or has just ended so.

        Args:
            reading: current reading of a resource.
            memory: what the training holds of it.
            low_s: the earliest exhaustion that the forecast expects, in seconds.
        """
        most, left = max(self._growth_per_step(reading, memory), default=0.0), self._ends_in
        pace, level = self._steps.rate(_WINDOWS_S[1]) or 0.0, memory.last or 0.0
        # After the first pass, growth may continue: then a warning must still come early enough.
        need = most * min(self._left, left + _LEAD_S * pace) + _MARGIN * reading.limit
        if most > 0 and left <= low_s * pace and reading.used + need <= reading.limit:
            self._ends[reading.key] = (level + most * left, self._now + left / pace)
            return True
        end, end_s = self._ends.get(reading.key, (0.0, 0.0))
        in_time = end_s - _EARLY_S <= self._now <= end_s + _TAIL_S
        return in_time and level <= end + _NOISE * reading.limit

    def _growth_per_step(self, reading: Reading, memory: History) -> list[float]:
        """Return the bytes per step in each window. Empty: not known, or not linear in steps."""
        known_s = self._now - (self._steps.first_mono_s or self._now) - _ALIGNED_S
        windows = [min(window_s, known_s) for window_s in _WINDOWS_S]
        steps = [self._steps.growth(window_s)[0] for window_s in windows]
        if not self._trains or known_s < _LEAST_S or min(steps) <= 0:
            return []
        rates = [memory.growth(windows[i])[0] / steps[i] for i in range(len(windows))]
        most = _ALIKE * rates[0] + _NOISE * reading.limit / steps[-1]
        return rates if 0 < rates[0] <= _ALIKE * min(rates) and max(rates) <= most else []
