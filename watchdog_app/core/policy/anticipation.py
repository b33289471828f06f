"""
Predict needs that the trend misses: recurring phases, announced growth, loops, thrashing.

An agent reports the phase of its training, the steps left, and announced memory. The memory
that a phase took in one epoch predicts the next epoch.

Announced growth that fits needs no warning. A phase that will not fit gets a warning before it
begins. Without agents and without swap this module changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from watchdog_app.base.text.quantities import format_bytes, format_rate
from watchdog_app.core.explain.advice import Filling
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Attribution, Contributor, Expected, Observation, Stage
from watchdog_app.core.model.history import is_thrashing
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind, Scope
from watchdog_app.core.policy.phases import Phases
from watchdog_app.core.policy.tracker import Tracker

_MARGIN = 0.02  # share of the limit that must stay free for growth to count as fitting
_EXPLAINED = 0.8  # share of the resource's growth
_SUSTAINED_S = 2.0  # how long a predicted need must exceed the free room before it counts
_OUTLIVES_S = 20.0  # a trend still shows growth for some seconds after the growth has ended
_THRASH_S = 5.0
# percent of the time in which no process can run because it waits for memory
_THRASH_FULL_PERCENT = 10.0
_ROOMY = 0.25  # with this share of RAM available, the machine itself is not short of memory


class TrainingPhases:
    """Phases that recur, growth that trainings announce, and loops that end."""

    def __init__(self) -> None:
        self._tasks: dict[ProcessKey, Phases] = {}
        self._last_seen_mono_s: dict[ProcessKey, float] = {}  # when the task last had an agent
        self._names: dict[ProcessKey, str] = {}
        self._short_since: dict[ResourceKey, float] = {}
        self._now = 0.0

    def update(self, observation: Observation, tracker: Tracker) -> None:
        """
        Process one sample.

        Args:
            observation: one sample of the machine.
            tracker: memory of each task, including this sample.
        """
        agents = observation.agents
        self._now, self._tracker = observation.snapshot.mono_s, tracker
        keys = {reading.key for reading in observation.readings}
        self._short_since = {key: at for key, at in self._short_since.items() if key in keys}
        self._names = {key: observation.tasks[key].name for key in agents}
        self._last_seen_mono_s.update(dict.fromkeys(agents, self._now))
        for key, seen_mono_s in list(self._last_seen_mono_s.items()):
            # The trend shows the growth for some seconds more, so keep its explanation as long.
            if key not in observation.tasks or self._now - seen_mono_s > _OUTLIVES_S:
                del self._last_seen_mono_s[key]
                self._tasks.pop(key, None)
                continue
            views = agents.get(key, [AgentState(key, "", "")])
            # A silent agent must not hide another agent in the same task.
            view = max(views, key=lambda v: (v.training, v.phase is not None, v.step or 0))
            level, phases = tracker.usage[key].memory.last, self._tasks.setdefault(key, Phases())
            phases.observe(self._now, level or 0.0, view)
            phases.loop.observe(self._now, view)

    def predict(self, reading: Reading) -> Expected | None:
        """
        Return the expected need that exceeds this resource's free room. None: no such need is
        known.
        """
        if not _is_memory(reading) or not reading.fatal or reading.limit <= 0:
            return None
        found = self._find_shortage(reading, max(0.0, reading.limit - reading.used))
        if found is None:
            self._short_since.pop(reading.key, None)
            return None
        expected, at_once = found
        since = self._short_since.setdefault(reading.key, self._now)
        return expected if at_once or self._now - since >= _SUSTAINED_S else None

    def explains(
        self, reading: Reading, attribution: Attribution, under: Iterable[Task], low_s: float = 0.0
    ) -> bool:
        """
        Whether the growth of this resource was expected, fits, and will end.

        Args:
            reading: current reading of the resource.
            attribution: tasks that cause the growth.
            under: tasks that this resource can affect.
            low_s: the earliest exhaustion that the forecast expects, in seconds; 0: not known.
        """
        if not _is_memory(reading):
            return False
        margin = _MARGIN * reading.limit
        room = reading.limit - reading.used - margin
        # An announcement by one program must not silence the warning that other programs in the
        # same group need. A server does not count: it has no training that the limit could end.
        shared = SPECS[reading.key.kind].of_group and (
            sum(task.kind is not TaskKind.SERVER for task in under) > 1
            or (reading.unwatched or 0.0) > margin
        )
        of_ram, memory_of = SPECS[reading.key.kind].of_ram, self._tracker.memory_of
        explained = sum(
            contributor.share
            for contributor in attribution.contributors
            if (phases := self._tasks.get(contributor.task)) is not None
            and (
                (of_ram and phases.explains(room, announced=not shared))
                or phases.loop.fits(reading, memory_of(reading.key, contributor.task), low_s)
            )
        )
        return explained >= _EXPLAINED

    def filling(self) -> Mapping[ProcessKey, Filling]:
        """Return, by task, the announced buffer that is not full yet."""
        found = ((key, phases.filling()) for key, phases in self._tasks.items())
        return {key: each for key, each in found if each is not None}

    def _find_shortage(self, reading: Reading, room: float) -> tuple[Expected, bool] | None:
        """Find a need that exceeds the room, and whether it is certain at once."""
        for key in reading.tasks:
            phases = self._tasks.get(key)
            if phases is None:
                continue
            left = f"{format_bytes(room)} are left of {format_bytes(reading.limit)}"
            contributor = Contributor(key, self._names.get(key, ""), 0.0, 1.0)
            short = phases.loop.shortage(reading, self._tracker.memory_of(reading.key, key))
            of_ram = SPECS[reading.key.kind].of_ram
            rest = phases.remaining_need() if of_ram else None
            if rest is not None and rest.bytes > room:
                why = f"{rest.what} will need another {format_bytes(rest.bytes)}, {left}"
                return Expected(f"{why}: it will not fit", Stage.SAVE, contributor), True
            least = _MARGIN * reading.limit
            for need in phases.upcoming_needs() if of_ram else ():
                if need.bytes > max(room, least):
                    why = f"{need.what} needed {format_bytes(need.bytes)} more"
                    if need.epoch is not None:
                        why += f" in epoch {need.epoch + 1}"
                    return Expected(f"{why}, {left}", Stage.SAVE, contributor), False
            if short is not None:
                return Expected(f"{contributor.name} {short}", Stage.WARN, contributor), True
        return None


def _is_memory(reading: Reading) -> bool:
    """Whether the resource is RAM, or memory of a GPU, which one loop may fill."""
    spec = SPECS[reading.key.kind]
    return spec.of_ram or spec.scope is Scope.CARD


class Thrashing:
    """The kernel moves the same pages to swap and back, and programs hardly run."""

    def __init__(self) -> None:
        self._since_mono_s = math.inf
        self._expected: Expected | None = None
        self._roomy = False  # the machine has free RAM, so a group at its limit is thrashing

    def update(self, observation: Observation, tracker: Tracker) -> None:
        """
        Process one sample that `tracker` already contains.

        Args:
            observation: one sample of the machine.
            tracker: swap traffic, including this sample.
        """
        host, now, swap = observation.snapshot.host, observation.snapshot.mono_s, tracker.swap
        self._roomy = host.available_bytes > _ROOMY * host.total_bytes
        self._expected = None
        full = None if host.pressure is None else host.pressure.full_avg10
        if full is None or full < _THRASH_FULL_PERCENT or not is_thrashing(swap):
            self._since_mono_s = math.inf
            return
        self._since_mono_s = min(self._since_mono_s, now)
        if now - self._since_mono_s >= _THRASH_S:
            why = (
                f"thrashing: {format_rate(swap.out_per_s)} go out to swap and "
                f"{format_rate(swap.in_per_s)} come back, and for {full:.0f} % of the time "
                "nothing can run"
            )
            self._expected = Expected(why, Stage.WARN, None)

    def predict(self, reading: Reading) -> Expected | None:
        """Return that the machine thrashes, if this resource is the one that is too small."""
        if reading.key.kind is ResourceKind.RAM and not reading.fatal:
            return None if self._roomy else self._expected
        swaps = SPECS[reading.key.kind].of_ram and reading.fatal and reading.limit > 0
        return self._expected if swaps and self._roomy and reading.swapped > 0 else None
