"""Phases and announcements of one training, and the memory that it took in them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.explain.advice import FIRST_STEP_BYTES, FULL, Filling
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.history import History
from watchdog_app.core.model.resource import Reading, ResourceKey

_PHASE_NAMES = {
    "validate": "validation",
    "save": "saving a checkpoint",
    "epoch_end": "the end of an epoch",
}
_MOST_PHASES = 8
_LEAST_BYTES = 32 * 1024**2  # smaller rises are ignored
_RETURNED = 0.25  # a phase gave its memory back if less than this share stays
_ALIKE = 1.15  # a rise up to this multiple of the last one counts as a repetition
_SAFE_DRIFT = 3.0  # epochs that must still fit when the level before the phase drifts up
_SETTLE_S = 8.0  # after this time a phase counts as having given its memory back
_MISSED = 3.0  # after this many cycles without the phase, it is not expected again
_TAIL_S = 8.0  # the trend still shows growth for this time after the growth has ended
_FULL_TAIL_S = 60.0  # time for the last twentieth, and for the trend to see the end
_STALLED_S = 30.0
_NEVER_BEGAN_S = 600.0
_WARM_UP_STEPS = 20  # they trace functions and allocate what later steps reuse
_ALIGNED_S = 5.0  # after this time two histories have points of the same times
_LEAST_S = 10.0  # besides the warm-up
_WINDOWS_S = (240.0, 20.0, 8.0)  # growth per step must be alike in all windows
_LINEAR = 1.6  # as a multiple of the growth per step in the longest window, or its inverse
_SEEN = 0.3  # growth so far, as a share of the free room, before a need counts
_MARGIN = 0.05  # share of the limit that must stay free for growth to count as fitting
_NOISE = 0.01  # share of the limit
_LEAD_S = 30.0  # a warning is early enough so long before the end
# Around the predicted end, in which the trend still shows growth.
_END_EARLY_S, _END_TAIL_S = 3.0, 8.0


class Need(NamedTuple):
    """Memory that the training will still take."""

    what: str
    bytes: float
    epoch: int | None  # epoch in which it was measured, counted from 0


@dataclass(slots=True)
class _PhaseRun:
    """One run through a phase."""

    epoch: int | None
    began_s: float
    start: float  # memory level before the phase
    peak: float
    before: _PhaseRun | None  # the previous run of the same phase
    ended_s: float = math.inf  # infinite while the phase lasts
    floor: float = math.inf  # lowest memory level since the phase ended

    @property
    def rise(self) -> float:
        return self.peak - self.start

    @property
    def transient(self) -> float:
        """Memory that the phase took and gave back."""
        return self.peak - max(self.start, min(self.floor, self.peak))

    @property
    def returned(self) -> bool:
        return self.rise >= _LEAST_BYTES and self.transient >= (1 - _RETURNED) * self.rise

    @property
    def next_bytes(self) -> float:
        """Memory that the next run takes: what this run gave back, or what both runs kept."""
        kept = 0.0 if self.before is None else min(self.rise, self.before.rise)
        return max(self.transient, kept)


@dataclass(slots=True)
class _Announced:
    """Growth that an agent has announced."""

    what: str
    bytes: float
    base: float
    best: float
    grew_s: float
    at_most: bool  # the growth may be smaller
    # finite once the growth is over; the announcement explains growth until then
    until_s: float = math.inf


class Phases:
    """Learn from each sample what a phase needs. Bounded: two runs of each of eight phases."""

    def __init__(self) -> None:
        self.loop = Loop()
        self._phase: str | None = None
        self._run: _PhaseRun | None = None  # run of the current phase, or the last one that ended
        self._past: dict[str, _PhaseRun] = {}  # the last run that ended, by phase
        self._announced: _Announced | None = None
        self._number: int | None = None
        self._level = self._now = 0.0
        self._training = False

    def observe(self, now: float, level: float, view: AgentState) -> None:
        """
        Process one sample.

        Args:
            now: monotonic seconds.
            level: memory of the task in bytes.
            view: the last report of its agent.
        """
        # The phase began between two samples, so the last sample gives the level before it.
        before = min(level, self._level) if self._level > 0 else level
        self._now, self._training = now, view.training
        if view.phase != self._phase:
            self._change_phase(now, before, level, view)
        if self._run is not None and now < self._run.ended_s:
            self._run.peak = max(self._run.peak, level)
        for run in self._past.values():
            run.floor = min(run.floor, level)
        self._update_announcement(now, before, level, view)
        self._level = level

    def upcoming_needs(self) -> Iterator[Need]:
        """
        Yield what recurring phases will take above the current level, judged by their last runs.
        """
        if not self._training:
            return
        for phase, last in self._past.items():
            need = last.next_bytes
            if phase == self._phase and self._run is not None:
                need -= self._level - self._run.start
            elif not self._is_due(last):
                continue
            if need >= _LEAST_BYTES:
                yield Need(_PHASE_NAMES.get(phase) or clean(phase, 40), need, last.epoch)

    def remaining_need(self) -> Need | None:
        """Return the part of an announced growth that is still to come. None: nothing announced."""
        announced = self._announced
        if announced is None or announced.until_s < math.inf or announced.at_most:
            return None
        return Need(announced.what, max(0.0, announced.base + announced.bytes - self._level), None)

    def filling(self) -> Filling | None:
        """
        Return the announced growth in progress.

        The result stays for a while after the growth is complete. A failure in that time is caused
        by the memory that it took.
        """
        announced = self._announced
        if announced is None or announced.at_most:
            return None
        come = min(announced.bytes, max(0.0, self._level - announced.base))
        return Filling(announced.what, come, announced.bytes)

    def explains(self, room: float, *, announced: bool) -> bool:
        """
        Whether the current growth was expected and fits.

        Args:
            room: bytes that may still be taken.
            announced: whether the program's announcement counts.
        """
        if announced and self._within_announced(room):
            return True
        # The trend still shows the growth of a phase after it ends.
        runs = [run for run in (self._run, *self._past.values()) if run is not None]
        return any(self._now - run.ended_s <= _TAIL_S and self._repeats(run, room) for run in runs)

    def _within_announced(self, room: float) -> bool:
        announced = self._announced
        if announced is None:
            return False
        rest = announced.base + announced.bytes - self._level
        if rest >= (FULL - 1.0) * announced.bytes and max(0.0, rest) <= room:
            return True
        # The first step takes memory of its own. That needs no warning if it fits as well.
        return rest >= -FIRST_STEP_BYTES and rest + FIRST_STEP_BYTES <= room

    def _repeats(self, run: _PhaseRun, room: float) -> bool:
        """Whether the run repeats an earlier run that gave its memory back, and fits."""
        before = run.before
        if before is None:
            return False
        risen = self._level - run.start
        drift = max(0.0, run.start - before.start)
        return (
            before.returned
            and risen <= _ALIKE * before.rise
            and before.rise - risen <= room - _SAFE_DRIFT * drift
        )

    def _change_phase(self, now: float, before: float, level: float, view: AgentState) -> None:
        """End one phase and begin the next."""
        run = self._run
        if run is not None and run.ended_s == math.inf and self._phase is not None:
            run.ended_s = now
            run.floor = level
            if run.before is not None:
                run.before.before = None  # two runs are enough
            if self._phase in self._past or len(self._past) < _MOST_PHASES:
                self._past[self._phase] = run
        self._phase = view.phase
        if view.phase is not None and view.phase != "train":
            self._run = _PhaseRun(view.epoch, now, before, level, self._past.get(view.phase))

    def _is_due(self, last: _PhaseRun) -> bool:
        """Whether the phase ended long enough ago, and will come again."""
        passed = self._now - last.ended_s
        if last.before is None:
            return passed >= _SETTLE_S
        cycle = last.began_s - last.before.began_s
        return min(_SETTLE_S, cycle / 2) <= passed <= _MISSED * max(cycle, _SETTLE_S)

    def _update_announcement(
        self, now: float, before: float, level: float, view: AgentState
    ) -> None:
        # Without a number the agent says nothing about the announcement. The training may have
        # ended with a full buffer.
        if view.expected_number is not None and view.expected_number != self._number:
            self._number = view.expected_number
            self._announced = None
            if view.expected_bytes:
                what = clean(view.expected_for or "what it announced", 60)
                size, at_most = float(view.expected_bytes), view.expected_at_most
                self._announced = _Announced(what, size, before, level, now, at_most)
        announced = self._announced
        if announced is None or announced.until_s < math.inf:
            if announced is not None and now > announced.until_s:
                self._announced = None
            return
        if level >= announced.best + 0.01 * announced.bytes:
            announced.best, announced.grew_s = level, now
        begun = announced.best - announced.base >= 0.05 * announced.bytes
        stalled = now - announced.grew_s > (_STALLED_S if begun else _NEVER_BEGAN_S)
        if level - announced.base >= FULL * announced.bytes:
            announced.until_s = now + _FULL_TAIL_S
        elif stalled:
            announced.until_s = now + _TAIL_S


class Loop:
    """
    The progress of one training through its loop, if it reports how many steps are left.

    Growth per step times the steps left is what the loop still needs. A need that does not fit gets
    a warning long before the trend shows the end. Growth that fits gets none while it follows the
    steps.
    """

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
        in_time = end_s - _END_EARLY_S <= self._now <= end_s + _END_TAIL_S
        return in_time and level <= end + _NOISE * reading.limit

    def _growth_per_step(self, reading: Reading, memory: History) -> list[float]:
        """Return the bytes per step in each window. Empty: not known, or not linear in steps."""
        known_s = self._now - (self._steps.first_mono_s or self._now) - _ALIGNED_S
        windows = [min(window_s, known_s) for window_s in _WINDOWS_S]
        steps = [self._steps.growth(window_s)[0] for window_s in windows]
        if not self._trains or known_s < _LEAST_S or min(steps) <= 0:
            return []
        rates = [memory.growth(windows[i])[0] / steps[i] for i in range(len(windows))]
        most = _LINEAR * rates[0] + _NOISE * reading.limit / steps[-1]
        return rates if 0 < rates[0] <= _LINEAR * min(rates) and max(rates) <= most else []
