"""
Notices and explanations as clients get them.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.core.outlook import Decision, Stage
from watchdog_app.core.records import Task
from watchdog_app.daemon.status import Look, incident


def notice(decision: Decision, task: Task | None, look: Look | None) -> dict[str, Any]:
    """A notice as in docs/protocol.md."""
    name = task.name if task else "This machine"
    return {
        "id": decision.id,
        "incident": decision.incident or None,
        "stage": decision.stage.name.lower(),
        "urgency": "critical" if decision.stage >= Stage.RESCUE else "normal",
        "title": name,
        "body": decision.reason,
        "task": decision.task.pid if decision.task else None,
        "actions": [],
        "unix_s": decision.at_unix_s,
    }


def explanation(look: Look | None, task: Task | None) -> dict[str, Any]:
    """The answer to `explain`."""
    found = [] if look is None else [incident(each) for each in look.result.incidents]
    if task is not None:
        found = [e for e in found if any(c["pid"] == task.key.pid for c in e["culprits"])]
    return {"text": "\n".join(each["why"] for each in found), "incidents": found}
