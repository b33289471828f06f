"""
The stage of a resource: how far it has come towards its end.

The forecast gives the first stage (`core.forecast.stages`). Then follow, in this order:
`by_evidence` (a cheap save, a stall at the limit), `by_expectation` (a need that no trend shows),
and `by_pace` where an incident is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Assessment, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import SPECS, Reading, Scope
from watchdog_app.core.model.settings import StageSettings
from watchdog_app.core.policy.anticipation import Expected
from watchdog_app.core.policy.incidents import OpenIncident

PACE_WINDOW_S = 2.0
_NEAR = 0.8  # of the limit: below it even fast growth leaves time for better evidence
_TRAINS_STEPS = 20  # from here on it trains: tracing, slots and caches of the first steps are made
_CHEAP = 0.1  # of `save_floor_s`
_AT_THE_LIMIT = 0.97
_NO_TIME_S = 0.6  # some samples and one step


def by_evidence(
    assessment: Assessment,
    reading: Reading,
    agents: Mapping[ProcessKey, Sequence[AgentState]],
    stages: StageSettings,
) -> Assessment:
    """
    The assessment with what is known besides the forecast.

    Args:
        assessment: by the forecast alone.
        reading: of the resource.
        agents: under the resource, by task.
        stages: settings.
    """
    return while_stalled(with_cheap_save(assessment, reading, agents, stages), reading)


def with_cheap_save(
    assessment: Assessment,
    reading: Reading,
    agents: Mapping[ProcessKey, Sequence[AgentState]],
    stages: StageSettings,
) -> Assessment:
    """
    The assessment with the eager tier opened for a training whose save takes next to no time.

    The forecast does not know which task grows, so growth has to last before it counts. A task that
    trains has its imports behind it. If its save takes tenths of a second, a doubtful forecast is
    enough.

    Args:
        assessment: by the forecast alone.
        reading: of the resource.
        agents: under the resource, by task.
        stages: settings.
    """
    forecast = assessment.forecast
    ends = reading.fatal or reading.throttles
    if assessment.rescue or forecast is None or not ends or assessment.ratio < _NEAR:
        return assessment
    for agent in (agent for each in agents.values() for agent in each):
        save_s, step_s = agent.save_s, agent.step_s
        if save_s is None or step_s is None or not agent.training:
            continue
        if (agent.step or 0) < _TRAINS_STEPS or save_s > _CHEAP * stages.save_floor_s:
            continue
        due_s = max(stages.save_floor_s, (save_s + step_s) * stages.save_safety_factor)
        if forecast.eta_s < due_s:
            stage = max(assessment.stage, Stage.RESCUE)
            return replace(assessment, rescue=True, stage=stage)
    return assessment


def while_stalled(assessment: Assessment, reading: Reading) -> Assessment:
    """
    The stage of a group that is throttled at memory.high or memory.swap.high, and of a machine with
    almost no memory left.

    Nothing grows any more there, so no trend shows it, and whoever kills for pressure comes next.
    RAM alone is told of, not saved for, while there is swap.
    """
    if not reading.stalled:
        return assessment
    ends = reading.fatal or reading.throttles
    words = "its programs stand still" if reading.throttles else "next to nothing is left"
    return replace(
        assessment,
        stage=max(assessment.stage, Stage.RESCUE if ends else Stage.WARN),
        notify=assessment.notify or assessment.ratio >= _NEAR,
        rescue=assessment.rescue or ends,
        why=f"{assessment.why}; {words}",
    )


def by_expectation(assessment: Assessment, expected: Expected | None) -> Assessment:
    """
    The assessment raised by an expected need, which is reported, and work is saved.

    Args:
        assessment: by the trend alone.
        expected: the need; None leaves it as it is.
    """
    if expected is None:
        return assessment
    return replace(
        assessment,
        stage=max(assessment.stage, expected.stage),
        why=f"{expected.why}; {assessment.why}",
        notify=True,
        rescue=assessment.rescue or expected.stage >= Stage.RESCUE,
        expected=expected.why,
    )


def by_pace(
    assessment: Assessment, reading: Reading, incident: OpenIncident, pause_s: float
) -> Assessment:
    """
    The assessment with the stage that follows from the pace as well. The last step.

    Args:
        assessment: on strict evidence where `notify` is set.
        reading: of the resource.
        incident: with its pace brought up to date.
        pause_s: stage hold begins when the end may be nearer than this.
    """
    spec = SPECS[reading.key.kind]
    if not reading.fatal:
        # A pause is for what kills; here the worst is that the machine gets slow. Heat that slows
        # down loses nothing, so that nothing is saved either.
        most = Stage.WARN if spec.scope is Scope.HEAT else Stage.RESCUE
        return replace(assessment, stage=min(assessment.stage, most))
    if _at_the_end(incident, reading, max(pause_s, spec.pause_s)):
        return replace(assessment, stage=Stage.HOLD)
    return assessment


def _at_the_end(incident: OpenIncident, reading: Reading, pause_s: float) -> bool:
    """
    The very end by the pace of the training, where saves slow down what the trend can see.

    A training that is saved after every step grows a tenth as fast as it would: the trend says
    ten seconds, and the next three steps kill it.
    """
    left_s = incident.left_s(reading)
    near = reading.limit > 0 and reading.used >= _AT_THE_LIMIT * reading.limit
    return left_s <= (pause_s if near else min(pause_s, _NO_TIME_S))
