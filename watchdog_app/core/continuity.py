"""What outlives the daemon: open incidents, cool-downs, what was saved and what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchdog_app.core.incidents import IncidentState, Told
from watchdog_app.core.outlook import Stage
from watchdog_app.core.policy import Policy
from watchdog_app.core.records import ProcessKey
from watchdog_app.core.resources import Scope
from watchdog_app.core.saving import SaveLedger

_VERSION = 2
_RETURN_S = 30.0  # agents connect anew within some seconds; till then their saves are remembered
_STALE_S = 3600.0  # the machine of an hour ago says nothing about this one


def dump(policy: Policy, mono_s: float, unix_s: float) -> dict[str, Any]:
    """Plain values. A request without an answer is not kept: its connection ends with us."""
    return {
        "version": _VERSION,
        "mono_s": mono_s,
        "unix_s": unix_s,
        "incidents": [incident.dump() for incident in policy.incidents.values()],
        "told": [
            [None if key is None else [key.pid, key.start_time], what, t.mono_s, int(t.stage),
             t.eta_s, device]
            for (key, what, device), t in policy.telling.told.items()
        ],
        "saves": [
            [key.pid, key.start_time, each.saved_mono_s, each.failures, each.failed_mono_s,
             each.spent_s, each.paid_mono_s]
            for key, each in policy.ledgers.items()
        ],
    }  # fmt: skip


def load(value: Mapping[str, Any], mono_s: float) -> Policy:
    """
    The policy that was written down since the machine was started.

    Ages are told by the monotonic clock alone: the other one may have been set in between.

    Raises:
        ValueError: these are not the values of `dump`, they are older than an hour, or the
            machine was started anew since.
    """
    try:
        return _load(value, mono_s)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"the state of an earlier daemon cannot be used: {error}") from error


def _load(value: Mapping[str, Any], mono_s: float) -> Policy:
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']!r}")
    age_s = mono_s - float(value["mono_s"])
    if not 0 <= age_s <= _STALE_S:
        raise ValueError(f"written {age_s:.0f} s ago")
    policy = Policy()
    for each in value["incidents"]:
        incident = IncidentState.load(each)
        policy.incidents[incident.ceiling] = incident
    for task, what, told_mono_s, stage, eta_s, *device in value["told"]:
        key = None if task is None else ProcessKey(int(task[0]), int(task[1]))
        # Not kept by earlier versions.
        card = str(device[0]) if device and device[0] is not None else None
        policy.telling.told[key, Scope(what), card] = Told(float(told_mono_s), Stage(stage), eta_s)
    for pid, start, saved, failures, failed, spent, paid in value["saves"]:
        policy.ledgers[ProcessKey(int(pid), int(start))] = SaveLedger(
            saved_mono_s=None if saved is None else float(saved),
            failures=int(failures),
            failed_mono_s=float(failed),
            spent_s=float(spent),
            paid_mono_s=float(paid),
        )
    policy.agents_due_mono_s = mono_s + _RETURN_S
    return policy
