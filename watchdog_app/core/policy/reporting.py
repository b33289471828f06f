"""Which notifications are due: seldom, staged, one for each cause."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from watchdog_app.core.explain import phrases
from watchdog_app.core.model.decisions import Decision, DecisionKind, Evidence, Stage, Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Scope
from watchdog_app.core.policy.danger import Scene
from watchdog_app.core.policy.incidents import IncidentState, Told
from watchdog_app.core.policy.pausing import by_hand, may_pause

_NEARER = 0.5  # told again, after the cool-down, when the end is this much nearer than was said
_LONG_SAVE_S = 2.0  # what is over sooner is told when it is over
_MOST_WAITING = 64
_MOST_REMEMBERED = 256
Cause = tuple[ProcessKey | None, Scope, str | None]  # who, of what, and on which card


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notice that an outcome has made due; it goes out with the next tick."""

    topic: Topic
    incident: str
    task: ProcessKey | None
    reason: str
    evidence: Evidence


@dataclass(slots=True)
class Telling:
    """What people have been told, over all incidents."""

    # By task (None: no watched task is to blame) and what is running out: when, and how bad it
    # was. The same leak runs into several ceilings at once, and people must hear of it once.
    told: dict[Cause, Told] = field(default_factory=dict)
    waiting: deque[Waiting] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    saving: dict[ProcessKey, str] = field(default_factory=dict)  # the save told of, by agent

    def warning(self, scene: Scene, pausing: bool) -> Decision | None:
        """
        The warning that is due for this ceiling now, if any.

        Args:
            scene: one ceiling.
            pausing: a pause is asked for or awaited, and will be told of by itself.
        """
        incident = scene.incident
        task = blamed(scene)
        key = _cause(scene, task)
        if not scene.strict or not scene.permits(task).notify:
            return None
        if task is None and _nobodys(scene):
            return None
        if task is not None and scene.stands(task):
            return None  # it grows no more, and people know why
        stage = scene.assessment.stage
        if not scene.reading.lethal:
            stage = min(stage, Stage.WARN)  # what kills is news, also right after what slows down
        eta = None if scene.assessment.forecast is None else scene.assessment.forecast.eta_s
        told = incident.told
        if told is not None and not (stage > told.stage and not pausing):
            cool = scene.mono_s - told.mono_s >= scene.settings.stages.cooldown_s
            nearer = eta is not None and told.eta_s is not None and eta < _NEARER * told.eta_s
            if not (cool and nearer):
                return None
        incident.told = now = Told(scene.mono_s, stage, eta)
        before = self.told.get(key)
        if (
            before is not None
            and before.stage >= stage
            and scene.mono_s - before.mono_s < scene.settings.stages.cooldown_s
        ):
            return None  # the same cause, told of on account of another ceiling
        self._remember(key, now)
        more: Evidence = {
            "topic": Topic.WARNING.value,
            "may_save": int(scene.permits(task).checkpoint),
            "may_pause": int(task is not None and may_pause(scene, task)),
            "by_hand": int(task is not None and by_hand(scene, task)),
        }
        if _on_a_card(scene):
            others = [each.name for each in scene.tasks.values() if each is not task]
            more = {**more, "others": ", ".join(others[:3]) or None, "more": len(others[3:])}
        return scene.decide(DecisionKind.NOTIFY, task, scene.assessment.why, more)

    def saves(self, scene: Scene) -> Iterator[Decision]:
        """Word that the first rescue of a danger that people know of takes its time."""
        incident = scene.incident
        if incident.told is None or scene.mono_s - incident.told.mono_s < _LONG_SAVE_S:
            return
        for key, agents in scene.agents.items():
            task = scene.tasks.get(key)
            if task is None or not scene.permits(task).notify:
                continue
            for agent in agents:
                ledger = scene.ledgers[agent.key]
                asked = ledger.pending
                if (
                    asked is None
                    or not agent.saving
                    or scene.mono_s - ledger.asked_mono_s < _LONG_SAVE_S
                    or self.saving.get(agent.key) == asked
                    or (ledger.saved_mono_s or 0.0) >= incident.opened_mono_s
                ):
                    continue
                while len(self.saving) >= _MOST_REMEMBERED:
                    del self.saving[next(iter(self.saving))]
                self.saving[agent.key] = asked
                more: Evidence = {
                    "topic": Topic.SAVING.value,
                    "state_bytes": agent.state_bytes,
                    "expected_s": agent.save_s,
                    "may_pause": int(may_pause(scene, task)),
                    "by_hand": int(by_hand(scene, task)),
                }
                yield scene.decide(DecisionKind.NOTIFY, task, "its rescue takes a while", more)

    def over(self, scene: Scene) -> Decision | None:
        """Word that it did not come to it, where a warning went out before."""
        task = blamed(scene)
        told = self.told.get(_cause(scene, task))
        if (
            scene.incident.told is None
            or told is None
            or told.mono_s < scene.incident.opened_mono_s
        ):
            return None
        if (task is None and scene.incident.attribution.culprits) or not scene.permits(task).notify:
            return None  # who was to blame has ended: that is news of its own, or none
        del self.told[_cause(scene, task)]
        return scene.decide(
            DecisionKind.NOTIFY,
            task,
            phrases.nearing(scene.reading.key.kind, scene.reading.label).replace(
                " is about", " is no longer about", 1
            ),
            {"topic": Topic.OVER.value},
        )

    def forget(self, incident: IncidentState) -> None:
        """As if nobody had been warned of this incident and of whom it blames."""
        incident.told = None
        scope = SPECS[incident.ceiling.kind].scope
        whom = {None, *(culprit.task for culprit in incident.attribution.culprits)}
        for key in [key for key in self.told if key[0] in whom and key[1] is scope]:
            del self.told[key]

    def put(self, waiting: Waiting) -> None:
        """A notice for the next tick."""
        self.waiting.append(waiting)

    def _remember(self, key: Cause, told: Told) -> None:
        self.told.pop(key, None)
        while len(self.told) >= _MOST_REMEMBERED:
            del self.told[next(iter(self.told))]
        self.told[key] = told


def _cause(scene: Scene, task: Task | None) -> Cause:
    return None if task is None else task.key, scene.spec.scope, scene.reading.device


def _nobodys(scene: Scene) -> bool:
    """A battery that no training empties, or heat that harms none, is the system's business."""
    scope = scene.spec.scope
    return scope is Scope.BATTERY or (scope is Scope.HEAT and not scene.reading.lethal)


def blamed(scene: Scene) -> Task | None:
    """The task that a notice about this ceiling is filed under."""
    attribution = scene.incident.attribution
    if attribution.foreign or not attribution.culprits:
        # Nobody's processor time explains the heat of a card: who is on it dies with it.
        there = scene.tasks if _on_a_card(scene) else {}
        return max(there.values(), key=lambda task: task.key in scene.agents, default=None)
    return scene.tasks.get(attribution.culprits[0].task)


def _on_a_card(scene: Scene) -> bool:
    """Heat at which a card switches itself off, and with it what runs on it."""
    reading = scene.reading
    heat = scene.spec.scope is Scope.HEAT and reading.lethal
    return heat and phrases.heated(reading.label).startswith("GPU ")
