"""How the incident of a resource is opened, followed and closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from watchdog_app.core.model.decisions import Assessment, Decision, Incident, Stage
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, Scope, is_condition
from watchdog_app.core.policy import pausing
from watchdog_app.core.policy.danger import Danger
from watchdog_app.core.policy.incidents import OpenIncident
from watchdog_app.core.policy.policy import Policy

PACE_WINDOW_S = 2.0
_AT_THE_LIMIT = 0.97
_NO_TIME_S = 0.6  # some looks and one step


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


def stage_of(
    incident: OpenIncident, reading: Reading, assessment: Assessment, hold_s: float
) -> Assessment:
    """
    The assessment with the stage that follows from the pace as well.

    Args:
        incident: with its pace brought up to date.
        reading: the resource.
        assessment: on strict evidence where `notify` is set.
        hold_s: stage hold begins when the end may be nearer than this.
    """
    spec = SPECS[reading.key.kind]
    if not reading.fatal:
        # A pause is for what kills; here the worst is that the machine gets slow. Heat that slows
        # down loses nothing, so that nothing is saved either.
        most = Stage.WARN if spec.scope is Scope.HEAT else Stage.RESCUE
        return replace(assessment, stage=min(assessment.stage, most))
    if _at_the_end(incident, reading, max(hold_s, spec.pause_s)):
        return replace(assessment, stage=Stage.HOLD)
    return assessment


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


def _at_the_end(incident: OpenIncident, reading: Reading, hold_s: float) -> bool:
    """
    The very end by the pace of the training, where saves slow down what the trend can see.

    A training that is saved after every step grows a tenth as fast as it would: the trend says
    ten seconds, and the next three steps kill it.
    """
    left_s = incident.left_s(reading)
    near = reading.limit > 0 and reading.used >= _AT_THE_LIMIT * reading.limit
    return left_s <= (hold_s if near else min(hold_s, _NO_TIME_S))
