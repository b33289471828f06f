"""What the browser shows, made from the daemon's answers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from watchdog_app.base.text import quantities
from watchdog_app.base.text.plain import capitalize_first
from watchdog_app.base.text.terminal import plain, plain_block
from watchdog_app.core.explain.agent_lines import unsaved_reason
from watchdog_app.core.explain.selection import nearest_resource
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Rescue, Status, Task

OFFERED = ("save", "resume", "pause", "more_memory")  # keys of ACTIONS
_DANGERS = (Level.WARNING, Level.CRITICAL)


def own_task(status: Status, kernel_id: str, user: str | None) -> Task | None:
    """
    The task of a kernel of this server; None: the daemon does not list it.

    Args:
        status: of the daemon. A daemon of root watches every user.
        kernel_id: one of the server.
        user: who runs the server; None: unknown.
    """
    for task in status.tasks:
        if task.kernel_id == kernel_id and (user is None or task.user in (None, user)):
            return task
    return None


def state(
    status: Status, kernels: Collection[str], user: str | None, now_unix_s: float
) -> dict[str, Any]:
    """
    The level of the machine, and the tasks of this server's kernels by kernel id.

    Args:
        status: of the daemon.
        kernels: kernel ids of this server.
        user: who runs the server; None: unknown.
        now_unix_s: the current time.
    """
    level, headline = status.summary(now_unix_s)
    found = {
        kernel: _of_task(status, task, now_unix_s)
        for kernel in kernels
        if (task := own_task(status, kernel, user)) is not None
    }
    return {"daemon": True, "level": _word(level), "headline": plain(headline), "kernels": found}


def no_daemon(reason: str) -> dict[str, Any]:
    """
    The state without an answer of the daemon.

    Args:
        reason: what is wrong, and what to do.
    """
    return {"daemon": False, "level": _word(Level.UNKNOWN), "headline": reason, "kernels": {}}


def death(answer: dict[str, Any], now_unix_s: float, within_s: float) -> dict[str, Any] | None:
    """
    The end of a kernel in words; None: none so recent is known.

    Args:
        answer: of the request `explain`.
        now_unix_s: the current time.
        within_s: maximum age of the end.
    """
    entry = answer.get("death")
    text = answer.get("death_text")
    if not isinstance(entry, dict) or not isinstance(text, str):
        return None
    at_unix_s = quantities.number_or_none(entry.get("unix_s"))
    if at_unix_s is None or now_unix_s - at_unix_s > within_s:
        return None
    cause, _, more = plain_block(text).partition("\n\n")
    rescue = Rescue.read_object(entry.get("rescue"))
    saved = "Nothing was saved." if rescue is None else _saved(rescue, at_unix_s, "before the end")
    return {
        "at_unix_s": at_unix_s,
        "cause": cause,
        "saved": saved,
        "more": more,
        "can_resume": rescue is not None,
    }


def _of_task(status: Status, task: Task, now_unix_s: float) -> dict[str, Any]:
    nearest = nearest_resource(status, task)
    end = "" if nearest is None else nearest.end()
    limit = f"{nearest.label or nearest.kind} {end}" if nearest is not None and end else ""
    level, title, facts = task.level, limit, [task.reason]
    stopped = task.guard is not None and task.guard.stopped
    if task.waits:
        level, facts = max(level, Level.WATCH), [limit, task.reason]
        title = "Stopped at its limit" if stopped else "Paused"
        title += ". Restart or Shutdown would kill it, and its state would be lost."
    if stopped:
        choices = [ACTIONS[key].command_for(task.pid) for key in ("more_memory", "no_limit", "end")]
        facts.insert(0, "Decide: " + ", or ".join(choices))
    reason = "; ".join(filter(None, facts))
    rescue = None if task.agent is None else task.agent.rescue
    saved = ["" if rescue is None else _saved(rescue, now_unix_s, "ago")]
    saved += ["Saving now."] if task.agent is not None and task.agent.saving else []
    return {
        "name": plain(task.name or "?"),
        "level": _word(level),
        "danger": task.level in _DANGERS or task.waits,
        "open": any(one.pid == task.pid for each in status.incidents for one in each.contributors),
        "title": capitalize_first(plain(title)),
        "reason": plain(reason),
        "memory": quantities.format_bytes(task.ram_bytes),
        "saved": " ".join(filter(None, saved)),
        "actions": [
            key for key in OFFERED if ACTIONS[key].shown(task) and (stopped or key != "more_memory")
        ],
        "no_save": "" if ACTIONS["save"].shown(task) else plain(_why_not_saved(task)),
    }


def _why_not_saved(task: Task) -> str:
    agent = task.agent
    if task.state == "paused":
        return "Cannot be saved while it is stopped."
    if agent is None:
        return "Cannot be saved: no agent in this kernel."
    if agent.saving:
        return "A save runs."
    if agent.outdated:
        return "Cannot be saved: its agent is outdated. Restart the kernel."
    unsaved = unsaved_reason(agent)
    return f"Cannot be saved: {unsaved}" if unsaved else "Nothing to save: no training runs."


def _saved(rescue: Rescue, now_unix_s: float, when: str) -> str:
    size = quantities.format_bytes(rescue.bytes)
    text = f"Step {quantities.whole(rescue.step)} is saved ({size})"
    if rescue.saved_unix_s is None:
        return f"{text}."
    passed = quantities.format_duration(max(0.0, now_unix_s - rescue.saved_unix_s))
    return f"{text}, {passed} {when}."


def _word(level: Level) -> str:
    return level.name.lower()
