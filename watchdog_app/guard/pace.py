"""How long a supervisor may wait for its next look at the guard: events come at once."""

from __future__ import annotations

from watchdog_app.guard.policy import Stage

FASTEST_S = 0.1
_SLOWEST_S = 1.0
_FILL_BYTES_PER_S = 2e9  # as fast as one process fills memory
_WAITING_S, _HELD_S, _ENDING_S = 0.02, 0.2, 0.05


def wait_s(stage: Stage, *, insuring: bool, told: bool, room_bytes: int) -> float:
    """
    Seconds, at most.

    Args:
        stage: of the policy.
        insuring: a copy is made at the next boundary.
        told: the kernel tells when the limit comes near.
        room_bytes: up to the limit.
    """
    if stage in (Stage.WAITING, Stage.COPYING, Stage.ASIDE):
        return _WAITING_S
    if stage is Stage.HELD:
        return _HELD_S
    if stage in (Stage.ENDING, Stage.LEAVING, Stage.REFUSING):
        return _ENDING_S
    if insuring:
        return _WAITING_S
    if told:
        return _SLOWEST_S
    return min(_SLOWEST_S, max(FASTEST_S, max(0, room_bytes) / _FILL_BYTES_PER_S))
