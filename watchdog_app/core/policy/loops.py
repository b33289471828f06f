"""
Predict where growth ends if a training reports how many steps of its loop are left.

Growth per step times the steps left is what the loop still needs. A need that does not fit gets a
warning long before the trend shows the end. Growth that fits gets none while it follows the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Attribution, Contributor, Expected, Observation, Stage
from watchdog_app.core.model.history import History
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, Scope
from watchdog_app.core.policy.tracker import Tracker

_WARM_UP_STEPS = 20  # they trace functions and allocate what later steps reuse
_ALIGNED_S = 5.0  # after this time two histories have points of the same times
_LEAST_S = 10.0  # besides the warm-up
_WINDOWS_S = (240.0, 20.0, 8.0)  # growth per step must be alike in all windows
_LEAST, _MOST = 0.6, 1.6  # as a multiple of the growth per step in the longest
_SEEN = 0.3  # growth so far, as a share of the free room, before a need counts
_EXPLAINED = 0.8  # share of the resource's growth
_MARGIN = 0.05  # share of the limit that must stay free for growth to count as fitting
_NOISE = 0.01  # share of the limit
_LEAD_S = 30.0  # a warning is early enough so long before the end
_EARLY_S, _TAIL_S = 3.0, 8.0  # around the predicted end, in which the trend still shows growth


@dataclass(slots=True)
class _Loop:
    """The progress of one training through its loop."""

    view: AgentState  # its last report
    began: int  # steps that were done when the loop was first seen
    steps: History = field(default_factory=History)  # steps done
    warm_mono_s: float | None = None  # end of the warm-up
    # Level and time of the predicted end of growth that fits, by resource.
    ends: dict[ResourceKey, tuple[float, float]] = field(default_factory=dict)

    def observe(self, now: float, view: AgentState) -> None:
        """Add the last report of the training's agent."""
        before, done = self.view, view.steps_done or 0
        loop, self.view = (view.steps_total, view.epoch_steps), view
        if loop != (before.steps_total, before.epoch_steps) or done < (before.steps_done or 0):
            self.began, self.steps, self.warm_mono_s = done, History(), None
        self.steps.add(now, done)
        if self.warm_mono_s is None and done >= self.began + _WARM_UP_STEPS:
            self.warm_mono_s = max(now, (self.steps.first_mono_s or now) + _ALIGNED_S)

    @property
    def left(self) -> tuple[int, int]:
        """Steps left in all epochs, and in the first pass over the data, which fills caches."""
        done, in_pass = self.view.steps_done or 0, self.view.epoch_steps or 0
        return (self.view.steps_total or 0) - done, self.began + in_pass - done

    def growth_per_step(self, now: float, memory: History, noise: float) -> list[float]:
        """Return the bytes per step in each window. Empty: not known, or not linear in steps."""
        known_s = now - (now if self.warm_mono_s is None else self.warm_mono_s)
        trains = self.view.training and self.view.phase in (None, "train") and self.left[0] > 0
        windows = [min(window_s, known_s) for window_s in _WINDOWS_S]
        steps = [self.steps.growth(window_s)[0] for window_s in windows]
        if not trains or known_s < _LEAST_S or min(steps) <= 0:
            return []
        rates = [memory.growth(windows[i])[0] / steps[i] for i in range(len(windows))]
        most = _MOST * rates[0] + noise / steps[-1]
        alike = 0 < _LEAST * rates[0] <= min(rates) and max(rates) <= most
        return rates if alike else []


class Loops:
    """The loops of all trainings that report their steps."""

    def __init__(self) -> None:
        self._loops: dict[ProcessKey, _Loop] = {}

    def update(self, observation: Observation, tracker: Tracker) -> None:
        """Process one sample, which the tracker already contains."""
        self._now, self._tracker = observation.snapshot.mono_s, tracker
        self._tasks = observation.tasks
        for key in observation.agents.keys() | self._loops.keys():
            views = observation.agents.get(key) or [AgentState(key, "", "")]
            view = max(views, key=lambda each: each.steps_total or 0)
            if key not in observation.tasks:
                del self._loops[key]
            elif view.steps_total is not None or key in self._loops:
                loop = self._loops.setdefault(key, _Loop(view, view.steps_done or 0))
                loop.observe(self._now, view)

    def predict(self, reading: Reading) -> Expected | None:
        """Return that a training will need more of this resource than is free. None: it may not."""
        room = reading.limit - reading.used
        for key, loop, memory in self._under(reading) if reading.fatal else ():
            rates = loop.growth_per_step(self._now, memory, _NOISE * reading.limit)
            seen, _, newest = (loop.steps.growth(window_s)[0] for window_s in _WINDOWS_S)
            if not rates or rates[0] * seen < _SEEN * room:
                continue
            (left, in_pass), where = loop.left, ""
            if in_pass < left and in_pass + newest > 0:  # growth may end with the first pass
                left, where = max(0, in_pass), " in this epoch"
            if min(rates) * left > room + _NOISE * reading.limit:
                by = Contributor(key, self._tasks[key].name, 0.0, 1.0)
                why = (
                    f"{by.name} grows by {format_bytes(rates[0])} per step and has {left:,} "
                    f"steps left{where}: needs {format_bytes(rates[0] * left)}, "
                    f"{format_bytes(room)} are free"
                )
                return Expected(why, Stage.WARN, by)
        return None

    def explains(self, reading: Reading, attribution: Attribution, low_s: float) -> bool:
        """
        Whether the growth of this resource will end with the loops of trainings, and fits.

        Args:
            reading: current reading of the resource.
            attribution: tasks that cause the growth.
            low_s: the earliest exhaustion that the forecast expects, in seconds.
        """
        shares = {each.task: each.share for each in attribution.contributors}
        fitting = [
            shares.get(key, 0.0)
            for key, loop, memory in self._under(reading)
            if self._fits(loop, reading, memory, low_s)
        ]
        return sum(fitting) >= _EXPLAINED

    def _fits(self, loop: _Loop, reading: Reading, memory: History, low_s: float) -> bool:
        """Whether the growth of a training ends in time, with a margin; or has just ended so."""
        now, level = self._now, memory.last or 0.0
        noise = _NOISE * reading.limit
        most = max(loop.growth_per_step(now, memory, noise), default=0.0)
        pace = loop.steps.rate(_WINDOWS_S[1]) or 0.0
        for left, lead_s in zip(loop.left, (0.0, _LEAD_S), strict=True):
            spare = max(_MARGIN * reading.limit, lead_s * pace * most)
            fits = reading.used + most * left + spare <= reading.limit
            if fits and most > 0 and 0 < left <= low_s * pace:
                loop.ends[reading.key] = (level + most * left, now + left / pace)
                return True
        end, end_s = loop.ends.get(reading.key, (0.0, 0.0))
        in_time = end_s - _EARLY_S <= now <= end_s + _TAIL_S
        return in_time and level <= end + noise

    def _under(self, reading: Reading) -> Iterator[tuple[ProcessKey, _Loop, History]]:
        """Yield the trainings under a resource, and what each holds of it; all of it on a GPU."""
        spec = SPECS[reading.key.kind]
        for key in self._loops.keys() & reading.tasks:
            if spec.of_ram or spec.scope is Scope.CARD:
                yield key, self._loops[key], self._tracker.memory_of(reading.key, key)
