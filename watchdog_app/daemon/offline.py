"""
What can be done while no daemon runs, from what the last one left behind.

The history is read, and what was paused is let go, from the journal alone: a
pause can always be undone.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from watchdog_app import paths
from watchdog_app.daemon.journal import Journal
from watchdog_app.daemon.journal_reader import reading
from watchdog_app.errors import TargetDenied, TaskNotFound, WatchdogError


def history(**wanted: Any) -> list[dict[str, Any]] | None:
    """
    Entries of the journal, newest first; None when there is no journal.

    Args:
        wanted: as `Journal.history` takes them.

    Raises:
        WatchdogError: there is one, and it cannot be read.
    """
    with _journal() as journal:
        return None if journal is None else journal.history(**wanted)


def series(**wanted: Any) -> list[dict[str, Any]] | None:
    """
    Series of the journal; None when there is no journal.

    Args:
        wanted: as `Journal.series` takes them.

    Raises:
        WatchdogError: there is one, and it cannot be read.
    """
    with _journal() as journal:
        return None if journal is None else journal.series(**wanted)


def resume(task: str | None, failures: list[str] | None = None) -> list[dict[str, Any]] | None:
    """
    Let go on what a daemon has paused; what runs again, as the protocol's `task.resume` says it.

    Args:
        task: its pid, name or a part of the name that fits one alone; None: all.
        failures: takes what the system refused, in words; None: raised when all the others run.

    Returns:
        `{task, name, pids}` each; None when there is no journal.

    Raises:
        TaskNotFound: none that is paused, or more than one, answers to that name.
        WatchdogError: the journal cannot be read, or the system refused.
    """
    from watchdog_app.actions import processes
    from watchdog_app.daemon.instance import boot_id
    from watchdog_app.daemon.pauses import Pause, remembered
    from watchdog_app.errors import SensorError
    from watchdog_app.sensors.machine import open_machine

    refused: list[str] = []
    ended: list[str] = []
    with _journal() as journal:
        if journal is None:
            return None
        machine = open_machine()

        def state_of(key: Any) -> str | None:
            try:
                return machine.read_process(key).state
            except SensorError:
                return None

        boot = boot_id()
        standing: dict[str, Pause] = {}
        for ident, stored in journal.pauses().items():
            pause = remembered(stored, boot, state_of)
            if pause is None:
                ended.append(ident)
            else:
                standing[ident] = pause
        resumed = []
        for ident, pause in _chosen(standing, task).items():
            try:
                found = processes.resume(pause.paused)
            except TargetDenied as error:
                refused.append(str(error))
                continue
            ended.append(ident)
            resumed.append(
                {
                    "task": pause.task.pid,
                    "name": pause.name,
                    "pids": [key.pid for key in found.keys],
                }
            )
    _forget(ended)
    if failures is not None:
        failures += refused
    elif refused:
        raise TargetDenied(" ".join(refused))
    return resumed


def _forget(idents: Iterable[str]) -> None:
    """As far as the disk allows: what runs again is known as such also by its state."""
    with suppress(sqlite3.Error, OSError):
        # Nothing is trimmed here: how much is kept is for the daemon's settings to say.
        journal = Journal(paths.state_dir(), max_age_s=float("inf"), max_bytes=1 << 62)
        with closing(journal):
            for ident in idents:
                journal.drop_pause(ident)


def _chosen(standing: Mapping[str, Any], task: str | None) -> Mapping[str, Any]:
    if task is None:
        return standing
    folded = task.strip().casefold()
    for fits in (
        lambda pause: str(pause.task.pid) == folded,
        lambda pause: pause.name.casefold() == folded,
        lambda pause: bool(folded) and folded in pause.name.casefold(),
    ):
        found = {ident: pause for ident, pause in standing.items() if fits(pause)}
        if len(found) == 1:
            return found
        if found:
            break
    listed = tuple({"pid": one.task.pid, "name": one.name} for one in standing.values())
    what = "No task" if not found else f"{len(found)} tasks"
    raise TaskNotFound(
        f"{what} that watchdog has paused answers to {task!r}. No daemon runs, so that only "
        "what is written down as paused can be resumed.",
        candidates=listed,
    )


@contextmanager
def _journal() -> Iterator[Journal | None]:
    folder = paths.state_dir()
    if not os.path.exists(os.path.join(folder, "journal.db")):
        yield None
        return
    try:
        with reading(folder) as journal:
            yield journal
    except (sqlite3.Error, OSError) as error:
        raise WatchdogError(
            f"The journal in {folder} cannot be read: {error}. No daemon runs either; "
            "start it with: watchdog start"
        ) from error
