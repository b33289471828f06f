"""
Incidents of stalled trainings: opened, diagnosed, reported, closed.

The daemon is asked for a dump of the task's threads (`Findings.wanted`) and hands it over with
`stands`. The causes found in it become the incident's reason and advice. The notification
waits some seconds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.diagnosis.stalls import Stall, StallDetector
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState, ThreadDump
from watchdog_app.core.model.decisions import (
    Attribution,
    Culprit,
    Decision,
    Evidence,
    Incident,
    Stage,
    Topic,
)
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.policy.device_incidents import Switches
from watchdog_app.core.policy.incidents import LastReport, OpenIncident
from watchdog_app.core.policy.policy import Policy
from watchdog_app.core.policy.rules import allowed, unprotected

# What may hold a training up is thought about when one stands still; imported then, too.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason
_PICTURE_S = 6.0  # so long the notification waits for it
_AGAIN_S = 60.0  # while it lasts: what holds it up may have become something else
_AWAY_S = 30.0  # an agent whose connection broke comes again within some seconds
_MOST_ADVICE = 2


class Findings(NamedTuple):
    """What a look has led to."""

    decisions: list[Decision]
    closed: list[Incident]
    wanted: tuple[ProcessKey, ...]  # tasks whose threads are to be looked at now


class _Moment(NamedTuple):
    """What notifications need of one look."""

    snapshot: Snapshot
    switches: Switches
    new_id: Callable[[], str]


@dataclass(slots=True)
class _Open:
    """What stands behind an open incident besides its state."""

    task: ProcessKey
    step: int | None
    phase: str | None
    seen_mono_s: float  # its agent, last
    stall: Stall | None = None  # None: an earlier daemon found it
    asked_mono_s: float | None = None
    picture: ThreadDump | None = None
    found: tuple[StallReason, ...] = ()


@dataclass(slots=True)
class StallIncidents:
    """Kept with all others, in the policy, so that they outlive the daemon."""

    _stalls: StallDetector = field(default_factory=StallDetector)
    _open: dict[ResourceKey, _Open] = field(default_factory=dict)

    def look(
        self,
        snapshot: Snapshot,
        tasks: Sequence[Task],
        agents: Mapping[ProcessKey, Sequence[AgentState]],
        *,
        policy: Policy,
        switches: Switches,
        new_id: Callable[[], str],
    ) -> Findings:
        """
        Bring all of it up to date.

        Args:
            snapshot: gives the time.
            tasks: of this look.
            agents: by task.
            policy: holds the incidents.
            switches: what may be told.
            new_id: makes names for incidents and decisions.
        """
        now = snapshot.mono_s
        moment = _Moment(snapshot, switches, new_id)
        for stall in self._stalls.follow(now, tasks, agents, switches.settings.stalls):
            self._begin(stall, snapshot, policy, new_id)
        decisions: list[Decision] = []
        closed: list[Incident] = []
        wanted: list[ProcessKey] = []
        if not any(key.kind is ResourceKind.STALLED for key in policy.incidents):
            return Findings(decisions, closed, ())
        views = {view.key: (key, view) for key, each in agents.items() for view in each}
        everyone = {task.key: task for task in tasks}
        for key, incident in list(policy.incidents.items()):
            if key.kind is not ResourceKind.STALLED:
                continue
            known = self._known(key, incident, views, now)
            moved = self._moved(known, views.get(_agent(key)), everyone, now)
            if moved is not None:
                over = self._over(incident, moved, everyone, moment)
                decisions += [] if over is None else [over]
                closed.append(incident.public(snapshot.unix_s))
                del policy.incidents[key]
                self._open.pop(key, None)
                continue
            task = everyone.get(known.task)
            if task is None:
                continue
            if known.asked_mono_s is None or now - known.asked_mono_s >= _AGAIN_S:
                known.asked_mono_s = now
                wanted.append(task.key)
            notify = self._notification(known, incident, task, moment)
            decisions += [] if notify is None else [notify]
        return Findings(decisions, closed, tuple(wanted))

    def stands(
        self,
        task: Task,
        picture: ThreadDump,
        *,
        policy: Policy,
        swap: SwapTraffic,
        card_fault: str | None,
    ) -> None:
        """
        What the threads of a task do, as somebody has seen it just now.

        Args:
            task: one of those that were `wanted`.
            picture: of its threads.
            policy: holds the incidents.
            swap: of the machine.
            card_fault: what befell the card that it is on.
        """
        present = {member.key.pid for member in task.members}
        for key, known in self._open.items():
            incident = policy.incidents.get(key)
            if known.task != task.key or incident is None:
                continue
            stall = known.stall
            lost = tuple(sorted(self._stalls.members(_agent(key)) - present))
            known.picture = picture
            from watchdog_app.core.diagnosis.stall_reasons import StallContext, stall_reasons

            known.found = stall_reasons(
                picture,
                StallContext(0.0 if stall is None else stall.cores, swap, card_fault, lost),
            )
            incident.why = _why(incident, known)
            incident.advice = tuple(each.remedy for each in known.found)[:_MOST_ADVICE]

    def lines(self) -> Mapping[ProcessKey, tuple[str, ...]]:
        """By task: what each of its threads does, in words, as it was last seen."""
        if not any(known.picture is not None for known in self._open.values()):
            return {}
        from watchdog_app.core.explain import status

        return {
            known.task: (*_because(known), *status.thread_lines(known.picture))
            for known in self._open.values()
            if known.picture is not None
        }

    def _begin(
        self, stall: Stall, snapshot: Snapshot, policy: Policy, new_id: Callable[[], str]
    ) -> None:
        agent = stall.agent
        key = ResourceKey(ResourceKind.STALLED, f"{agent.key.pid}:{agent.key.start_time}")
        self._open[key] = _Open(
            stall.task.key, agent.step, agent.phase, snapshot.mono_s, stall=stall
        )
        if key in policy.incidents:  # an earlier daemon's
            return
        incident = policy.incidents[key] = OpenIncident(
            id=new_id(),
            resource=key,
            label=f"{stall.task.name} stands still",
            opened_unix_s=snapshot.unix_s,
            opened_mono_s=snapshot.mono_s,
        )
        why = (
            f"no step since step {stall.step} for {format_duration(stall.silent_s)}; "
            f"one takes {phrases.step_time(stall.step_s)}"
        )
        incident.observe(Stage.WARN, snapshot.mono_s, why, rising=True)
        culprit = Culprit(stall.task.key, stall.task.name, 0.0, 0.0)
        incident.attribution = Attribution((culprit,), 0.0, 0.0)

    def _known(
        self,
        key: ResourceKey,
        incident: OpenIncident,
        views: Mapping[ProcessKey, tuple[ProcessKey, AgentState]],
        now: float,
    ) -> _Open:
        known = self._open.get(key)
        if known is None:
            # Of an earlier daemon: where it stands is learned when its agent comes again.
            culprits = incident.attribution.culprits
            task = culprits[0].task if culprits else _agent(key)
            known = self._open[key] = _Open(task, None, None, now)
        found = views.get(_agent(key))
        if found is not None:
            known.seen_mono_s = now
            if known.step is None and found[1].reported_mono_s is not None:
                known.step, known.phase = found[1].step, found[1].phase
        return known

    @staticmethod
    def _moved(
        known: _Open,
        found: tuple[ProcessKey, AgentState] | None,
        tasks: Mapping[ProcessKey, Task],
        now: float,
    ) -> str | None:
        """Why the stall ended, "" if that needs no report; None: it lasts."""
        if known.task not in tasks:
            return ""
        if found is None:
            return "" if now - known.seen_mono_s > _AWAY_S else None
        view = found[1]
        if view.reported_mono_s is None:
            return None  # it has just come again, and has not said anything yet
        if not view.training:
            return ""
        if (view.step, view.phase) == (known.step, known.phase):
            return None
        return f"it makes steps again, and is at step {view.step}"

    @staticmethod
    def _notification(
        known: _Open,
        incident: OpenIncident,
        task: Task,
        moment: _Moment,
    ) -> Decision | None:
        stall = known.stall
        if stall is None or incident.last_report is not None:
            return None
        waited = moment.snapshot.mono_s - incident.opened_mono_s
        if known.picture is None and waited < _PICTURE_S:
            return None
        if not _may_tell(task, moment.switches):
            return None
        incident.last_report = LastReport(moment.snapshot.mono_s, Stage.WARN, None)
        first = known.found[0] if known.found else None
        evidence: Evidence = {
            "topic": Topic.STALLED.value,
            "name": task.name,
            "step": stall.step,
            "step_s": stall.step_s,
            "silent_s": stall.silent_s + waited,
            "cores": stall.cores,
            "looked": int(known.picture is not None),
            "cause": None if first is None else first.why.value,
            "likely": None if first is None else first.text,
            "reasons": None if first is None else "; ".join(first.reasons),
            "cure": None if first is None else first.remedy,
            "at": _place(known),
        }
        reason = f"{task.name} has made no step for {stall.silent_s + waited:.0f} s"
        reason += "" if first is None else f"; most likely {first.text}"
        return incident.notify(moment.new_id(), task.key, moment.snapshot, reason, evidence)

    @staticmethod
    def _over(
        incident: OpenIncident,
        moved: str,
        tasks: Mapping[ProcessKey, Task],
        moment: _Moment,
    ) -> Decision | None:
        culprits = incident.attribution.culprits
        task = tasks.get(culprits[0].task) if culprits else None
        if (
            not moved
            or task is None
            or incident.last_report is None
            or not _may_tell(task, moment.switches)
        ):
            return None
        evidence: Evidence = {"topic": Topic.OVER.value, "label": task.name, "name": task.name}
        return incident.notify(moment.new_id(), task.key, moment.snapshot, moved, evidence)


_NOBODY = ProcessKey(0, 0)


def _agent(key: ResourceKey) -> ProcessKey:
    """The process that holds the agent, of the subject that `_begin` gave it."""
    pid, _, start_time = key.subject.partition(":")
    if not (pid.isdigit() and start_time.isdigit()):
        return _NOBODY
    return ProcessKey(int(pid), int(start_time))


def _may_tell(task: Task, switches: Switches) -> bool:
    settings = switches.settings if switches.protecting else unprotected(switches.settings)
    kind = ResourceKind.STALLED
    return allowed(settings.actions, settings.rules, task, kind, switches.runtime_dir).notify


def _why(incident: OpenIncident, known: _Open) -> str:
    """What is known of it, in a clause or two."""
    begun = incident.why.partition(". ")[0]
    if not known.found:
        return f"{begun}. Why is not known; {_where(known)}"
    first = known.found[0]
    return f"{begun}. Most likely {first.text} ({plain(first.reasons[0], 200)})"


def _because(known: _Open) -> Iterator[str]:
    """All that speaks for the first suspect."""
    for suspect in known.found[:1]:
        yield f"Most likely {suspect.text}:"
        yield from (f"- {plain(reason, 200)}" for reason in suspect.reasons)


def _place(known: _Open) -> str | None:
    if known.picture is None:
        return None
    from watchdog_app.core.explain import status

    return status.training_line(known.picture)


def _where(known: _Open) -> str:
    place = _place(known)
    return "its threads say nothing" if place is None else f"it is at {place}"
