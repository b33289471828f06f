"""Phases and announcements of one training, and the memory that it took in them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.core.explain.advice import FIRST_STEP_BYTES, FULL, Filling
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.policy.loops import Loop

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
