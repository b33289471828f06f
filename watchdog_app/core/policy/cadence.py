"""When the next sample of the machine is due."""

from __future__ import annotations

from collections.abc import Collection

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.machine import Snapshot
from watchdog_app.core.model.resource import SPECS, Reading, Scope
from watchdog_app.core.policy.engine import TickResult

LONGEST_S = 2.0  # a process that was moved to another group is seen within this time
# Several threads that write to fresh pages fill no more in a second. Before the next sample at
# most this share of the free room can be gone.
_FASTEST_BYTES_PER_S = 4 << 30
_ROOM_SHARE = 2 / 3
_MOVE_SHARE = 1 / 200  # of the free room
_LEAST_MOVE_BYTES = 256 << 10
_YOUNG_S = 10.0  # a Python sets limits, changes its title, becomes another program by exec
_WARM_SHARE = 0.75  # of the limit


def interval_s(
    result: TickResult,
    snapshot: Snapshot,
    readings: Collection[Reading],
    *,
    before: Collection[Reading],
    agents: Collection[AgentState],
    usual_s: float,
) -> float:
    """
    Seconds to the next sample.

    Args:
        result: of this sample, as `snapshot` and `readings`.
        snapshot: the machine.
        readings: the resources.
        before: the readings of the sample before.
        agents: that are connected.
        usual_s: the configured interval.

    Returns:
        Less than `usual_s` near an end, `usual_s` while anything moves or trains, else up to
        `LONGEST_S`.
    """
    if result.next_sample_s < usual_s:
        return result.next_sample_s
    if _is_active(result, snapshot, readings, agents) or _has_moved(readings, before):
        return usual_s
    rooms = [each.limit - each.used for each in readings if SPECS[each.key.kind].of_ram]
    room = min(rooms, default=float(snapshot.host.available_bytes))
    return max(usual_s, min(LONGEST_S, _ROOM_SHARE * room / _FASTEST_BYTES_PER_S))


def _is_active(
    result: TickResult,
    snapshot: Snapshot,
    readings: Collection[Reading],
    agents: Collection[AgentState],
) -> bool:
    """Whether something is near, begins or works."""
    if result.incidents or result.decisions or result.stalled:
        return True
    if any(each.stage is not Stage.OK for each in result.assessments.values()):
        return True
    if any(agent.training or agent.saving for agent in agents):
        return True
    started = (info.started_unix_s for info in snapshot.infos.values())
    if any(
        unix_s is not None and -1.0 <= snapshot.unix_s - unix_s < _YOUNG_S for unix_s in started
    ):
        return True
    if any(gpu.processes or gpu.utilization_percent for gpu in snapshot.hardware.gpus):
        return True
    heat = (each for each in readings if SPECS[each.key.kind].scope is Scope.HEAT)
    return any(each.used >= _WARM_SHARE * each.limit for each in heat)


def _has_moved(readings: Collection[Reading], before: Collection[Reading]) -> bool:
    """Whether memory has moved since the sample before, or a limit."""
    earlier = {each.key: each for each in before}
    for reading in readings:
        spec = SPECS[reading.key.kind]
        if spec.scope is not Scope.MEMORY or spec.by_sensor:
            continue
        last = earlier.get(reading.key)
        step = max(_LEAST_MOVE_BYTES, _MOVE_SHARE * (reading.limit - reading.used))
        if (
            last is None
            or abs(reading.used - last.used) > step
            or abs(reading.limit - last.limit) > step
        ):
            return True
    return False
