"""Decide which notifications are due: few, in stages, one for each cause."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from watchdog_app.base.records import dataclass
from watchdog_app.core.diagnosis.device_health import rescue_figures
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.notifications import notification
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    Decision,
    DecisionKind,
    Evidence,
    Incident,
    Observation,
    Problem,
    Stage,
    Topic,
)
from watchdog_app.core.model.exits import Cause
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Blame, ResourceKey, ResourceKind, Scope
from watchdog_app.core.policy.danger import Danger, Tick
from watchdog_app.core.policy.incidents import LastReport, OpenIncident
from watchdog_app.core.policy.pausing import can_pause_manually, may_pause

# after the cool-down, report again if the ETA is below this share of the reported one
_NEARER = 0.5
_MOST_WAITING = 64
_MOST_REMEMBERED = 256
ReportCause = tuple[ProcessKey | None, Scope, str | None]  # task, scope of the resource, and GPU


@dataclass(slots=True)
class Reporting:
    """Notifications that people have received, over all incidents."""

    # Time and severity of the last report, by task and scope of the resource. The task is None if
    # no watched task is to blame. One leak can exhaust several resources at once, and people must
    # get one notification.
    reports: dict[ReportCause, LastReport] = field(default_factory=dict)
    # Outcomes to report with the next tick: topic, decision, reason and figures.
    queue: deque[tuple[Topic, Decision, str, Evidence]] = field(
        default_factory=lambda: deque(maxlen=_MOST_WAITING)
    )

    def warning(self, danger: Danger, pausing: bool) -> Decision | None:
        """
        Return the warning that is due for this resource now. None: not due.

        Args:
            danger: one resource.
            pausing: whether a pause is requested or pending. It gets a notification of its own.
        """
        task = blamed_task(danger)
        if not danger.assessment.is_certain or not danger.permits(task).notify:
            return None
        if task is None and danger.spec.scope is Scope.BATTERY:
            return None  # a training does not empty the battery
        if task is not None and danger.is_stopped(task):
            return None  # the task no longer grows, and people know why
        stage = danger.assessment.stage
        if not danger.reading.fatal:
            # so that a fatal danger is still news right after a slowdown
            stage = min(stage, Stage.WARN)
        eta_s = None if danger.assessment.forecast is None else danger.assessment.forecast.eta_s
        if danger.spec.scope is Scope.TIME:
            eta_s = None  # that it comes nearer is no news
        cooldown_s = danger.tick.settings.stages.cooldown_s
        report = LastReport(danger.tick.mono_s, stage, eta_s)
        cause, again_s = _report_cause(danger, task), (cooldown_s, cooldown_s)
        if not self._is_due(danger.incident, report, cause, again_s, escalates=not pausing):
            return None
        more: Evidence = {
            "topic": Topic.WARNING.value,
            "may_save": int(danger.permits(task).checkpoint),
            "may_pause": int(task is not None and may_pause(danger, task)),
            "by_hand": int(task is not None and can_pause_manually(danger, task)),
        }
        if _is_gpu_heat(danger):
            others = [each.name for each in danger.tasks.values() if each is not task]
            more = {**more, "others": ", ".join(others[:3]) or None, "more": len(others[3:])}
        return danger.decide(DecisionKind.NOTIFY, task, danger.assessment.why, more)

    def is_problem_due(self, incident: OpenIncident, problem: Problem, tick: Tick) -> bool:
        """
        Whether a notification of this problem is due now. If so, record it as reported.

        Args:
            incident: incident of the problem.
            problem: current state of the problem.
            tick: time and settings.
        """
        tasks = frozenset(each.task for each in incident.attribution.contributors)
        report = LastReport(tick.mono_s, problem.stage, None, problem.facts, tasks)
        key, again_s = problem.key, (tick.settings.stages.cooldown_s, problem.quiet_s)
        cause = None, SPECS[key.kind].scope, f"{key.kind.value} {key.subject}"
        return problem.ready and self._is_due(incident, report, cause, again_s)

    def _is_due(
        self,
        incident: OpenIncident,
        report: LastReport,
        cause: ReportCause,
        again_s: tuple[float, float],
        *,
        escalates: bool = True,
    ) -> bool:
        """
        Whether a report is due now. If so, record it.

        These are due: the first report and a higher stage. After the cool-down, a much nearer
        exhaustion or a further fact is due as well. One cause is reported once, even if it appears
        in several incidents.

        Args:
            incident: incident of the report.
            report: the report to be made.
            cause: cause of the incident.
            again_s: least seconds until news of the incident, and until a repetition of the same
                cause.
            escalates: whether a higher stage is news.
        """
        cooldown_s, quiet_s = again_s
        last, known = incident.last_report, report.facts
        if last is not None:
            known |= last.facts
            if report.stage <= last.stage or not escalates:
                eta_s, last_eta_s = report.eta_s, last.eta_s
                nearer = (
                    eta_s is not None and last_eta_s is not None and eta_s < _NEARER * last_eta_s
                )
                if report.mono_s - last.mono_s < cooldown_s or not (nearer or known > last.facts):
                    return False
        incident.last_report = replace(report, facts=known)
        before = self.reports.get(cause)
        if (
            before is not None
            and before.stage >= report.stage
            and (before.facts, before.tasks) == (report.facts, report.tasks)
            and report.mono_s - before.mono_s < quiet_s
        ):
            return False
        self.reports.pop(cause, None)
        while len(self.reports) >= _MOST_REMEMBERED:
            del self.reports[next(iter(self.reports))]  # the oldest
        self.reports[cause] = report
        return True

    def resolved(self, danger: Danger) -> Decision | None:
        """Return the notification that the danger is over, if a warning was sent before."""
        incident, task = danger.incident, blamed_task(danger)
        cause = _report_cause(danger, task)
        last = self.reports.get(cause)
        if incident.last_report is None or last is None or last.mono_s < incident.opened_mono_s:
            return None
        if task is None and incident.attribution.contributors:
            return None  # the blamed task has ended; its exit is reported separately if it is news
        if not danger.permits(task).notify:
            return None
        del self.reports[cause]
        near = phrases.nearness_text(danger.reading.key.kind, danger.reading.label)
        reason = near.replace(" is about", " is no longer about", 1)
        return danger.decide(DecisionKind.NOTIFY, task, reason, {"topic": Topic.RESOLVED.value})

    def outcome_notifications(self, dangers: Iterable[Danger]) -> Iterator[Decision]:
        """Yield notifications of outcomes since the last tick, if the danger still exists."""
        by_incident = {danger.incident.id: danger for danger in dangers}
        while self.queue:
            topic, decision, reason, evidence = self.queue.popleft()
            danger = by_incident.get(decision.incident)
            if danger is None:
                continue
            task = None if decision.task is None else danger.tasks.get(decision.task)
            if not danger.permits(task).notify or (decision.task is not None and task is None):
                continue
            if topic is Topic.RESCUED and danger.incident.last_report is None:
                continue  # a silent save: the user got no warning, so needs no report
            if topic is Topic.RESCUE_FAILED and task is not None and danger.is_stopped(task):
                continue  # a paused task cannot answer, and is not in danger
            more = {**evidence, "topic": topic.value}
            yield danger.decide(DecisionKind.NOTIFY, task, reason, more)


def _report_cause(danger: Danger, task: Task | None) -> ReportCause:
    return None if task is None else task.key, danger.spec.scope, danger.reading.device


def blamed_task(danger: Danger) -> Task | None:
    """Return the task that a notification about this resource names. None: the machine."""
    attribution = danger.incident.attribution
    if attribution.mostly_unwatched or not attribution.contributors:
        # CPU time does not explain the heat of a GPU. Every task on the GPU dies with it.
        # A limit of one task is that task's, whether it grows or not.
        affected = danger.tasks if _is_gpu_heat(danger) or danger.spec.blame is Blame.OWNER else {}
        return max(affected.values(), key=lambda task: task.key in danger.agents, default=None)
    return danger.tasks.get(attribution.contributors[0].task)


def _is_gpu_heat(danger: Danger) -> bool:
    """
    Whether the resource is the temperature of a GPU. The GPU switches itself off when too hot.
    """
    return danger.spec.scope is Scope.HEAT and danger.reading.device is not None


def with_notification(
    decision: Decision, observation: Observation, incidents: Mapping[str, Incident]
) -> Decision:
    """
    Return the decision. Add the notification if its kind is NOTIFY.

    Args:
        decision: decision of this tick.
        observation: tasks and agents that the decision may concern.
        incidents: by id.
    """
    if decision.kind is not DecisionKind.NOTIFY:
        return decision
    task = None if decision.task is None else observation.tasks.get(decision.task)
    agents = () if decision.task is None else observation.agents.get(decision.task, ())
    agent = max(agents, key=lambda each: (each.training, each.step or 0), default=None)
    incident = incidents.get(decision.incident)
    try:
        return replace(decision, notification=notification(decision, task, agent, incident))
    except Exception:  # a failure to build a text must not lose the saves and pauses of this tick
        return decision


def exit_notification(
    tick: Tick, task: Task, agent: AgentState | None, cause: Cause, incident: OpenIncident | None
) -> Decision:
    """
    Return the decision to report the end of a task.

    Args:
        tick: the present.
        task: the task's last state.
        agent: the last state of its agent.
        cause: cause of the exit.
        incident: the incident that the exit ended, if any.
    """
    if incident is None:
        incident = OpenIncident("", ResourceKey(ResourceKind.RAM), "", tick.unix_s, tick.mono_s)
    evidence: Evidence = {
        "topic": Topic.EXITED.value,
        "cause": cause.kind.value,
        "worker": cause.worker,
        "name": task.name,
        "rss_bytes": task.rss_bytes,
        "step": None if agent is None else agent.step,
        **rescue_figures(None if agent is None else agent.rescue, tick.unix_s),
    }
    decision = tick.decide(DecisionKind.NOTIFY, incident, task.key, cause.text, evidence)
    return replace(decision, stage=incident.peak)
