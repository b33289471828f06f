"""Incidents of cards, drivers and slowdowns: opened, reported, closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchdog_app.core.diagnosis.device_health import DeviceHealth
from watchdog_app.core.diagnosis.gpu_faults import FaultKind, Finding, Severity, TaskRef
from watchdog_app.core.diagnosis.throttling import ThrottlingDetector
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Attribution,
    Culprit,
    Decision,
    Evidence,
    Incident,
    Stage,
    Topic,
)
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind, is_condition
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.incidents import LastReport, OpenIncident
from watchdog_app.core.policy.policy import Policy
from watchdog_app.core.policy.rules import allowed
from watchdog_app.core.policy.tracker import TaskUsage

_STAGES = {
    Severity.INFO: Stage.WATCH,
    Severity.WARNING: Stage.WARN,
    Severity.CRITICAL: Stage.RESCUE,  # nothing can be saved: but no less than that
}
_ENDED_S = 300.0  # of a task that a fault has ended: who asks after its death is told the cause


# Heat that comes and goes with every epoch opens an incident each time.
_AGAIN_S = {Severity.INFO: 86_400.0, Severity.WARNING: 3600.0, Severity.CRITICAL: 0.0}
_MOST_HIT = 8
_MOST_ADVICE = 3
_LOST = (FaultKind.LOST, FaultKind.NEEDS_RESET)


# What is over when it is over: the rest was an event, and is closed in silence.
_STANDING = frozenset(
    (FaultKind.LOST, FaultKind.NEEDS_RESET, FaultKind.SILENT, FaultKind.DRIVER, FaultKind.UPDATED)
)


class Switches(NamedTuple):
    """Notification settings."""

    settings: Settings
    runtime_dir: str | None  # of this daemon
    protecting: bool  # False: only what has happened is told, not what may


class Findings(NamedTuple):
    """What a look at the health of the machine has led to."""

    decisions: list[Decision]
    closed: list[Incident]
    faults: Mapping[ProcessKey, str]  # tasks that have lost a card lately, and by what


_News = tuple[frozenset[FaultKind], frozenset[ProcessKey]]


@dataclass(slots=True)
class _Open:
    """What stands behind an open incident besides its state."""

    troubles: frozenset[FaultKind]
    reported: frozenset[FaultKind]
    standing: bool = False


class DeviceIncidents:
    """
    Follows the cards, the driver, and what brakes them.

    Its incidents are kept with all others, in the policy, so that they outlive the daemon.
    """

    def __init__(self) -> None:
        self._cards = DeviceHealth()
        self._slowdowns = ThrottlingDetector()
        self._open: dict[ResourceKey, _Open] = {}
        # What was told last of each card, and whom it hit: also when that incident is closed.
        self._reported: dict[ResourceKey, tuple[float, _News]] = {}
        self._faults: dict[ProcessKey, tuple[float, str]] = {}
        # The last word of agents on the cards: of a training that has died with its card, too.
        self._views: dict[ProcessKey, tuple[float, AgentState]] = {}

    def look(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        agents: Mapping[ProcessKey, Sequence[AgentState]],
        usage: Mapping[ProcessKey, TaskUsage],
        *,
        policy: Policy,
        switches: Switches,
        new_id: Callable[[], str],
    ) -> Findings:
        """
        Bring all of it up to date.

        Args:
            snapshot: one look at the machine.
            tasks: of this look.
            agents: by task.
            usage: by task.
            policy: holds the incidents.
            switches: what may be told.
            new_id: makes names for incidents and decisions.
        """
        now = snapshot.mono_s
        training = frozenset(
            key for key, each in agents.items() if any(agent.training for agent in each)
        )
        cpu = {task.key: usage[task.key].cpu_percent for task in tasks if task.key in usage}
        found: dict[ResourceKey, list[Finding]] = {}
        for condition in (
            *self._cards.observe(snapshot, tasks),
            *self._slowdowns.observe(snapshot, tasks, cpu, training),
        ):
            found.setdefault(condition.key, []).append(condition)
        if found or self._faults or self._views or snapshot.hardware.gpus:
            self._remember(snapshot, agents, found)
        decisions: list[Decision] = []
        closed: list[Incident] = []
        everyone = {task.key: task for task in tasks}
        for key, conditions in found.items():
            conditions.sort(key=lambda each: -each.severity)
            incident = self._incident(key, conditions, snapshot, policy, new_id)
            due = self._due(conditions, incident, everyone, switches, now)
            if due is not None:
                decisions.append(self._notification(due, conditions, incident, snapshot, new_id()))
        for key, incident in list(policy.incidents.items()):
            if key in found or not is_condition(key) or key.kind is ResourceKind.STALLED:
                continue  # `core.stall_incidents` closes the last
            incident.observe(Stage.OK, now, incident.why, rising=False)
            incident.advice = ()  # it is cleared: nothing has to be done any more
            incident.device_works = True
            if incident.over(now, switches.settings.stages.settle_s):
                over = self._over(incident, switches, snapshot, new_id)
                decisions += [] if over is None else [over]
                closed.append(incident.public(snapshot.unix_s))
                del policy.incidents[key]
                self._open.pop(key, None)
        return Findings(decisions, closed, {key: text for key, (_, text) in self._faults.items()})

    def _remember(
        self,
        snapshot: Snapshot,
        agents: Mapping[ProcessKey, Sequence[AgentState]],
        found: Mapping[ResourceKey, Sequence[Finding]],
    ) -> None:
        now = snapshot.mono_s
        for condition in (each for conditions in found.values() for each in conditions):
            for holder in condition.tasks if condition.restart else ():
                self._faults[holder.key] = now, f"{condition.label}: {condition.text}"
        if snapshot.hardware.gpus:
            for key, views in agents.items():
                self._views[key] = now, views[0]
        for kept in (self._faults, self._views):
            for key in [key for key, (at, _) in kept.items() if now - at > _ENDED_S]:
                del kept[key]

    def _incident(
        self,
        key: ResourceKey,
        conditions: Sequence[Finding],
        snapshot: Snapshot,
        policy: Policy,
        new_id: Callable[[], str],
    ) -> OpenIncident:
        first = conditions[0]
        troubles = frozenset(each.trouble for each in conditions)
        incident = policy.incidents.get(key)
        if incident is None:
            incident = policy.incidents[key] = OpenIncident(
                id=new_id(),
                resource=key,
                label=first.label,
                opened_unix_s=snapshot.unix_s,
                opened_mono_s=snapshot.mono_s,
            )
        known = self._open.get(key)
        if known is None:
            # What an earlier daemon has told is not told again.
            reported = troubles if incident.last_report is not None else frozenset()
            known = self._open[key] = _Open(troubles, reported)
        known.troubles = troubles
        known.standing = known.standing or bool(troubles & _STANDING)
        why = "; ".join(dict.fromkeys(each.text for each in conditions))
        incident.observe(_STAGES[first.severity], snapshot.mono_s, why, rising=True)
        cures = dict.fromkeys(each.remedy for each in conditions)
        incident.advice = tuple(cures)[:_MOST_ADVICE]
        incident.device_works = all(each.device_works for each in conditions)
        incident.work_lost = any(each.work_lost for each in conditions)
        hit = _hit(conditions)
        if hit:
            culprits = tuple(Culprit(holder.key, holder.name, 0.0, 0.0) for holder in hit)
            incident.attribution = Attribution(culprits, 0.0, 0.0)
        return incident

    def _due(
        self,
        conditions: Sequence[Finding],
        incident: OpenIncident,
        tasks: Mapping[ProcessKey, Task],
        switches: Switches,
        now: float,
    ) -> TaskRef | None:
        """The task to name in the notification that is due now; None: none is due."""
        key, last = incident.resource, incident.last_report
        known = self._open[key]
        if last is None:
            known.reported = frozenset()
        elif incident.stage <= last.stage and (
            known.troubles <= known.reported
            or now - last.mono_s < switches.settings.stages.cooldown_s
        ):
            return None
        hit = [TaskRef(each.task, each.name) for each in incident.attribution.culprits]
        first = hit[0] if hit else _NOBODY
        lost = conditions[0].trouble in _LOST
        if not (switches.protecting or lost) or not _may_tell(key, tasks.get(first.key), switches):
            return None
        known.reported |= known.troubles
        incident.last_report = LastReport(now, incident.stage, None)
        news = (known.troubles, frozenset(holder.key for holder in hit))
        at, before = self._reported.get(key, (float("-inf"), None))
        if last is None and before == news and now - at < _AGAIN_S[conditions[0].severity]:
            return None  # what comes and goes is told once
        self._reported[key] = now, news
        return first

    def _notification(
        self,
        whom: TaskRef,
        conditions: Sequence[Finding],
        incident: OpenIncident,
        snapshot: Snapshot,
        ident: str,
    ) -> Decision:
        first = conditions[0]
        hit = [each for each in incident.attribution.culprits if each.task != whom.key]
        view = self._views.get(whom.key)
        rescue = None if view is None else view[1].rescue
        gone = first.trouble in _LOST
        braked = incident.resource.kind is not ResourceKind.GPU_HEALTH
        topic = Topic.GPU_LOST if gone else Topic.SLOWED if braked else Topic.FAULT
        evidence: Evidence = {
            "topic": topic.value,
            "trouble": first.trouble.value,
            "label": first.label,
            "fatal": int(first.restart),
            "card_works": int(not incident.work_lost),
            "name": whom.name or None,
            "others": ", ".join(each.name for each in hit[:3]) or None,
            "more": max(0, len(hit) - 3),
            "step": None if view is None else view[1].step,
            "had_agent": int(view is not None),
            "path": None if rescue is None else rescue.path,
            "rescue_step": None if rescue is None else rescue.step,
            "rescue_age_s": None
            if rescue is None
            else max(0.0, snapshot.unix_s - rescue.saved_unix_s),
        }
        filed = None if whom is _NOBODY else whom.key
        return incident.notify(ident, filed, snapshot, incident.why, evidence)

    def _over(
        self,
        incident: OpenIncident,
        switches: Switches,
        snapshot: Snapshot,
        new_id: Callable[[], str],
    ) -> Decision | None:
        key = incident.resource
        known = self._open.get(key)
        if incident.last_report is None or known is None or not known.standing:
            return None
        if not switches.protecting or not _may_tell(key, None, switches):
            return None
        if not _answers(key, snapshot):
            return None  # it is gone from the readings: nobody knows whether it is well
        reason = f"{incident.label} answers again"
        evidence: Evidence = {"topic": Topic.OVER.value, "label": incident.label}
        return incident.notify(new_id(), None, snapshot, reason, evidence)


def _answers(key: ResourceKey, snapshot: Snapshot) -> bool:
    """Whether this card answers now; of the driver: whether it answers about any."""
    if key.kind is not ResourceKind.GPU_HEALTH:
        return True
    return any(
        gpu.state in (GpuState.OK, GpuState.ASLEEP) and key.subject in (gpu.id, "driver")
        for gpu in snapshot.hardware.gpus
    )


_NOBODY = TaskRef(ProcessKey(0, 0), "")


def _hit(conditions: Sequence[Finding]) -> list[TaskRef]:
    """The tasks that are affected, those by the worst finding first, each once."""
    return list(dict.fromkeys(holder for each in conditions for holder in each.tasks))[:_MOST_HIT]


def _may_tell(key: ResourceKey, task: Task | None, switches: Switches) -> bool:
    actions, rules = switches.settings.actions, switches.settings.rules
    return allowed(actions, rules, task, key.kind, switches.runtime_dir).notify
