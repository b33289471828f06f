"""The history for clients: from the daemon, or from the last daemon's journal if none runs."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote

from watchdog_app.base import paths
from watchdog_app.base.errors import DaemonNotRunning, TaskNotFound, WatchdogError
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import moment
from watchdog_app.history.journal import Journal
from watchdog_app.history.journal_file import check_owners

Json = dict[str, Any]
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - used only for a private folder in it


class HistorySource:
    """
    The history. Each method asks the daemon; `missing` says that no daemon runs.

    Raises:
        WatchdogError: from each method: the daemon refused, or the journal cannot be read.
    """

    def __init__(self) -> None:
        self.missing: DaemonNotRunning | None = None

    def history(self, **wanted: Any) -> list[Json] | None:
        """
        Entries, newest first, with each series of saves as one entry; None: no daemon and no
        journal.

        Args:
            wanted: the arguments of `Journal.history`.
        """
        answer = self._call_daemon("history", wanted)
        if answer is not None:
            return list(answer.get("entries") or [])
        return self.read_journal(**wanted)

    def read_journal(self, **wanted: Any) -> list[Json] | None:
        """Like `history`, from the journal only; for a daemon that does not answer, too."""
        with _open_journal() as journal:
            return None if journal is None else journal.history(**wanted, fold_saves=True)

    def series(self, **wanted: Any) -> list[Json] | None:
        """
        Series of values; None: no daemon runs and no journal exists.

        Args:
            wanted: the arguments of `Journal.series`.
        """
        answer = self._call_daemon("series", wanted)
        if answer is not None:
            return list(answer.get("series") or [])
        with _open_journal() as journal:
            return None if journal is None else journal.series(**wanted)

    def explain(self, task: str | None, minutes: float | None) -> Json | None:
        """
        The answer of the method `explain`; without a daemon only the last death, or that of a task.

        Args:
            task: pid, name, path, kernel id or incident; None: everything.
            minutes: time span of the plot; None: the default.

        Returns:
            None: no daemon runs and no journal exists.

        Raises:
            TaskNotFound: neither the daemon nor the journal knows such a task or death.
        """
        span = {} if minutes is None else {"minutes": minutes}
        answer = self._call_daemon("explain", {"task": task, **span})
        if answer is not None:
            return answer
        from watchdog_app.history import past_exits

        with _open_journal() as journal:
            if journal is None:
                return None
            found = past_exits.explain_death(
                journal, task, minutes or past_exits.MINUTES, time.time()
            )
        if found is None and task is not None:
            raise TaskNotFound(
                f"No daemon runs, and the journal knows of no death of {task!r}. "
                "Start it: watchdog start"
            )
        return {"text": None, "incidents": [], **(found or {})}

    def find_end(self, task: str) -> Json | None:
        """The journal's entry of the end of a task; None: unknown."""
        try:
            death = (self.explain(task, None) or {}).get("death")
        except WatchdogError:
            return None
        return death if isinstance(death, dict) else None

    def _call_daemon(self, method: str, wanted: Json) -> Json | None:
        from watchdog_app.client.client import request

        try:
            found: Json = request(method, **wanted)
        except DaemonNotRunning as error:
            self.missing = error
            return None
        return found


def describe_end(death: Json) -> str:
    """How a task ended, its rescue, and the command that shows more."""
    at, text = moment(death.get("unix_s")), clean(str(death.get("text")), 500)
    return f"Ended at {at}: {text} More: watchdog explain {death.get('pid')}"


def describe_restart(death: Json) -> str:
    """That an ended task cannot be resumed like a paused one, and how to run it again."""
    from watchdog_app.core.explain.exits import resume_lines

    name = clean(str(death.get("name") or f"Process {death.get('pid')}"))
    return "\n".join([f"{name} has ended; resume is for paused tasks.", *resume_lines(death)])


@contextmanager
def _open_journal() -> Iterator[Journal | None]:
    folder = paths.state_dir()
    if not os.path.exists(os.path.join(folder, "journal.db")):
        yield None
        return
    try:
        with open_read_only(folder) as journal:
            yield journal
    except (sqlite3.Error, OSError) as error:
        raise WatchdogError(
            f"The journal in {folder} cannot be read: {error}. No daemon runs either; "
            "start it with: watchdog start"
        ) from error


@contextmanager
def open_read_only(folder: str) -> Iterator[Journal]:
    """
    The journal in `folder`, without changing its content; also on a full or read-only disk.

    To read a file in WAL mode, SQLite needs an index file next to it. It must create the index if
    the last writer has exited. If it cannot, this function reads a copy in another folder. Source:
    sqlite.org/wal.html, "Read-Only Databases".

    Raises:
        sqlite3.Error, OSError: the journal cannot be read.
    """
    path = os.path.join(folder, "journal.db")
    check_owners(folder, path)
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
        raise OSError(errno.EINVAL, "it is no regular file", path)
    with ExitStack() as stack:
        try:
            db = _connect(path, "mode=ro")
        except sqlite3.OperationalError:
            copy = _copy_journal(path, stack)
            # No room for a copy: read the file without the changes that are still in the WAL.
            db = _connect(path, "immutable=1") if copy is None else _connect(copy, "mode=rw")
        yield Journal.from_connection(stack.enter_context(closing(db)))


def _copy_journal(path: str, stack: ExitStack) -> str | None:
    for place in (None, _SHARED_MEMORY):
        with suppress(OSError):
            folder = tempfile.TemporaryDirectory(
                prefix="watchdog-", dir=place, ignore_cleanup_errors=True
            )
            copy = os.path.join(stack.enter_context(folder), "journal.db")
            shutil.copyfile(path, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(path + "-wal", copy + "-wal")
            return copy
    return None


def _connect(path: str, how: str) -> sqlite3.Connection:
    name = f"file:{quote(os.path.abspath(path))}?{how}"
    db = sqlite3.connect(name, uri=True, timeout=2.0, isolation_level=None)
    try:
        db.execute("SELECT count(*) FROM state").fetchone()
    except BaseException:
        db.close()
        raise
    return db
