"""Decisions, outcomes and ends of processes as entries of the journal. Pure."""

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

_MOST_TASKS = 5  # that are named beside a lack of memory


class TaskRef(NamedTuple):
    """The task that an entry concerns, as it is looked up by: process, name, notebook or script."""

    key: ProcessKey | None
    name: str | None
    path: str | None

    @classmethod
    def of(cls, task: Task | None) -> TaskRef:
        """The reference to a task; None: to none."""
        if task is None:
            return cls(None, None, None)
        return cls(task.key, task.name, task.info.notebook or task.info.script)


def decision_entry(decision: Decision, task: TaskRef) -> Entry:
    """
    A decision with everything that decided.

    Args:
        decision: of the policy.
        task: that it concerns.
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
    What became of a decision.

    Args:
        outcome: how the decision ended.
        kind: of the decision.
        task: that it concerns.
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
    A decision that a person took.

    Args:
        id_: of the decision.
        kind: of the decision.
        task: that it concerns.
        by: who asked, such as "the cli (pid 4711)".
        unix_s: when.
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
    An end: who, of what, how that is known, and what is left to go on from.

    Args:
        about: what else is to be there tomorrow, from `task_fields`.
        notable: False: it is no news, and only for who asks: kind "end".
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
    }
    return _entry(unix_s, "death" if notable else "end", data, TaskRef(key, name, path))


def _cause_fields(
    cause: Cause, evidence: Sequence[Evidence], rescue: RescueRecord | None
) -> dict[str, Any]:
    return {
        "cause": cause.kind.value,
        "memory": cause.memory,
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
    The end of a worker whose task lives on.

    Args:
        rescue: of the training that the worker held, below a launcher.
        about: of its task, where it held a training.
    """
    how = "was killed by the kernel for memory"
    if cause.kind is CauseKind.SIGNAL:
        how = cause.text
    data = {
        **(about or {}),
        **_cause_fields(cause, evidence, rescue),
        "start_time": task.key.start_time,
        "worker": worker_pid,
        "text": f"A worker (process {worker_pid}) of {name_with_pid(task)} {how}. "
        "The task itself lives on; it may wait for that worker for ever."
        + ("" if rescue is None else f" {_rescue_text(rescue, unix_s)}"),
    }
    return _entry(unix_s, "death", data, TaskRef.of(task))


def task_fields(
    info: ProcessInfo,
    rss_bytes: int | None,
    view: AgentState | None,
    end_mono_s: float | None = None,
) -> dict[str, Any]:
    """
    What is to be known of a task when it is gone; secrets on its command line are left out.

    Args:
        info: of its root.
        rss_bytes: of all its processes; None: not known.
        view: what its agent has reported; None: it has none.
        end_mono_s: when it ended, by the clock of those reports; None: not known.
    """
    found: dict[str, Any] = {
        "task_kind": info.kind.value,
        "kernel_id": info.kernel_id,
        "path": info.notebook or info.script,
        "cwd": info.cwd,
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
        }
    return found


def exit_context(
    facts: ExitFacts,
    cause: Cause,
    tasks: Sequence[Task],
    growth: Mapping[ProcessKey, float | None],
) -> dict[str, Any]:
    """
    What is to be known tomorrow of where a task ended, for its entry: who held the memory, which
    group's limit was met, with which limit to start it again.

    Args:
        facts: of the end.
        cause: of the end.
        tasks: those that were watched then.
        growth: bytes a second by task; None: not known.
    """
    found: dict[str, Any] = {}
    if cause.spec.out_of_memory and not cause.spec.own:
        found["takers"] = _memory_holders(facts, tasks, growth)
    if cause.kind is CauseKind.GROUP_LIMIT and facts.group_limit_bytes:
        found["group"] = {"label": facts.group_label, "limit_bytes": facts.group_limit_bytes}
    guard = facts.guard
    if guard is not None:
        short = cause.spec.out_of_memory or guard.ended or guard.refused or guard.held
        found["next_limit"] = guard.next_limit if short else guard.limit
    return found


def _memory_holders(
    facts: ExitFacts, tasks: Sequence[Task], growth: Mapping[ProcessKey, float | None]
) -> dict[str, Any]:
    """
    Who held the memory then: from the kernel's own table where it is there, and of the watched.

    Names in the kernel's table are those of programs, not of notebooks: ours stand beside.
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
