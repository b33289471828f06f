"""Open, update, report and close the incidents of faults, slowdowns and stalls."""

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
    """Incidents of the problems that the detectors of `core.diagnosis` find."""

    def __init__(self) -> None:
        self.devices = DeviceProblems()
        self.stalls = StallProblems()

    def update(
        self,
        tick: Tick,
        observation: Observation,
        cpu_percent: Mapping[ProcessKey, float | None],
        incidents: Incidents,
        reporting: Reporting,
    ) -> tuple[list[Decision], list[Incident]]:
        """
        Return the notifications that are due, and the incidents that have ended.

        Args:
            tick: time and settings of this tick.
            observation: one sample of the machine.
            cpu_percent: by task; 100 is one core.
            incidents: open incidents. New ones are added, ended ones are removed.
            reporting: earlier notifications.
        """
        decisions: list[Decision] = []
        closed: list[Incident] = []
        stages = tick.settings.stages
        known = {key: each.to_incident() for key, each in incidents.items() if is_condition(key)}
        for problem in (
            *self.devices.observe(observation, cpu_percent, known),
            *self.stalls.observe(observation, tick.settings.stalls, known),
        ):
            incident = incidents.open(problem.key, problem.label, observation.snapshot, tick.new_id)
            if not problem.at_once:
                _update_incident(incident, problem, tick.mono_s)
            task = problem.tasks[0].task if problem.tasks else None
            found = None if task is None else observation.tasks.get(task)
            notify = tick.permits(found, problem.key.kind, when_off=problem.when_off).notify
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
    Update an incident from the current state of its problem.

    Args:
        incident: the open incident.
        problem: a problem of the same key.
        now: monotonic seconds.
    """
    incident.update_stage(problem.stage, now, problem.why, rising=problem.stage > Stage.OK)
    # empty once the problem is over, because nothing is left to do
    incident.advice = problem.advice
    incident.device_works = problem.device_works
    if problem.stage > Stage.OK:
        incident.work_lost = problem.work_lost
        if problem.tasks:
            incident.attribution = Attribution(problem.tasks, 0.0, 0.0)
