"""What the policy sees of one ceiling in one tick, and how it writes down what it wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.core.incidents import IncidentState
from watchdog_app.core.outlook import (
    Assessment,
    CeilingReading,
    Decision,
    DecisionKind,
    Evidence,
    Stage,
)
from watchdog_app.core.records import AgentView, ProcessKey, Task
from watchdog_app.core.resources import SPECS, ResourceSpec
from watchdog_app.core.rules import allowed, turn
from watchdog_app.core.saving import SaveLedger, save_s, step_s
from watchdog_app.core.settings import ActionSettings, Settings, Turn

TURNS = (Turn.FIRST, Turn.NORMAL, Turn.LAST)  # in which tasks are saved; paused from behind
_CAREFUL = 0.8  # of the time left by the present pace: it may quicken


@dataclass(frozen=True, slots=True)
class Scene:
    """One ceiling with an open incident, and everyone under it."""

    mono_s: float
    unix_s: float
    settings: Settings
    own_uid: int
    runtime_dir: str | None
    can_pause: bool
    reading: CeilingReading
    assessment: Assessment
    incident: IncidentState
    tasks: Mapping[ProcessKey, Task]  # under this ceiling
    agents: Mapping[ProcessKey, Sequence[AgentView]]  # by task
    ledgers: Mapping[ProcessKey, SaveLedger]  # by agent
    new_id: Callable[[], str]
    held: frozenset[ProcessKey]  # paused on account of any ceiling

    @property
    def spec(self) -> ResourceSpec:
        """What is particular to this kind of resource."""
        return SPECS[self.reading.key.kind]

    @property
    def wants_saves(self) -> bool:
        """The eager tier: a save is cheap, so little evidence will do."""
        return self.assessment.rescue or self.assessment.stage >= Stage.RESCUE

    @property
    def strict(self) -> bool:
        """The strict tier: evidence enough to tell a person, or the very end."""
        return self.assessment.notify or self.assessment.stage >= Stage.HOLD

    @property
    def left_s(self) -> float:
        """Time to exhaustion while the training runs, on the careful side."""
        return _CAREFUL * self.incident.left_s(self.reading)

    @property
    def reach_s(self) -> float:
        """Until there is another chance to decide."""
        return self.settings.watch.fast_interval_s

    def permits(self, task: Task | None) -> ActionSettings:
        """The switches for this task under this ceiling."""
        kind = self.reading.key.kind
        return allowed(self.settings.actions, self.settings.rules, task, kind, self.runtime_dir)

    def stands(self, task: Task) -> bool:
        """Whether it is stopped, or was paused and is still on its way to that."""
        return stands(task, task.key in self.held)

    def turn(self, task: Task) -> Turn:
        """When this task is saved and paused, where others are as well."""
        return turn(self.settings.rules, task, self.reading.key.kind)

    def decide(
        self,
        kind: DecisionKind,
        task: Task | None,
        reason: str,
        more: Evidence | None = None,
        deadline_s: float | None = None,
    ) -> Decision:
        """A decision about this ceiling, with the figures that it rests on."""
        return Decision(
            id=self.new_id(),
            kind=kind,
            incident=self.incident.id,
            ceiling=self.reading.key,
            stage=self.incident.shown_stage,
            task=None if task is None else task.key,
            at_mono_s=self.mono_s,
            at_unix_s=self.unix_s,
            reason=reason,
            evidence={**self._figures(task), **(more or {})},
            deadline_s=deadline_s,
        )

    def _figures(self, task: Task | None) -> dict[str, float | int | str | None]:
        reading, assessment = self.reading, self.assessment
        forecast = assessment.forecast
        left = self.incident.left_s(reading)
        found: dict[str, float | int | str | None] = {
            "used": reading.used,
            "limit": reading.limit,
            "unit": reading.unit,
            "lethal": int(reading.lethal),
            "throttles": int(reading.throttles),
            "label": reading.label,
            "regime": assessment.regime.value,
            "slope_per_s": assessment.slope_per_s,
            "eta_s": None if forecast is None else forecast.eta_s,
            # Infinity is no JSON: an end that may never come is an unknown one.
            "low_s": None if forecast is None else _finite(forecast.low_s),
            "high_s": None if forecast is None else _finite(forecast.high_s),
            "pace_per_s": self.incident.pace_per_s,
            "left_s": _finite(left),
            "others_share": self.incident.attribution.others,
            "unaccounted_share": self.incident.attribution.unaccounted,
        }
        if assessment.foretold is not None:
            found["foretold"] = assessment.foretold
        if task is None:
            return found
        found["name"] = task.name
        found["rss_bytes"] = task.rss_bytes
        for culprit in self.incident.attribution.culprits:
            if culprit.task == task.key:
                found["share"] = culprit.share
                found["task_slope_bytes_per_s"] = culprit.slope_bytes_per_s
        for agent in self.agents.get(task.key, ())[:1]:
            found["save_s"] = save_s(agent)
            found["step_s"] = step_s(agent)
            saved = self.ledgers[agent.key].saved_mono_s
            found["rescue_age_s"] = None if saved is None else self.mono_s - saved
        return found


def _finite(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds


def stopped(task: Task) -> bool:
    """The root is stopped; workers may be waiting for it in any state."""
    return task.members[0].state in "Tt"  # t: a debugger looks at it


def stands(task: Task, held: bool) -> bool:
    """
    Whether it does nothing more: it is stopped, or was paused (`held`) and waits in the kernel.

    Memory that is read back from swap, or a group beyond its `memory.high`, makes it wait for
    seconds, a network disk for hours; a signal that stops takes effect when that ends.
    """
    return stopped(task) or (held and task.members[0].state == "D")
