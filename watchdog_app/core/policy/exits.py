"""The decision to tell of the end of a task."""

from __future__ import annotations

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Decision, DecisionKind, Stage, Topic
from watchdog_app.core.model.exits import Cause
from watchdog_app.core.model.machine import Snapshot, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind


def exit_notification(
    ident: str,
    task: Task,
    agent: AgentState | None,
    cause: Cause,
    *,
    snapshot: Snapshot,
    incident: tuple[str, ResourceKey, Stage] | None,
) -> Decision:
    """
    The decision to tell of a death; `incident` is the one that it ended, if any.

    Args:
        ident: of the decision.
        task: as it was last seen.
        agent: its last state.
        cause: of the exit.
        snapshot: gives the time.
        incident: id, resource and peak of the one that it ended, if any.
    """
    rescue = None if agent is None else agent.rescue
    return Decision(
        id=ident,
        kind=DecisionKind.NOTIFY,
        incident="" if incident is None else incident[0],
        resource=ResourceKey(ResourceKind.RAM) if incident is None else incident[1],
        stage=Stage.OK if incident is None else incident[2],
        task=task.key,
        at_mono_s=snapshot.mono_s,
        at_unix_s=snapshot.unix_s,
        reason=cause.text,
        evidence={
            "topic": Topic.DIED.value,
            "cause": cause.kind.value,
            "worker": cause.worker,
            "name": task.name,
            "rss_bytes": task.rss_bytes,
            "step": None if agent is None else agent.step,
            "path": None if rescue is None else rescue.path,
            "rescue_step": None if rescue is None else rescue.step,
            "rescue_age_s": None
            if rescue is None
            else max(0.0, snapshot.unix_s - rescue.saved_unix_s),
        },
    )
