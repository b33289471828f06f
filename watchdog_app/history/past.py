"""The past without a daemon: the journal that the last one left."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.errors import TaskNotFound, WatchdogError
from watchdog_app.history.journal import Journal
from watchdog_app.history.reader import reading


def history(**wanted: Any) -> list[dict[str, Any]] | None:
    """
    Entries of the journal, newest first, a series of saves in one; None: there is no journal.

    Args:
        wanted: as `Journal.history` takes them.

    Raises:
        WatchdogError: there is one, and it cannot be read.
    """
    with _opened() as journal:
        return None if journal is None else journal.history(**wanted, fold_saves=True)


def series(**wanted: Any) -> list[dict[str, Any]] | None:
    """
    Series of the journal; None when there is no journal.

    Args:
        wanted: as `Journal.series` takes them.

    Raises:
        WatchdogError: there is one, and it cannot be read.
    """
    with _opened() as journal:
        return None if journal is None else journal.series(**wanted)


def explain(task: str | None, minutes: float) -> dict[str, Any] | None:
    """
    The last death, or that of a task, as the protocol's `explain` tells it; None: no journal.

    Args:
        task: pid, name, path, kernel id or incident; None: the last death.
        minutes: of the plot.

    Raises:
        TaskNotFound: the journal knows of no such death.
        WatchdogError: there is one, and it cannot be read.
    """
    from watchdog_app.history import past_exits

    with _opened() as journal:
        if journal is None:
            return None
        found = past_exits.answer(journal, task, minutes, time.time())
    if found is None:
        whom = "" if task is None else f" of {task!r}"
        raise TaskNotFound(
            f"No daemon runs, and the journal knows of no death{whom}. Start it: watchdog start"
        )
    return {"text": None, "incidents": [], **found}


@contextmanager
def _opened() -> Iterator[Journal | None]:
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
