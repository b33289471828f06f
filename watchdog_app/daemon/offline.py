"""Resumes tasks that a daemon paused, while no daemon runs."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.errors import SensorError, TargetDenied, TaskNotFound, WatchdogError
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon import pauses
from watchdog_app.daemon.instance import boot_id
from watchdog_app.daemon.pauses import Pause
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.past import open_read_only


def resume(task: str | None) -> dict[str, Any] | None:
    """
    Resume tasks that a daemon has paused; answer as the protocol's `task.resume`.

    Leaves alone what others have stopped, such as with Ctrl-Z.

    Args:
        task: pid, name, or a part of the name that matches only one; None: all.

    Returns:
        `resumed`: `{task, name, pids}` each; `failures`: refusals of the system, as text. None:
        there is no record of pauses.

    Raises:
        TaskNotFound: no paused task, or more than one, matches the name.
        WatchdogError: the record of pauses cannot be read.
    """
    from watchdog_app.machine import process_control

    found = _read_pauses(thaw=True)
    if found is None:
        return None
    resumed, failures = [], []
    entries: list[Entry] = []
    remaining = {pause.task: pause for pause in found}
    for pause in _select(found, task):
        try:
            runs = process_control.resume(pause.paused)
        except TargetDenied as error:
            failures.append(str(error))
            continue
        del remaining[pause.task]
        entries += _resume_entries(pause, len(runs))
        resumed.append(
            {"task": pause.task.pid, "name": pause.name, "pids": [key.pid for key in runs]}
        )
    _save(remaining.values(), entries)
    return {"resumed": resumed, "failures": failures}


def paused() -> list[dict[str, Any]]:
    """
    Pauses of an earlier daemon that still hold: `{task, name, reason, at_unix_s}` each.

    `at_unix_s` is None if the daemon ended before it recorded the time.

    Raises:
        WatchdogError: the record cannot be read; the message names stopped tasks.
    """
    return [
        {
            "task": pause.task.pid,
            "name": pause.name,
            "reason": pause.reason,
            "at_unix_s": pause.paused.at_unix_s or None,
        }
        for pause in _read_pauses(thaw=False) or ()
    ]


def _read_pauses(*, thaw: bool) -> list[Pause] | None:
    """
    The pauses in force; None: there is no record.

    Args:
        thaw: undo an interrupted freeze, which is necessary before any process is resumed.

    Raises:
        WatchdogError: the record cannot be read.
    """
    try:
        stored = pauses.read(pauses.folders(), boot_id())
    except WatchdogError as error:
        raise WatchdogError(f"{error}{stopped_tasks()}") from error
    if stored is None:
        return None
    if not stored:
        return []
    from watchdog_app.machine.sensors import open_machine

    with closing(open_machine()) as machine:

        def state_of(key: ProcessKey) -> str | None:
            try:
                return machine.read_process(key).state
            except SensorError:
                return None

        if thaw:
            for each in stored:
                pauses.thaw_unfinished(each)
        found = [pauses.still_paused(each, state_of) for each in stored]
    return [pause for pause in found if pause is not None]


def _resume_entries(pause: Pause, count: int) -> list[Entry]:
    """The entries of the request and of its outcome, as a daemon writes them."""
    from watchdog_app.core.model.decisions import DecisionKind, Outcome, OutcomeStatus
    from watchdog_app.history.entries import TaskRef, outcome_entry, request_entry

    now, kind = time.time(), DecisionKind.RESUME.value
    id_ = f"request-offline-{pause.task.pid}-{int(now)}"
    by = f"the cli (pid {os.getpid()}) while no daemon answered"
    detail = f"{count} of its processes run again."
    outcome = Outcome(id_, OutcomeStatus.DONE, now, 0.0, detail, {})
    task = TaskRef(pause.task, pause.name, None)
    return [
        request_entry(id_, kind, task, by=by, unix_s=now),
        outcome_entry(outcome, kind, task),
    ]


def _save(remaining: Iterable[Pause], entries: Iterable[Entry]) -> None:
    """Save the remaining pauses and the entries, as far as the disk allows."""
    content = pauses.encode_file(boot_id(), remaining)
    for folder in pauses.folders():
        with suppress(OSError):
            pauses.write(folder, content)
    state = paths.state_dir()
    if not os.path.exists(os.path.join(state, "journal.db")):
        return
    with suppress(sqlite3.Error, OSError, WatchdogError), open_read_only(state):
        # Open the journal for writing only if it can be read. A damaged one would be set aside,
        # which the next daemon must do and report. Nothing is trimmed here: the daemon's settings
        # decide how much is kept.
        journal = Journal(state, max_age_s=float("inf"), max_bytes=1 << 62)
        with closing(journal):
            journal.add(entries)


def _select(pauses: Sequence[Pause], task: str | None) -> Sequence[Pause]:
    if task is None:
        return pauses
    pid = parse_pid(task)
    folded = os.path.basename(task.strip()).casefold()
    for fits in (
        lambda pause: pause.task.pid == pid,
        lambda pause: pid is None and pause.name.casefold() == folded,
        lambda pause: pid is None and bool(folded) and folded in pause.name.casefold(),
    ):
        found = [pause for pause in pauses if fits(pause)]
        if len(found) == 1:
            return found
        if found:
            break
    listed = tuple({"pid": pause.task.pid, "name": pause.name} for pause in pauses)
    what = "No task" if not found else f"{len(found)} tasks"
    raise TaskNotFound(
        f"{what} that watchdog has paused answers to {task!r}. No daemon runs, so that only "
        "what is written down as paused can be resumed. What somebody else has stopped, for "
        f"example with Ctrl-Z, is resumed with: kill -CONT {pid or 'PID'}",
        candidates=listed,
    )


def stopped_tasks() -> str:
    """
    The tasks that are stopped, for when the record of pauses cannot be read.

    A sentence with a space before it; empty if no task is stopped.
    """
    from watchdog_app.base.text.plain import clean
    from watchdog_app.core.model.tasks import group_processes
    from watchdog_app.machine.sensors import open_machine

    with suppress(WatchdogError, OSError), closing(open_machine()) as machine:
        seen = machine.sample(time.monotonic(), time.time())
        found = [task for task in group_processes(seen.processes, seen.infos) if task.paused]
        if found:
            named = ", ".join(f"{clean(task.name)} (pid {task.key.pid})" for task in found)
            return f" Stopped now, by anyone: {named}. Resume one with: kill -CONT PID"
    return ""
