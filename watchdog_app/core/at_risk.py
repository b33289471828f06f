"""Whose work is at risk under a ceiling, and what saving it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchdog_app.core.outlook import Assessment, CeilingReading, Costs, Stage
from watchdog_app.core.records import AgentView, ProcessKey, Task
from watchdog_app.core.settings import StageSettings

_NEAR = 0.8  # of the limit: below it even fast growth leaves time for better evidence
_TRAINS_STEPS = 20  # from here on it trains: tracing, slots and caches of the first steps are made
_CHEAP = 0.1  # of `rescue_floor_s`


def agents_by_task(
    tasks: Sequence[Task], agents: Mapping[ProcessKey, AgentView]
) -> dict[ProcessKey, list[AgentView]]:
    """Agents by the task that has their process as a member."""
    found: dict[ProcessKey, list[AgentView]] = {}
    if agents:
        for task in tasks:
            inside = [agents[member.key] for member in task.members if member.key in agents]
            if inside:
                found[task.key] = inside
    return found


def with_cheap_save(
    assessment: Assessment,
    reading: CeilingReading,
    agents: Mapping[ProcessKey, Sequence[AgentView]],
    stages: StageSettings,
) -> Assessment:
    """
    The eager tier opened by a training that saves in next to no time.

    The tiers of the forecast weigh evidence without knowing who grows: what begins with a process
    has to last before it counts. But a task that already trains has its imports behind it, and
    against a save of some tenths of a second a doubtful forecast is evidence enough.
    """
    forecast = assessment.forecast
    ends = reading.lethal or reading.throttles
    if assessment.rescue or forecast is None or not ends or assessment.ratio < _NEAR:
        return assessment
    for agent in (agent for each in agents.values() for agent in each):
        save_s, step_s = agent.save_s, agent.step_s
        if save_s is None or step_s is None or not agent.training:
            continue
        if (agent.step or 0) < _TRAINS_STEPS or save_s > _CHEAP * stages.rescue_floor_s:
            continue
        due_s = max(stages.rescue_floor_s, (save_s + step_s) * stages.safety_factor)
        if forecast.eta_s < due_s:
            stage = max(assessment.stage, Stage.RESCUE)
            return replace(assessment, rescue=True, stage=stage)
    return assessment


def while_stalled(assessment: Assessment, reading: CeilingReading) -> Assessment:
    """
    The stage of a group whose programs stand still at memory.high or memory.swap.high, and of a
    machine that has next to nothing left.

    Nothing grows any more there, so no trend shows it, and whoever kills for pressure comes next.
    RAM alone is told of, not saved for, while there is swap.
    """
    if not reading.stalled:
        return assessment
    ends = reading.lethal or reading.throttles
    words = "its programs stand still" if reading.throttles else "next to nothing is left"
    return replace(
        assessment,
        stage=max(assessment.stage, Stage.RESCUE if ends else Stage.WARN),
        notify=assessment.notify or assessment.ratio >= _NEAR,
        rescue=assessment.rescue or ends,
        why=f"{assessment.why}; {words}",
    )


def costs(agents: Mapping[ProcessKey, Sequence[AgentView]]) -> Costs:
    """The dearest save and the longest step under a ceiling; None where nobody knows."""
    training = [agent for each in agents.values() for agent in each if agent.training]
    saves = [agent.save_s for agent in training if agent.save_s is not None]
    steps = [agent.step_s for agent in training if agent.step_s is not None]
    return Costs(max(saves, default=None), max(steps, default=None))
