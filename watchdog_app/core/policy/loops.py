"""
Predict where growth ends if a training reports how many steps of its loop are left.

Growth per step times the steps left is what the loop still needs. A need that does not fit gets a
warning long before the trend shows the end. Growth that fits gets none while it follows the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
_LEAST_S = 14.0  # as long as later growth must last for the forecast
_WINDOWS_S = (240.0, 20.0, 5.0)  # growth per step must be alike in all of them
_LEAST, _MOST = 0.6, 1.6  # as a multiple of the growth per step in the longest
_SEEN = 0.3  # growth so far, as a share of the free room, before a need counts
_EXPLAINED = 0.8  # share of the resource's growth
_MARGIN = 0.05  # share of the limit that must stay free for growth to count as fitting
_NOISE = 0.01  # share of the limit
_LEAD_S = 30.0  # a warning is early enough so long before the end
_EARLY_S, _TAIL_S = 3.0, 8.0  # around the predicted end, in which the trend still shows growth


@dataclass(slots=True)
class Loop:
    """The progress of one training through its loop."""

    view: AgentState  # its last report
    began: int = -1  # steps that were done when the loop was first seen
    now: float = 0.0
    steps: History = field(default_factory=History)  # steps done, after the warm-up
    # Level and time of the predicted end of growth that fits, by resource.
    ends: dict[ResourceKey, tuple[float, float]] = field(default_factory=dict)

    def observe(self, now: float, view: AgentState) -> None:
        """Process one sample with the last report of the training's agent."""
        before, self.view, self.now, done = self.view, view, now, view.steps_done or 0
        loop = (before.steps_total, before.epoch_steps)
        new = loop != (view.steps_total, view.epoch_steps) or done < (before.steps_done or 0)
        if new or self.began < 0:
            self.began, self.steps = done, History()
        if done >= self.began + _WARM_UP_STEPS:
            self.steps.add(now, done)

    def shortage(self, reading: Reading, memory: History) -> str | None:
        """
        Return that the loop needs more memory than is free, as a text. None: it may fit.

        Args:
            reading: current reading of a resource.
            memory: what the training holds of it, up to this sample.
        """
        rates, room = self._growth_per_step(memory), reading.limit - reading.used
        if not rates or rates[0] * self.steps.growth(_WINDOWS_S[0])[0] < _SEEN * room:
            return None
        (left, in_pass), where = self._left, ""
        if in_pass < left and in_pass + self.steps.growth(_WINDOWS_S[1])[0] > 0:
            left, where = max(0, in_pass), " in this epoch"  # growth may end with the first pass
        if min(rates) * left <= room + _NOISE * reading.limit:
            return None
        return (
            f"grows by {format_bytes(rates[0])} per step and has {left:,} steps left{where}: "
            f"needs {format_bytes(rates[0] * left)}, {format_bytes(room)} are free"
        )

    def fits(self, reading: Reading, memory: History, low_s: float) -> bool:
        """
        Whether the growth of the training ends in time, with a margin.

        Args:
            reading: current reading of a resource.
            memory: what the training holds of it, up to this sample.
            low_s: the earliest exhaustion that the forecast expects, in seconds.
        """
        most, level = max(self._growth_per_step(memory), default=0.0), memory.last or 0.0
        pace = self.steps.rate(_WINDOWS_S[1]) or 0.0
        for left, lead_s in zip(self._left, (0.0, _LEAD_S), strict=True):
            spare = max(_MARGIN * reading.limit, lead_s * pace * most)
            fits = reading.used + most * left + spare <= reading.limit
            if fits and most > 0 and 0 < left <= low_s * pace:
                self.ends[reading.key] = (level + most * left, self.now + left / pace)
                return True
        end, end_s = self.ends.get(reading.key, (0.0, 0.0))
        in_time = end_s - _EARLY_S <= self.now <= end_s + _TAIL_S
        return in_time and level <= end + _NOISE * reading.limit

    @property
    def _left(self) -> tuple[int, int]:
        """Steps left in all epochs, and in the first pass over the data, which fills caches."""
        done, total, in_pass = self.view.steps_done, self.view.steps_total, self.view.epoch_steps
        return (total or 0) - (done or 0), self.began + (in_pass or 0) - (done or 0)

    def _growth_per_step(self, memory: History) -> list[float]:
        """Return the bytes per step in each window. Empty: not known, or not linear in steps."""
        known_s = self.now - (self.steps.first_mono_s or self.now)
        trains = self.view.training and self.view.phase in (None, "train") and self._left[0] > 0
        windows = [min(window_s, known_s) for window_s in _WINDOWS_S]
        steps = [self.steps.growth(window_s)[0] for window_s in windows]
        if not trains or known_s < _LEAST_S or min(steps) <= 0:
            return []
        rates = [memory.growth(windows[i])[0] / steps[i] for i in range(len(windows))]
        alike = 0 < _LEAST * rates[0] <= min(rates) and max(rates) <= _MOST * rates[0]
        return rates if alike else []


class Loops:
    """The loops of all trainings that report their steps."""

    def __init__(self) -> None:
        self._memory: Callable[[ResourceKey, ProcessKey], History] = lambda *_: History()
        self._loops: dict[ProcessKey, Loop] = {}
        self._names: dict[ProcessKey, str] = {}

    def update(self, observation: Observation, tracker: Tracker) -> None:
        """Process one sample, which the tracker already contains."""
        self._memory = tracker.memory_of
        self._names = {key: task.name for key, task in observation.tasks.items()}
        self._loops = {key: loop for key, loop in self._loops.items() if key in self._names}
        for key in observation.agents.keys() | self._loops.keys():
            views = observation.agents.get(key) or [AgentState(key, "", "")]
            view = max(views, key=lambda each: each.steps_total or 0)
            if view.steps_total is not None or key in self._loops:
                loop = self._loops.setdefault(key, Loop(view))
                loop.observe(observation.snapshot.mono_s, view)

    def predict(self, reading: Reading) -> Expected | None:
        """Return that a training will need more of this resource than is free. None: it may not."""
        for key, memory in self._memory_of(reading) if reading.fatal else ():
            short = self._loops[key].shortage(reading, memory)
            if short is not None:
                by = Contributor(key, self._names[key], 0.0, 1.0)
                return Expected(f"{by.name} {short}", Stage.WARN, by)
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
            for key, memory in self._memory_of(reading)
            if self._loops[key].fits(reading, memory, low_s)
        ]
        return sum(fitting) >= _EXPLAINED

    def _memory_of(self, reading: Reading) -> Iterator[tuple[ProcessKey, History]]:
        """Yield the trainings under a resource, and what each holds of it; all of it on a GPU."""
        spec = SPECS[reading.key.kind]
        for key in self._loops.keys() & reading.tasks:
            if spec.of_ram or spec.scope is Scope.CARD:
                yield key, self._memory(reading.key, key)
