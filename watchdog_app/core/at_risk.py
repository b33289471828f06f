"""Whose work is at risk under a ceiling, and what saving it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchdog_app.core.outlook import Costs
from watchdog_app.core.records import AgentView, ProcessKey, Task


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


def costs(agents: Mapping[ProcessKey, Sequence[AgentView]]) -> Costs:
    """The dearest save and the longest step under a ceiling; None where nobody knows."""
    training = [agent for each in agents.values() for agent in each if agent.training]
    saves = [agent.save_s for agent in training if agent.save_s is not None]
    steps = [agent.step_s for agent in training if agent.step_s is not None]
    return Costs(max(saves, default=None), max(steps, default=None))
