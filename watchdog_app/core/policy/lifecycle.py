"""How the incident of a resource is opened, followed and closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from watchdog_app.core.model.decisions import Assessment, Decision, Incident, Stage
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, is_condition
from watchdog_app.core.policy import pausing
from watchdog_app.core.policy.danger import Danger
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.policy import Policy


def opened(
    policy: Policy,
    reading: Reading,
    assessment: Assessment,
    snapshot: Snapshot,
    new_id: Callable[[], str],
) -> OpenIncident | None:
    """
    The open incident of this resource; one is opened when its first stage is crossed.

    Args:
        policy: holds the incidents.
        reading: of the resource.
        assessment: of the reading.
        snapshot: gives the time.
        new_id: makes the incident's id.
    """
    incident = policy.incidents.get(reading.key)
    if incident is None:
        if assessment.stage < Stage.WARN and not assessment.notify:
            return None
        incident = OpenIncident(
            id=new_id(),
            resource=reading.key,
            label=reading.label,
            opened_unix_s=snapshot.unix_s,
            opened_mono_s=snapshot.mono_s,
        )
        policy.incidents[reading.key] = incident
    return incident


def observe(incident: OpenIncident, assessment: Assessment, now: float) -> None:
    """
    Bring an incident to the stage that its resource has reached.

    Args:
        incident: open.
        assessment: of its resource.
        now: monotonic seconds.
    """
    incident.certain |= assessment.notify or assessment.stage >= Stage.HOLD
    incident.observe(
        max(assessment.stage, Stage.WARN) if assessment.notify else assessment.stage,
        now,
        assessment.why,
        rising=assessment.forecast is not None and assessment.stage >= Stage.WARN,
        regime=assessment.regime,
    )


def close(
    policy: Policy,
    dangers: Sequence[Danger],
    tasks: Mapping[ProcessKey, Task],
    snapshot: Snapshot,
    settle_s: float,
) -> tuple[tuple[Incident, ...], list[Decision]]:
    """
    Close incidents that were calm for long enough; report it if the danger was reported.

    Args:
        policy: holds the incidents.
        dangers: of this tick.
        tasks: of this tick.
        snapshot: gives the time.
        settle_s: least time of calm.
    """
    closed: list[Incident] = []
    decisions: list[Decision] = []
    by_resource: dict[ResourceKey, Danger] = {danger.reading.key: danger for danger in dangers}
    for key, incident in list(policy.incidents.items()):
        if is_condition(key):
            continue  # `device_incidents` and `stall_incidents` close it
        danger = by_resource.get(key)
        if danger is not None:
            if not incident.over(snapshot.mono_s, settle_s):
                continue
            over = policy.reporting.over(danger)
            if over is not None:
                decisions.append(over)
        elif pausing.holds_somebody(incident, tasks, snapshot.mono_s):
            continue  # who is paused on its account must not be forgotten
        # Without a scene the resource itself is gone, its group or its task with it.
        closed.append(incident.public(snapshot.unix_s))
        del policy.incidents[key]
    return tuple(closed), decisions
