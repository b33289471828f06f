"""When to take the next sample of the machine."""

from __future__ import annotations

from collections.abc import Collection

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import Stage
from watchdog_app.core.model.machine import Snapshot
from watchdog_app.core.model.resource import SPECS, Reading, Scope
from watchdog_app.core.policy.engine import TickResult

LONGEST_S = 2.0  # watchdog sees within this time that a process moved to another group
# Several threads that write to fresh pages do not fill memory faster than this. At most this share
# of the free room can be gone before the next sample.
_FASTEST_BYTES_PER_S = 4 << 30
_ROOM_SHARE = 2 / 3
_MOVE_SHARE = 1 / 200  # share of the free room
_LEAST_MOVE_BYTES = 256 << 10
_YOUNG_S = 10.0  # a young Python process sets limits, changes its title, or calls exec
_WARM_SHARE = 0.75  # share of the limit
_GPUS_AWAITED_S = 0.25


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
    Return the seconds to the next sample.

    Args:
        result: result of the same sample as `snapshot` and `readings`.
        snapshot: sample of the machine.
        readings: readings of the resources.
        before: readings of the previous sample.
        agents: connected agents.
        usual_s: configured interval.

    Returns:
        Less than `usual_s` near exhaustion, and until the first figures of the GPUs. `usual_s`
        while a training runs or memory changes. Otherwise up to `LONGEST_S`.
    """
    if snapshot.hardware.gpus_awaited:
        return min(_GPUS_AWAITED_S, usual_s, result.next_sample_s)
    if result.next_sample_s < usual_s:
        return result.next_sample_s
    started = (info.started_unix_s for info in snapshot.infos.values())
    ages_s = (snapshot.unix_s - unix_s for unix_s in started if unix_s is not None)
    heat = (each for each in readings if SPECS[each.key.kind].scope is Scope.HEAT)
    is_active = (
        bool(result.incidents or result.decisions or result.stalled)
        or any(each.stage is not Stage.OK for each in result.assessments.values())
        or any(agent.training or agent.saving for agent in agents)
        or any(-1.0 <= age_s < _YOUNG_S for age_s in ages_s)
        or any(gpu.processes or gpu.utilization_percent for gpu in snapshot.hardware.gpus)
        or any(each.used >= _WARM_SHARE * each.limit for each in heat)
    )
    if is_active or _has_moved(readings, before):
        return usual_s
    rooms = [each.limit - each.used for each in readings if SPECS[each.key.kind].of_ram]
    room = min(rooms, default=float(snapshot.host.available_bytes))
    return max(usual_s, min(LONGEST_S, _ROOM_SHARE * room / _FASTEST_BYTES_PER_S))


def _has_moved(readings: Collection[Reading], before: Collection[Reading]) -> bool:
    """Whether memory use or a limit has changed since the previous sample."""
    earlier = {each.key: each for each in before}
    for reading in readings:
        if SPECS[reading.key.kind].scope is not Scope.MEMORY:
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
