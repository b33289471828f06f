"""
What one series cannot show: phases that recur, growth that was announced, thrashing.

A training says which phase it is in and how much it is about to take; what a
phase needed in one epoch predicts the next. Two things follow. Growth that
was announced and fits is no news; a phase that will not fit is, before it
begins. Without agents and swap nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from watchdog_app.base.text.quantities import format_bytes, format_rate
from watchdog_app.core.explain.advice import Filling
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Attribution, Contributor, Expected, Observation, Stage
from watchdog_app.core.model.history import is_thrashing
from watchdog_app.core.model.machine import ProcessKey, Task, TaskKind
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.policy.phases import Phases
from watchdog_app.core.policy.tracker import Tracker

_MARGIN = 0.02  # of the limit: what has to stay free for growth to count as fitting
_EXPLAINED = 0.8  # of the resource's growth
_SUSTAINED_S = 2.0  # too little room for what comes, for so long
_OUTLIVES_S = 20.0  # a trend shows growth for some seconds after it has ended
_THRASH_S = 5.0
_THRASH_FULL_PERCENT = 10.0  # of the time nothing at all can run for want of memory
_ROOMY = 0.25  # of RAM is there for the taking: it is not the machine that swaps


class Predictor(Protocol):
    """Foresees a need that the trend of a resource does not show."""

    def update(self, look: Observation, tracker: Tracker) -> None:
        """Take one look; `tracker` has it already."""
        ...

    def predict(self, reading: Reading) -> Expected | None:
        """What is coming that this resource has no room for; None: nothing that is known."""
        ...


class TrainingPhases:
    """Phases that recur and growth that trainings announce."""

    def __init__(self) -> None:
        self._tasks: dict[ProcessKey, Phases] = {}
        self._last_seen_mono_s: dict[ProcessKey, float] = {}  # its agent, last
        self._names: dict[ProcessKey, str] = {}
        self._short_since: dict[ResourceKey, float] = {}
        self._now = 0.0

    def update(self, look: Observation, tracker: Tracker) -> None:
        """
        Take one look.

        Args:
            look: at the machine.
            tracker: with the memory of each task, up to date.
        """
        usage, agents = tracker.usage, look.agents
        self._now = now_mono_s = look.snapshot.mono_s
        keys = {reading.key for reading in look.readings}
        self._short_since = {key: at for key, at in self._short_since.items() if key in keys}
        self._names = {key: look.tasks[key].name for key in agents}
        for key in self._tasks.keys() - agents.keys():
            # Its trend lasts for some seconds more, and so does what explains it.
            if key in look.tasks and now_mono_s - self._last_seen_mono_s[key] <= _OUTLIVES_S:
                last = usage[key].memory.last or 0.0
                self._tasks[key].observe(now_mono_s, last, AgentState(key, "", ""))
            else:
                del self._tasks[key], self._last_seen_mono_s[key]
        for key, views in agents.items():
            level = usage[key].memory.last if key in usage else None
            if level is None:
                continue
            # One that says nothing of the kind must not hide another in the same task.
            view = max(views, key=lambda v: (v.training, v.phase is not None, v.step or 0))
            self._last_seen_mono_s[key] = now_mono_s
            self._tasks.setdefault(key, Phases()).observe(now_mono_s, level, view)

    def predict(self, reading: Reading) -> Expected | None:
        """What is coming that this resource has no room for; None: nothing that is known."""
        if not SPECS[reading.key.kind].of_ram or not reading.fatal or reading.limit <= 0:
            return None
        found = self._find_shortage(reading, max(0.0, reading.limit - reading.used))
        if found is None:
            self._short_since.pop(reading.key, None)
            return None
        expected, at_once = found
        since = self._short_since.setdefault(reading.key, self._now)
        return expected if at_once or self._now - since >= _SUSTAINED_S else None

    def explains(self, reading: Reading, attribution: Attribution, under: Iterable[Task]) -> bool:
        """
        Whether the growth of this resource was expected, fits, and will end.

        Args:
            reading: the resource now.
            attribution: whose growth it is.
            under: the tasks that this resource can hit.
        """
        if not SPECS[reading.key.kind].of_ram:
            return False
        margin = _MARGIN * reading.limit
        room = reading.limit - reading.used - margin
        # What one program says of itself must not silence the warning that its neighbours need.
        # A server has no training that a limit could end.
        shared = SPECS[reading.key.kind].of_group and (
            sum(task.kind is not TaskKind.SERVER for task in under) > 1
            or (reading.unwatched or 0.0) > margin
        )
        explained = sum(
            contributor.share
            for contributor in attribution.contributors
            if contributor.task in self._tasks
            and self._tasks[contributor.task].explains(self._now, room, announced=not shared)
        )
        return explained >= _EXPLAINED

    def filling(self) -> Mapping[ProcessKey, Filling]:
        """By task: the buffer that it announced and that is not full yet."""
        found = ((key, phases.filling(self._now)) for key, phases in self._tasks.items())
        return {key: each for key, each in found if each is not None}

    def _find_shortage(self, reading: Reading, room: float) -> tuple[Expected, bool] | None:
        """What will need more than there is room for, and whether that is sure at once."""
        for key in reading.tasks:
            phases = self._tasks.get(key)
            if phases is None:
                continue
            left = f"{format_bytes(room)} are left of {format_bytes(reading.limit)}"
            contributor = Contributor(key, self._names.get(key, ""), 0.0, 1.0)
            rest = phases.remaining_need()
            if rest is not None and rest.bytes > room:
                why = (
                    f"{rest.what} will need another {format_bytes(rest.bytes)}, {left}: "
                    "it will not fit"
                )
                return Expected(why, Stage.SAVE, contributor), True
            least = _MARGIN * reading.limit
            for need in phases.upcoming_needs(self._now):
                if need.bytes > max(room, least):
                    why = f"{need.what} needed {format_bytes(need.bytes)} more"
                    if need.epoch is not None:
                        why += f" in epoch {need.epoch + 1}"
                    return Expected(f"{why}, {left}", Stage.SAVE, contributor), False
        return None


class Thrashing:
    """The machine moves the same pages out to swap and back in, and next to nothing runs."""

    def __init__(self) -> None:
        self._since_mono_s: float | None = None
        self._expected: Expected | None = None
        self._roomy = False  # the machine has RAM to spare: what thrashes is a group at its limit

    def update(self, look: Observation, tracker: Tracker) -> None:
        """Take one look; `tracker` has it already."""
        host, now, swap = look.snapshot.host, look.snapshot.mono_s, tracker.swap
        self._roomy = host.available_bytes > _ROOMY * host.total_bytes
        self._expected = None
        full = None if host.pressure is None else host.pressure.full_avg10
        if full is None or full < _THRASH_FULL_PERCENT or not is_thrashing(swap):
            self._since_mono_s = None
            return
        if self._since_mono_s is None:
            self._since_mono_s = now
        if now - self._since_mono_s >= _THRASH_S:
            why = (
                f"thrashing: {format_rate(swap.out_per_s)} go out to swap and "
                f"{format_rate(swap.in_per_s)} come back, and for {full:.0f} % of the time "
                "nothing can run"
            )
            self._expected = Expected(why, Stage.WARN, None)

    def predict(self, reading: Reading) -> Expected | None:
        """That it thrashes, where this resource is what is too small."""
        if reading.key.kind is ResourceKind.RAM and not reading.fatal:
            return None if self._roomy else self._expected
        swaps = SPECS[reading.key.kind].of_ram and reading.fatal and reading.limit > 0
        return self._expected if swaps and self._roomy and reading.swapped > 0 else None


def with_expected_task(attribution: Attribution, expected: Expected | None) -> Attribution:
    """The task to name: the one that grows, otherwise the one whose next phase does not fit."""
    if expected is None or expected.contributor is None:
        return attribution
    if attribution.window_s is not None:
        return attribution
    return Attribution((expected.contributor,), 0.0, 0.0)
