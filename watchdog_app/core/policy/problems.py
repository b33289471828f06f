"""Incidents of what is broken, slows down or is stalled: opened, followed, reported and closed."""

from __future__ import annotations

from collections.abc import Mapping

from watchdog_app.core.diagnosis.problems import DeviceProblems, StallProblems
from watchdog_app.core.model.decisions import (
    Attribution,
    Decision,
    DecisionKind,
    Incident,
    Observation,
    Problem,
    Stage,
)
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import is_condition
from watchdog_app.core.policy.danger import Tick
from watchdog_app.core.policy.incidents import Incidents, OpenIncident
from watchdog_app.core.policy.reporting import Reporting


class Problems:
    """What the detectors of `core.diagnosis` find, as incidents."""

    def __init__(self) -> None:
        self.devices = DeviceProblems()
        self.stalls = StallProblems()

    def update(
        self,
        tick: Tick,
        look: Observation,
        cpu_percent: Mapping[ProcessKey, float | None],
        incidents: Incidents,
        reporting: Reporting,
    ) -> tuple[list[Decision], list[Incident]]:
        """
        What is to be reported, and the incidents that have ended.

        Args:
            tick: the moment.
            look: at the machine.
            cpu_percent: by task, 100 is one core.
            incidents: open ones; new ones are added, and those that have ended are removed.
            reporting: what people were told.
        """
        decisions: list[Decision] = []
        closed: list[Incident] = []
        stages = tick.settings.stages
        known = {key: each.to_incident() for key, each in incidents.items() if is_condition(key)}
        for problem in (
            *self.devices.observe(look, cpu_percent, known),
            *self.stalls.observe(look, tick.settings.stalls, known),
        ):
            incident = incidents.open(problem.key, problem.label, look.snapshot, tick.new_id)
            if not problem.at_once:
                _update_incident(incident, problem, tick.mono_s)
            task = problem.tasks[0].task if problem.tasks else None
            whom = None if task is None else look.tasks.get(task)
            notify = tick.permits(whom, problem.key.kind, when_off=problem.when_off).notify
            if problem.stage is not Stage.OK:
                notify = notify and reporting.is_problem_due(
                    incident, problem, tick.mono_s, stages.cooldown_s
                )
            elif problem.at_once or incident.is_over(tick.mono_s, stages.settle_s):
                notify = notify and problem.reason != "" and incident.last_report is not None
                closed.append(incident.to_incident(tick.unix_s))
                del incidents[problem.key]
            else:
                continue
            if notify:
                kind, evidence = DecisionKind.NOTIFY, problem.evidence
                decisions.append(tick.decide(kind, incident, task, problem.reason, evidence))
        return decisions, closed


def _update_incident(incident: OpenIncident, problem: Problem, now: float) -> None:
    """
    Bring an incident to what is wrong now.

    Args:
        incident: open.
        problem: of the same key.
        now: monotonic seconds.
    """
    incident.update_stage(problem.stage, now, problem.why, rising=problem.stage > Stage.OK)
    incident.advice = problem.advice  # none when it is over: nothing has to be done any more
    incident.device_works = problem.device_works
    if problem.stage > Stage.OK:
        incident.work_lost = problem.work_lost
        if problem.tasks:
            incident.attribution = Attribution(problem.tasks, 0.0, 0.0)
