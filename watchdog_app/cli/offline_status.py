"""
What watchdog knows without a daemon: tasks left paused, running guards and past guards.

The guards' supervisors record what happens to their guards. The daemon records the tasks that it
pauses.
"""

from __future__ import annotations

import os
import shlex

from watchdog_app.base import paths
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import guard_level, parse_pid
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import format_timestamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from watchdog_app.guard.record import GuardRecord

    Json = dict[str, Any]

_STATES = {
    "copying": "being saved",
    "finishing": "has the reserve until its step ends",
    "exiting": "interrupted; has the reserve to end or to free memory",
    "refusing": "refused more memory",
    "unlimited": "no limit of its own",
    "ending": "being ended",
}
_REPORTED_EVENTS = ("stopped", "refusing", "unlimited", "ending", "running")
_SAME_EVENT_S = 10.0  # a journal entry this close in time is about the same event
_GUARD_DECISIONS = ("hold", "guard ")


def paused_task_lines() -> list[str]:
    """Return sentences on tasks that are still paused and how to resume them; empty: none."""
    copies = (
        os.path.join(where, "paused.json") for where in (paths.runtime_dir(), paths.state_dir())
    )
    if not any(map(os.path.exists, copies)):
        return []
    from watchdog_app.daemon import offline

    try:
        paused = offline.paused()
    except WatchdogError as error:
        return [str(error)]
    if not paused:
        return []
    names = ", ".join(f"{plain(each['name'])} (pid {each['task']})" for each in paused)
    return [
        f"Still paused by watchdog: {names}.",
        f"Resume {'it' if len(paused) == 1 else 'them'}: watchdog resume --all",
    ]


def format_guard(guard: GuardRecord) -> str:
    """Describe a running guard: its level, and the command that resumes it if it is stopped."""
    from watchdog_app.guard import messages

    state = "" if guard.state == "running" else f", {_STATES.get(guard.state, guard.state)}"
    if guard.state == "stopped":
        resume = f"watchdog limit {guard.pid} {messages.next_limit(guard)}"
        saved = messages.rescue_text(guard)
        state = f", stopped at its limit; to resume it: {resume}. {saved}"
    level = guard_level(guard, automatic=guard.follows_machine)
    return f"{plain(guard.name)} (pid {guard.pid}): {level}, {guard.kind}{state}"


def running_guards() -> list[GuardRecord]:
    """
    Return the running guards with their current use; records are seconds old, so read the cgroup.
    """
    from watchdog_app.base.linux.cgroups import read_usage
    from watchdog_app.guard import record

    found = record.read_all()
    for guard in found:
        if guard.group is not None:
            guard.used_bytes = read_usage(guard.group).held_bytes or guard.used_bytes
    return found


def guard_lines() -> list[str]:
    """Return a line for each running guard."""
    return [format_guard(guard) for guard in running_guards()]


def explain_guards(task: str | None, since_unix_s: float = 0.0) -> list[str]:
    """
    Return sentences on the running guards, and on the last past guard that had to act.

    Args:
        task: pid or name; None: all guards.
        since_unix_s: leave out past guards that ended before this time.
    """
    from watchdog_app.guard import messages, record

    found = [
        f"{guard.name} (pid {guard.pid}) {'is stopped' if guard.stopped else 'runs'}. "
        f"{messages.explanation(guard)}"
        for guard in running_guards()
        if _matches(guard, task)
    ]
    for guard in record.read_past():
        if (guard.ended_unix_s or 0.0) > since_unix_s and _matches(guard, task):
            account = messages.past_summary(guard)
            if account:
                found.append(f"{format_timestamp(guard.ended_unix_s)}: {account}")
                break
    return found


def merge_guard_entries(journal_entries: list[Json], filters: Json) -> list[Json]:
    """
    Add to the history what guards did while no daemon ran; newest first.

    Args:
        journal_entries: entries of the journal.
        filters: the arguments of `Journal.history`.
    """
    from watchdog_app.guard import record

    reported = [
        (each.get("pid"), float(each.get("unix_s") or 0.0))
        for each in journal_entries
        if each.get("kind") == "exit"
        or str(each.get("decision_kind") or "").startswith(_GUARD_DECISIONS)
    ]
    kinds, since, until = (
        filters.get("kinds"),
        filters.get("since_unix_s"),
        filters.get("until_unix_s"),
    )
    more = [
        entry
        for guard in (*record.read_all(), *record.read_past())
        if _matches(guard, filters.get("task"))
        for entry in _guard_entries(guard)
        if (kinds is None or entry["kind"] in kinds)
        and (since is None or entry["unix_s"] >= since)
        and (until is None or entry["unix_s"] <= until)
        and not any(
            pid == guard.pid and abs(at - entry["unix_s"]) < _SAME_EVENT_S for pid, at in reported
        )
    ]
    merged = sorted([*journal_entries, *more], key=lambda each: -float(each.get("unix_s") or 0.0))
    return merged[: filters.get("limit")]


def _guard_entries(guard: GuardRecord) -> Iterator[Json]:
    from watchdog_app.guard import messages

    about = {"pid": guard.pid, "start_time": guard.start_time, "name": guard.name}
    for event in guard.events:
        if event.kind in _REPORTED_EVENTS:
            word = "hold" if event.kind == "stopped" else f"guard {event.kind}"
            yield {"kind": "decision", "unix_s": event.unix_s, **about,
                   "decision_kind": word, "text": event.text.partition("\n")[0]}  # fmt: skip
    account = messages.past_summary(guard) if guard.ended_unix_s is not None else ""
    if account and guard.state in ("stopped", "exiting", "ending", "refusing"):
        reason = messages.cause_of_end(guard) or account.partition(". ")[0]
        yield {"kind": "exit", "notable": True, "unix_s": guard.ended_unix_s, **about,
               "cause": "guard", "certainty": "exact", "reason": reason, "text": account,
               "rescue": None}  # fmt: skip


def _matches(guard: GuardRecord, task: str | None) -> bool:
    if task is None:
        return True
    pid = parse_pid(task)
    if pid is not None:
        return pid in (guard.pid, *(each.pid for each in guard.rescues))
    wanted = os.path.basename(task.strip()).casefold()
    # a training below a launcher has the name of its folder of rescues
    folders = [os.path.dirname(each.path) for each in guard.rescues]
    names = [guard.name, *map(os.path.basename, folders)]
    is_named = bool(wanted) and any(wanted in name.casefold() for name in names)
    if not (is_named and guard.directory and guard.command and os.path.isfile(task)):
        return is_named
    # In other folders there are programs of the same name.
    words = [os.path.join(guard.directory, each) for each in shlex.split(guard.command)]
    beside = {os.path.join(os.path.dirname(each), "..", os.path.basename(task)) for each in folders}
    return os.path.realpath(task) in map(os.path.realpath, (*words, *beside))
