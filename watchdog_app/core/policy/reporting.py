"""Which notifications are due: seldom, staged, one for each cause."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from watchdog_app.core.explain import phrases
from watchdog_app.core.model.decisions import Decision, DecisionKind, Evidence, Stage, Topic
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Scope
from watchdog_app.core.policy.danger import Danger
from watchdog_app.core.policy.incidents import LastReport, OpenIncident
from watchdog_app.core.policy.pausing import by_hand, may_pause

_NEARER = 0.5  # told again, after the cool-down, when the end is this much nearer than was said
_LONG_SAVE_S = 2.0  # what is over sooner is told when it is over
_MOST_WAITING = 64
_MOST_REMEMBERED = 256
Cause = tuple[ProcessKey | None, Scope, str | None]  # who, of what, and on which card


@dataclass(frozen=True, slots=True)
class PendingNotification:
    """A notification that an outcome has made due; it goes out with the next tick."""

    topic: Topic
    incident: str
    task: ProcessKey | None
    reason: str
    evidence: Evidence


@dataclass(slots=True)
class Reporting:
    """What people have been told, over all incidents."""

    # By task (None: no watched task is to blame) and what is running out: when, and how bad it
    # was. The same leak runs into several resources at once, and people must hear of it once.
    reports: dict[Cause, LastReport] = field(default_factory=dict)
    waiting: deque[PendingNotification] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    saving: dict[ProcessKey, str] = field(default_factory=dict)  # the save told of, by agent

    def warning(self, danger: Danger, pausing: bool) -> Decision | None:
        """
        The warning that is due for this resource now, if any.

        Args:
            danger: one resource.
            pausing: a pause is asked for or awaited, and will be told of by itself.
        """
        incident = danger.incident
        task = blamed(danger)
        key = _cause(danger, task)
        if not danger.strict or not danger.permits(task).notify:
            return None
        if task is None and _nobodys(danger):
            return None
        if task is not None and danger.stands(task):
            return None  # it grows no more, and people know why
        stage = danger.assessment.stage
        if not danger.reading.fatal:
            stage = min(stage, Stage.WARN)  # what kills is news, also right after what slows down
        eta = None if danger.assessment.forecast is None else danger.assessment.forecast.eta_s
        last = incident.last_report
        if last is not None and not (stage > last.stage and not pausing):
            cool = danger.mono_s - last.mono_s >= danger.settings.stages.cooldown_s
            nearer = eta is not None and last.eta_s is not None and eta < _NEARER * last.eta_s
            if not (cool and nearer):
                return None
        incident.last_report = now = LastReport(danger.mono_s, stage, eta)
        before = self.reports.get(key)
        if (
            before is not None
            and before.stage >= stage
            and danger.mono_s - before.mono_s < danger.settings.stages.cooldown_s
        ):
            return None  # the same cause, told of on account of another resource
        self._remember(key, now)
        more: Evidence = {
            "topic": Topic.WARNING.value,
            "may_save": int(danger.permits(task).checkpoint),
            "may_pause": int(task is not None and may_pause(danger, task)),
            "by_hand": int(task is not None and by_hand(danger, task)),
        }
        if _on_a_card(danger):
            others = [each.name for each in danger.tasks.values() if each is not task]
            more = {**more, "others": ", ".join(others[:3]) or None, "more": len(others[3:])}
        return danger.decide(DecisionKind.NOTIFY, task, danger.assessment.why, more)

    def saves(self, danger: Danger) -> Iterator[Decision]:
        """Word that the first rescue of a danger that people know of takes its time."""
        incident = danger.incident
        if (
            incident.last_report is None
            or danger.mono_s - incident.last_report.mono_s < _LONG_SAVE_S
        ):
            return
        for key, agents in danger.agents.items():
            task = danger.tasks.get(key)
            if task is None or not danger.permits(task).notify:
                continue
            for agent in agents:
                schedule = danger.schedules[agent.key]
                asked = schedule.pending
                if (
                    asked is None
                    or not agent.saving
                    or danger.mono_s - schedule.asked_mono_s < _LONG_SAVE_S
                    or self.saving.get(agent.key) == asked
                    or (schedule.saved_mono_s or 0.0) >= incident.opened_mono_s
                ):
                    continue
                while len(self.saving) >= _MOST_REMEMBERED:
                    del self.saving[next(iter(self.saving))]
                self.saving[agent.key] = asked
                more: Evidence = {
                    "topic": Topic.SAVING.value,
                    "state_bytes": agent.state_bytes,
                    "expected_s": agent.save_s,
                    "may_pause": int(may_pause(danger, task)),
                    "by_hand": int(by_hand(danger, task)),
                }
                yield danger.decide(DecisionKind.NOTIFY, task, "its rescue takes a while", more)

    def over(self, danger: Danger) -> Decision | None:
        """Word that it did not come to it, where a warning went out before."""
        task = blamed(danger)
        last = self.reports.get(_cause(danger, task))
        if (
            danger.incident.last_report is None
            or last is None
            or last.mono_s < danger.incident.opened_mono_s
        ):
            return None
        if (task is None and danger.incident.attribution.culprits) or not danger.permits(
            task
        ).notify:
            return None  # who was to blame has ended: that is news of its own, or none
        del self.reports[_cause(danger, task)]
        return danger.decide(
            DecisionKind.NOTIFY,
            task,
            phrases.nearing(danger.reading.key.kind, danger.reading.label).replace(
                " is about", " is no longer about", 1
            ),
            {"topic": Topic.OVER.value},
        )

    def forget(self, incident: OpenIncident) -> None:
        """Forget that this incident and its tasks were reported."""
        incident.last_report = None
        scope = SPECS[incident.resource.kind].scope
        whom = {None, *(culprit.task for culprit in incident.attribution.culprits)}
        for key in [key for key in self.reports if key[0] in whom and key[1] is scope]:
            del self.reports[key]

    def put(self, waiting: PendingNotification) -> None:
        """A notification for the next tick."""
        self.waiting.append(waiting)

    def _remember(self, key: Cause, last: LastReport) -> None:
        self.reports.pop(key, None)
        while len(self.reports) >= _MOST_REMEMBERED:
            del self.reports[next(iter(self.reports))]
        self.reports[key] = last


def _cause(danger: Danger, task: Task | None) -> Cause:
    return None if task is None else task.key, danger.spec.scope, danger.reading.device


def _nobodys(danger: Danger) -> bool:
    """A battery that no training empties, or heat that harms none, is the system's business."""
    scope = danger.spec.scope
    return scope is Scope.BATTERY or (scope is Scope.HEAT and not danger.reading.fatal)


def blamed(danger: Danger) -> Task | None:
    """The task that a notification about this resource is filed under."""
    attribution = danger.incident.attribution
    if attribution.foreign or not attribution.culprits:
        # Nobody's processor time explains the heat of a card: who is on it dies with it.
        there = danger.tasks if _on_a_card(danger) else {}
        return max(there.values(), key=lambda task: task.key in danger.agents, default=None)
    return danger.tasks.get(attribution.culprits[0].task)


def _on_a_card(danger: Danger) -> bool:
    """Heat at which a card switches itself off, and with it what runs on it."""
    reading = danger.reading
    heat = danger.spec.scope is Scope.HEAT and reading.fatal
    return heat and phrases.heated(reading.label).startswith("GPU ")
