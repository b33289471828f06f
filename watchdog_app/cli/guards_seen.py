"""
What is known without a daemon: tasks that one left paused, and guards that run or are over.

Supervisors write down what becomes of their guards, and the daemon whom it pauses.
"""

from __future__ import annotations

import os

from watchdog_app.base import paths
from watchdog_app.base.text.quantities import guard_level, pid_in
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from watchdog_app.guard.record import GuardRecord

    Json = dict[str, Any]

_STATES = {
    "copying": "being saved",
    "finishing": "has the reserve until its step ends",
    "exiting": "interrupted; has the reserve to end",
    "refusing": "refused more memory",
    "unlimited": "no limit of its own",
    "ending": "being ended",
}
_TOLD = ("stopped", "refusing", "unlimited", "ending", "running")
_SAME_S = 10.0  # what the daemon noted of the same moment
_OURS = ("hold", "guard ")


def left_paused() -> list[str]:
    """What is still paused, and the command that resumes it, a sentence each; else nothing."""
    copies = (
        os.path.join(where, "paused.json") for where in (paths.runtime_dir(), paths.state_dir())
    )
    if not any(map(os.path.exists, copies)):
        return []
    from watchdog_app.daemon import offline

    paused = offline.paused()
    if not paused:
        return []
    names = ", ".join(f"{plain(each['name'])} (pid {each['task']})" for each in paused)
    return [
        f"Still paused by watchdog: {names}.",
        f"Resume {'it' if len(paused) == 1 else 'them'}: watchdog resume --all",
    ]


def line(guard: GuardRecord) -> str:
    """One that runs: how full, and what to type where it is held."""
    from watchdog_app.guard import messages

    state = "" if guard.state == "running" else f", {_STATES.get(guard.state, guard.state)}"
    if guard.state == "stopped":
        resume = f"watchdog limit {guard.pid} {messages.next_limit(guard)}"
        state = f", stopped at its limit; to resume it: {resume}"
    level = guard_level(guard, automatic=guard.follows_machine)
    return f"{plain(guard.name)} (pid {guard.pid}): {level}, {guard.kind}{state}"


def every() -> list[GuardRecord]:
    """Those that run, with what they hold now: supervisors write that every few seconds only."""
    from watchdog_app.base.linux.cgroups import read_usage
    from watchdog_app.guard import record

    found = record.every()
    for guard in found:
        if guard.group is not None:
            guard.used_bytes = read_usage(guard.group).held_bytes or guard.used_bytes
    return found


def running() -> list[str]:
    """Those that run, a line each."""
    return [line(guard) for guard in every()]


def explained(task: str | None, since_unix_s: float = 0.0) -> list[str]:
    """
    What is to be said of guards: of those that run, and of the last that had to act.

    Args:
        task: pid or name; None: of all.
        since_unix_s: of those that are over only one that ended after it.
    """
    from watchdog_app.guard import messages, record

    found = [
        f"{guard.name} (pid {guard.pid}) {'is stopped' if guard.stopped else 'runs'}. "
        f"{messages.explained(guard)}"
        for guard in every()
        if _is(guard, task)
    ]
    for guard in record.past():
        if (guard.ended_unix_s or 0.0) > since_unix_s and _is(guard, task):
            said = messages.past(guard)
            if said:
                found.append(f"{stamp(guard.ended_unix_s)}: {said}")
                break
    return found


def entries(noted: list[Json], wanted: Json) -> list[Json]:
    """
    The history with what guards did while no daemon ran, newest first.

    Args:
        noted: entries of the journal.
        wanted: as `Journal.history` takes them.
    """
    from watchdog_app.guard import record

    known = [
        (each.get("pid"), float(each.get("unix_s") or 0.0))
        for each in noted
        if each.get("kind") == "death" or str(each.get("decision_kind") or "").startswith(_OURS)
    ]
    kinds, since, until = (
        wanted.get("kinds"),
        wanted.get("since_unix_s"),
        wanted.get("until_unix_s"),
    )
    more = [
        entry
        for guard in (*record.every(), *record.past())
        if _is(guard, wanted.get("task"))
        for entry in _entries(guard)
        if (kinds is None or entry["kind"] in kinds)
        and (since is None or entry["unix_s"] >= since)
        and (until is None or entry["unix_s"] <= until)
        and not any(pid == guard.pid and abs(at - entry["unix_s"]) < _SAME_S for pid, at in known)
    ]
    merged = sorted([*noted, *more], key=lambda each: -float(each.get("unix_s") or 0.0))
    return merged[: wanted.get("limit")]


def _entries(guard: GuardRecord) -> Iterator[Json]:
    from watchdog_app.guard import messages

    about = {"pid": guard.pid, "start_time": guard.start_time, "name": guard.name}
    for event in guard.events:
        at, kind = event.get("unix_s"), str(event.get("kind"))
        if isinstance(at, int | float) and kind in _TOLD:
            text = str(event.get("text")).partition("\n")[0]
            word = "hold" if kind == "stopped" else f"guard {kind}"
            yield {"kind": "decision", "unix_s": float(at), **about,
                   "decision_kind": word, "text": text}  # fmt: skip
    said = messages.past(guard) if guard.ended_unix_s is not None else ""
    if said and guard.state in ("stopped", "exiting", "ending", "refusing"):
        reason = messages.cause_of_end(guard) or said.partition(". ")[0]
        yield {"kind": "death", "unix_s": guard.ended_unix_s, **about, "cause": "guard",
               "certainty": "exact", "reason": reason, "text": said, "rescue": None}  # fmt: skip


def _is(guard: GuardRecord, task: str | None) -> bool:
    if task is None:
        return True
    pid = pid_in(task)
    wanted = os.path.basename(task.strip()).casefold()
    return guard.pid == pid if pid is not None else bool(wanted) and wanted in guard.name.casefold()
