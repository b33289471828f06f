"""
Decisions, outcomes and deaths as the journal keeps them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchdog_app.core.deaths import Cause, CauseKind
from watchdog_app.core.outlook import Decision, Outcome
from watchdog_app.core.records import ProcessKey, RescueRecord, Task
from watchdog_app.daemon.journal import Entry
from watchdog_app.units import format_bytes, format_duration


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
            "ceiling": decision.ceiling.kind.value,
            "subject": decision.ceiling.subject,
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


def death_entry(
    key: ProcessKey,
    name: str,
    path: str | None,
    *,
    cause: Cause,
    rescue: RescueRecord | None,
    had_agent: bool,
    was_paused: bool,
    unix_s: float,
) -> Entry:
    """A death: who, of what, and what is left to go on from."""
    left = "It left no rescue." if had_agent else "It held no agent that could have saved it."
    if rescue is not None:
        age = format_duration(max(0.0, unix_s - rescue.saved_unix_s))
        left = (
            f"Its rescue of step {rescue.step} ({format_bytes(rescue.bytes)}, saved {age} before) "
            "is complete: run it again and it goes on from there."
        )
    held = " It was paused: Jupyter kills a paused kernel on Restart and on Shutdown."
    data = {
        "pid": key.pid,
        "name": name,
        "cause": cause.kind.value,
        "memory": cause.memory,
        "text": f"{name} (pid {key.pid}): {cause.text}.{held if was_paused else ''} {left}",
        "rescue": None
        if rescue is None
        else {
            "path": rescue.path,
            "step": rescue.step,
            "bytes": rescue.bytes,
            "seconds": rescue.seconds,
            "saved_unix_s": rescue.saved_unix_s,
        },
    }
    return Entry(unix_s, "death", data, key.pid, name, path)


def worker_entry(task: Task, worker_pid: int, unix_s: float) -> Entry:
    """The death of a worker whose task lives on."""
    data = {
        "pid": task.key.pid,
        "name": task.name,
        "worker": worker_pid,
        "cause": CauseKind.GROUP_LIMIT.value,
        "memory": True,
        "text": f"A worker (process {worker_pid}) of {task.name} (pid {task.key.pid}) was killed "
        "by the kernel for memory. The task itself lives on; it may wait for that worker for ever.",
        "rescue": None,
    }
    path = task.info.notebook or task.info.script
    return Entry(unix_s, "death", data, task.key.pid, task.name, path)
