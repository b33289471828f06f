"""Decisions, outcomes and exits of processes as entries of the journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from watchdog_app.base.codec import encode
from watchdog_app.base.text.plain import redact_argv
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.diagnosis.evidence import largest_processes
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Decision, Outcome
from watchdog_app.core.model.exits import Cause, CauseKind, Evidence, ExitFacts
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, Task
from watchdog_app.core.model.tasks import name_with_pid
from watchdog_app.history.journal import Entry

_MOST_TASKS = 5  # tasks named as memory holders in the entry of an exit


class TaskRef(NamedTuple):
    """The task of an entry, for searches: process, name, and path of the notebook or script."""

    key: ProcessKey | None
    name: str | None
    path: str | None

    @classmethod
    def of(cls, task: Task | None) -> TaskRef:
        """The reference to a task; with None, all fields are None."""
        if task is None:
            return cls(None, None, None)
        return cls(task.key, task.name, task.info.notebook or task.info.script)


def decision_entry(decision: Decision, task: TaskRef) -> Entry:
    """
    The entry of a decision, with the evidence for it.

    Args:
        decision: the decision of the policy.
        task: the task that it concerns.
    """
    data = {
        "id": decision.id,
        "decision_kind": decision.kind.value,
        "incident": decision.incident,
        "resource": decision.resource.kind.value,
        "subject": decision.resource.subject,
        "stage": decision.stage.name.lower(),
        "by": "watchdog",
        "reason": decision.reason,
        "evidence": dict(decision.evidence),
        "deadline_s": decision.deadline_s,
    }
    return _entry(decision.at_unix_s, "decision", data, task)


def outcome_entry(outcome: Outcome, kind: str, task: TaskRef) -> Entry:
    """
    The entry of an outcome of a decision.

    Args:
        outcome: how the decision ended.
        kind: the kind of the decision.
        task: the task that it concerns.
    """
    data = {
        "decision": outcome.decision,
        "decision_kind": kind,
        "status": outcome.status.value,
        "seconds": outcome.seconds,
        "detail": outcome.detail,
        "evidence": dict(outcome.evidence),
    }
    return _entry(outcome.at_unix_s, "outcome", data, task)


def request_entry(id_: str, kind: str, task: TaskRef, *, by: str, unix_s: float) -> Entry:
    """
    The entry of a decision that a person took.

    Args:
        id_: the id of the decision.
        kind: the kind of the decision.
        task: the task that it concerns.
        by: the client that asked, such as "the cli (pid 4711)".
        unix_s: time of the request.
    """
    data: dict[str, Any] = {
        "id": id_,
        "decision_kind": kind,
        "incident": None,
        "resource": None,
        "stage": None,
        "by": by,
        "reason": f"asked for by {by}",
        "evidence": {},
    }
    return _entry(unix_s, "decision", data, task)


def _entry(unix_s: float, kind: str, data: Mapping[str, Any], task: TaskRef) -> Entry:
    pid = None if task.key is None else task.key.pid
    about = {**data, "pid": pid, "name": task.name}
    return Entry(unix_s, kind, about, pid, task.name, task.path)


def exit_entry(
    key: ProcessKey,
    name: str,
    path: str | None,
    *,
    cause: Cause,
    evidence: Sequence[Evidence] = (),
    rescue: RescueRecord | None,
    had_agent: bool,
    was_paused: bool,
    unix_s: float,
    about: Mapping[str, Any] | None = None,
    notable: bool = True,
) -> Entry:
    """
    The entry of an end: the process, its cause with evidence, and the rescue to resume from.

    Args:
        about: more fields to store, from `task_fields`.
        notable: False: clients get the entry only on request.
    """
    left = "It left no rescue." if had_agent else "It held no agent that could have saved it."
    if rescue is not None:
        left = _rescue_text(rescue, unix_s)
    elif not notable:
        left = ""
    held = " It was paused: Jupyter kills a paused kernel on Restart and on Shutdown."
    text = f"{name} (pid {key.pid}): {cause.text}.{held if was_paused else ''} {left}"
    data = {
        **_cause_fields(cause, evidence, rescue),
        "text": text.rstrip(),
        "had_agent": had_agent,
        **(about or {}),
        "start_time": key.start_time,
        "notable": notable,
    }
    return _entry(unix_s, "exit", data, TaskRef(key, name, path))


def _cause_fields(
    cause: Cause, evidence: Sequence[Evidence], rescue: RescueRecord | None
) -> dict[str, Any]:
    return {
        "cause": cause.kind.value,
        "memory": cause.spec.by_kernel,
        "certainty": cause.certainty.value,
        "reason": cause.text,
        "evidence": encode(list(evidence)),
        "rescue": encode(rescue),
    }


def _rescue_text(rescue: RescueRecord, unix_s: float) -> str:
    age = format_duration(max(0.0, unix_s - rescue.saved_unix_s))
    return (
        f"Its rescue of step {rescue.step} ({format_bytes(rescue.bytes)}, saved {age} before) "
        f"is complete: {phrases.resume_text(rescue)}"
    )


def worker_entry(
    task: Task,
    worker_pid: int,
    unix_s: float,
    cause: Cause,
    evidence: Sequence[Evidence] = (),
    *,
    rescue: RescueRecord | None = None,
    about: Mapping[str, Any] | None = None,
) -> Entry:
    """
    The entry of a worker that ended while its task runs on.

    Args:
        rescue: of the training in the worker, which a launcher had started.
        about: fields of its task, if the worker held a training.
    """
    how = "was killed by the kernel for memory"
    if cause.kind is CauseKind.SIGNAL:
        how = cause.text
    data = {
        **(about or {}),
        **_cause_fields(cause, evidence, rescue),
        "start_time": task.key.start_time,
        "worker": worker_pid,
        "notable": True,
        "text": f"A worker (process {worker_pid}) of {name_with_pid(task)} {how}. "
        "The task itself lives on; it may wait for that worker for ever."
        + ("" if rescue is None else f" {_rescue_text(rescue, unix_s)}"),
    }
    return _entry(unix_s, "exit", data, TaskRef.of(task))


def task_fields(
    info: ProcessInfo,
    rss_bytes: int | None,
    view: AgentState | None,
    end_mono_s: float | None = None,
) -> dict[str, Any]:
    """
    Fields that describe a task after its end. Secrets on its command line are removed.

    Args:
        info: the root process of the task.
        rss_bytes: memory of all its processes; None: unknown.
        view: the last report of its agent; None: it has no agent.
        end_mono_s: time of the end, on the clock of those reports; None: unknown.
    """
    found: dict[str, Any] = {
        "task_kind": info.kind.value,
        "kernel_id": info.kernel_id,
        "path": info.notebook or info.script,
        "cwd": info.cwd,
        "python": info.python,
        "argv": redact_argv(info.argv),
        "started_unix_s": info.started_unix_s,
        "rss_bytes": rss_bytes,
    }
    if view is not None:
        age_s = None
        if end_mono_s is not None and view.reported_mono_s is not None:
            age_s = max(0.0, end_mono_s - view.reported_mono_s)
        found["agent"] = {
            "framework": view.framework,
            "directory": view.directory,
            "training": view.training,
            "step": view.step,
            "step_s": view.step_s,
            "report_age_s": age_s,
            "not_saved": view.not_saved,
        }
    return found


def exit_context(
    facts: ExitFacts,
    cause: Cause,
    tasks: Sequence[Task],
    growth: Mapping[ProcessKey, float | None],
) -> dict[str, Any]:
    """
    Fields that describe the circumstances of an end, for its entry.

    They name the processes that held the memory, the group whose limit was reached, and the limit
    for the next start.

    Args:
        facts: the facts of the end.
        cause: the cause of the end.
        tasks: the tasks watched at that time.
        growth: bytes per second by task; None: unknown.
    """
    found: dict[str, Any] = {}
    if cause.spec.out_of_memory and not cause.spec.own:
        found["takers"] = _memory_holders(facts, tasks, growth)
    if cause.kind is CauseKind.GROUP_LIMIT and facts.group_limit_bytes:
        found["group"] = {"label": facts.group_label, "limit_bytes": facts.group_limit_bytes}
    guard = facts.guard
    if guard is not None:
        no_room = cause.spec.out_of_memory and not cause.spec.of_card
        short = no_room or guard.ended or guard.refused or guard.stopped
        found["next_limit"] = guard.next_limit if short else guard.limit
    return found


def _memory_holders(
    facts: ExitFacts, tasks: Sequence[Task], growth: Mapping[ProcessKey, float | None]
) -> dict[str, Any]:
    """
    The largest memory holders: from the kernel's table, if any, and among the watched tasks.

    The kernel's table has program names. For watched processes the notebook's name replaces them.
    """
    tasks = list({task.key: task for task in reversed(tasks)}.values())
    ours = {member.key.pid: task for task in tasks for member in task.members}
    table = [
        {"pid": pid, "name": ours[pid].name if pid in ours else name, "bytes": bytes_,
         "watched": pid in ours}
        for pid, name, bytes_ in largest_processes(facts.kernel)
    ]  # fmt: skip
    largest = sorted(tasks, key=lambda task: -task.rss_bytes)[:_MOST_TASKS]
    watched = [
        {"pid": task.key.pid, "name": task.name, "bytes": task.rss_bytes,
         "bytes_per_s": growth.get(task.key)}
        for task in largest
    ]  # fmt: skip
    return {"kernel_table": table, "watched": watched}
