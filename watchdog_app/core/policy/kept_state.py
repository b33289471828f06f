"""What outlives the daemon: open incidents, cool-downs, what was saved and what failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchdog_app.base import codec
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.policy.incidents import LastReport, OpenIncident
from watchdog_app.core.policy.policy import Policy
from watchdog_app.core.policy.reporting import Cause
from watchdog_app.core.policy.saving import CheckpointSchedule

_VERSION = 3
_RETURN_S = 30.0  # agents connect anew within some seconds; till then their saves are remembered
_STALE_S = 3600.0  # the machine of an hour ago says nothing about this one


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    mono_s: float
    unix_s: float
    incidents: tuple[OpenIncident, ...]
    reports: dict[Cause, LastReport]
    saves: dict[ProcessKey, CheckpointSchedule]


def dump(policy: Policy, mono_s: float, unix_s: float) -> dict[str, Any]:
    """
    Plain values. A request without an answer is not kept: its connection ends with us.

    Args:
        policy: to write down.
        mono_s: of the last tick.
        unix_s: of the last tick.
    """
    incidents = tuple(policy.incidents.values())
    kept = _Kept(_VERSION, mono_s, unix_s, incidents, policy.reporting.reports, policy.schedules)
    return codec.encode(kept)  # type: ignore[no-any-return]


def load(value: Any, mono_s: float) -> Policy:
    """
    The policy that was written down since the machine was started.

    Ages are told by the monotonic clock alone: the other one may have been set in between.

    Raises:
        ValueError: these are not the values of `dump`, they are older than an hour, or the
            machine was started anew since.
    """
    try:
        kept = _read(value, mono_s)
    except ValueError as error:
        raise ValueError(f"the state of an earlier daemon cannot be used: {error}") from error
    policy = Policy()
    policy.incidents = {each.resource: each for each in kept.incidents}
    policy.reporting.reports = kept.reports
    policy.schedules = kept.saves
    policy.agents_due_mono_s = mono_s + _RETURN_S
    return policy


def _read(value: Any, mono_s: float) -> _Kept:
    kept: _Kept = codec.decode(_Kept, value)
    if kept.version != _VERSION:
        raise ValueError(f"version {kept.version!r}")
    age_s = mono_s - kept.mono_s
    if not 0 <= age_s <= _STALE_S:
        raise ValueError(f"written {age_s:.0f} s ago")
    return kept
