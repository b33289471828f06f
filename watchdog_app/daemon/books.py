"""
Decisions and outcomes as the journal keeps them; deaths are in `death_book`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchdog_app.core.model.decisions import Decision, Outcome
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.journal import Entry


def decision_entry(decision: Decision, name: str | None, path: str | None) -> Entry:
    """A decision with everything that decided."""
    task = decision.task
    return Entry(
        decision.at_unix_s,
        "decision",
        {
            "id": decision.id,
            "decision_kind": decision.kind.value,
            "incident": decision.incident,
            "ceiling": decision.resource.kind.value,
            "subject": decision.resource.subject,
            "stage": decision.stage.name.lower(),
            "pid": task.pid if task else None,
            "name": name,
            "by": "watchdog",
            "reason": decision.reason,
            "evidence": dict(decision.evidence),
            "deadline_s": decision.deadline_s,
        },
        pid=task.pid if task else None,
        name=name,
        path=path,
    )


def outcome_entry(
    outcome: Outcome, kind: str, task: ProcessKey | None, name: str | None, path: str | None
) -> Entry:
    """What became of a decision."""
    return Entry(
        outcome.at_unix_s,
        "outcome",
        {
            "decision": outcome.decision,
            "decision_kind": kind,
            "status": outcome.status.value,
            "pid": task.pid if task else None,
            "name": name,
            "seconds": outcome.seconds,
            "detail": outcome.detail,
            "evidence": dict(outcome.evidence),
        },
        pid=task.pid if task else None,
        name=name,
        path=path,
    )


def wish_entry(
    id_: str,
    kind: str,
    task: ProcessKey,
    name: str,
    path: str | None,
    *,
    by: str,
    unix_s: float,
) -> Entry:
    """A decision that a person took."""
    data: Mapping[str, Any] = {
        "id": id_,
        "decision_kind": kind,
        "incident": None,
        "ceiling": None,
        "stage": None,
        "pid": task.pid,
        "name": name,
        "by": by,
        "reason": f"asked for by {by}",
        "evidence": {},
    }
    return Entry(unix_s, "decision", data, pid=task.pid, name=name, path=path)
