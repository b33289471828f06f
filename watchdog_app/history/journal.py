"""
The journal on disk: series, incidents, decisions, outcomes, exits.

SQLite in WAL mode (`journal_file`), used by one thread at a time. Age and size are limited. Texts
are JSON in ASCII, because file names need not be UTF-8 and SQLite's texts must be.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.linux.process import since_boot_s
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.runs import Run
from watchdog_app.history import journal_file, saves
from watchdog_app.history.series import (
    SeriesPoints,
    add_series,
    read_series,
    sqlite_text,
    task_condition,
    time_condition,
)

_OVERFLOW = 1.25
_SYNC_S = 60.0  # fsync at least this often, also without a decision
# SQLite raises these when it binds a value, before it executes any part of the statement.
_UNSTORABLE = (sqlite3.InterfaceError, ValueError, TypeError, OverflowError, RecursionError)
# longest gap before the start that counts; a longer one may be a wrong clock
_MOST_ABSENCE_S = 86400.0
_MOST_RUNS, _MOST_PROGRAMS = 8, 256  # runs kept of each program, and programs
_DELETE_AT_ONCE = 5000  # rows per transaction, so that trimming does not block the disk for long


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `pid`, `name` and `path` of its task serve to find it."""

    unix_s: float
    kind: str
    data: Mapping[str, Any]
    pid: int | None = None
    name: str | None = None
    path: str | None = None


class Journal:
    """
    An open journal in `folder`. Reads skip damaged rows.

    Args:
        folder: the state folder; created if missing.
        max_age_s: age at which entries are deleted.
        max_bytes: limit of the pages in use.

    Raises:
        sqlite3.Error, OSError: the journal cannot be opened; its content is not lost.
    """

    def __init__(self, folder: str, max_age_s: float, max_bytes: int) -> None:
        self.max_age_s = max_age_s
        self.max_bytes = max_bytes
        self._path = os.path.join(folder, "journal.db")
        self._synced_mono_s = time.monotonic()
        # `set_aside`: new path of a journal that could not be used, for the reason `why`.
        self._db, self.set_aside, self.why = journal_file.open_journal(self._path)
        self._inode = os.stat(self._path).st_ino
        self._opened_boot_s = since_boot_s()
        self._newest_unix_s = self._read_newest_unix_s()  # of the existing content

    @classmethod
    def from_connection(cls, db: sqlite3.Connection) -> Journal:
        """A journal on a connection that the caller opened, for reading only."""
        journal = cls.__new__(cls)
        journal._db = db
        return journal

    def is_file_current(self) -> bool:
        """Whether the open file is still at the path that the next daemon would open."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False
        except OSError:
            return True  # the disk does not answer: the next write reports that

    def add(
        self, entries: Iterable[Entry] = (), series: Iterable[SeriesPoints] = (), sync: bool = False
    ) -> None:
        """
        Write entries and points in one transaction.

        Args:
            entries: events.
            series: new points of series.
            sync: whether the data must be on the disk when the call returns.

        Raises:
            ValueError: some items cannot be stored and were left out; the others are written.
            sqlite3.Error: no item is written.
        """
        # A failing disk seems to accept writes until an fsync reports the error.
        sync = sync or time.monotonic() - self._synced_mono_s >= _SYNC_S
        left_out: Exception | None = None
        if sync:
            self._db.execute("PRAGMA synchronous=FULL")  # fsync at the commit: sqlite.org/wal.html
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for write in (
                    *(partial(self._add_entry, entry) for entry in entries),
                    *(partial(add_series, self._db, item) for item in series),
                ):
                    try:
                        write()
                    except _UNSTORABLE as error:
                        left_out = error
            if sync:
                self._synced_mono_s = time.monotonic()
        finally:
            if sync:
                self._db.execute("PRAGMA synchronous=NORMAL")
        if left_out is not None:
            raise ValueError(repr(left_out)) from left_out

    def _add_entry(self, entry: Entry) -> None:
        self._db.execute(
            "INSERT INTO entries (unix_ms, kind, pid, name, path, data) VALUES (?, ?, ?, ?, ?, ?)",
            (
                round(entry.unix_s * 1000),
                entry.kind,
                entry.pid,
                None if entry.name is None else sqlite_text(entry.name),
                None if entry.path is None else sqlite_text(entry.path),
                _dump(entry.data),
            ),
        )

    def history(
        self,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        task: str | None = None,
        limit: int = 100,
        kinds: Sequence[str] = (),
        *,
        all_exits: bool = False,
        fold_saves: bool = False,
    ) -> list[dict[str, Any]]:
        """
        Entries, newest first: `unix_s`, `kind`, and the entry's data.

        Args:
            since_unix_s: time of the oldest; None: any.
            until_unix_s: time of the newest; None: any.
            task: pid, or part of a name or path; None: every task.
            limit: most entries.
            kinds: wanted kinds; empty: all.
            all_exits: exits that are not notable, too.
            fold_saves: merge each series of saves into one entry, see `saves.fold_saves`.
        """
        where, values = time_condition(since_unix_s, until_unix_s)
        if task is not None:
            condition, wanted = task_condition(task)
            where.append(f"({condition})")
            values += wanted
        if kinds:
            where.append(f"kind IN ({','.join('?' * len(kinds))})")
            values += kinds
        rows = self._db.execute(
            f"SELECT unix_ms, kind, data FROM entries WHERE {' AND '.join(where)}"  # noqa: S608
            " ORDER BY unix_ms DESC, id DESC LIMIT ?",
            (*values, saves.MOST_ROWS),
        )
        with closing(rows):
            found = (
                entry
                for row in rows
                if (entry := _read_entry(*row)) is not None
                and (all_exits or entry.get("notable", True))
            )
            return saves.fold_saves(found, limit) if fold_saves else list(islice(found, limit))

    def series(
        self,
        task: str | None = None,
        since_unix_s: float | None = None,
        until_unix_s: float | None = None,
        limit: int = 10_000,
    ) -> list[dict[str, Any]]:
        """See `series.read_series`."""
        return read_series(self._db, task, since_unix_s, until_unix_s, limit)

    def add_run(self, entry: Entry) -> None:
        """Store a run in place of its earlier record; only the last of each program are kept."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(
                "DELETE FROM entries WHERE unix_ms = ? AND kind = 'run' AND pid = ?",
                (round(entry.unix_s * 1000), entry.pid),
            )
            self._add_entry(entry)
            kept: dict[object, int] = {}
            for id_, data in self._db.execute(
                "SELECT id, data FROM entries WHERE kind = 'run' ORDER BY unix_ms DESC"
            ).fetchall():
                key = (_load(data) or {}).get("exact")
                full = key not in kept and len(kept) == _MOST_PROGRAMS
                if full or kept.get(key) == _MOST_RUNS:
                    self._db.execute("DELETE FROM entries WHERE id = ?", (id_,))
                else:
                    kept[key] = kept.get(key, 0) + 1

    def runs(self, path: str) -> list[Run]:
        """The stored runs of a program, oldest first."""
        found = []
        for (data,) in self._db.execute(
            "SELECT data FROM entries WHERE kind = 'run' AND path = ? ORDER BY unix_ms",
            (sqlite_text(path),),
        ).fetchall():
            with suppress(ValueError):
                found.append(codec.decode(Run, _load(data)))
        return found

    def forget_runs(self, program: str | None) -> int:
        """
        Delete the stored runs of a program; return their number.

        Args:
            program: its name or path; None: of every program.
        """
        name = None if program is None else sqlite_text(program)
        gone = self._db.execute(
            "DELETE FROM entries WHERE kind = 'run' AND (? IS NULL OR ? IN (name, path))",
            (name, name),
        )
        return gone.rowcount

    def save_state(self, key: str, data: Mapping[str, Any]) -> None:
        """
        Store state that the next daemon restores.

        Args:
            key: name of the state.
            data: a value that JSON can represent.
        """
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, _dump(data)))

    def load_state(self, key: str) -> dict[str, Any] | None:
        """The data that `save_state` stored under `key`; None: none, or damaged."""
        row = self._db.execute("SELECT data FROM state WHERE key = ?", (key,)).fetchone()
        return _load(row[0]) if row else None

    def trim(self, now_unix_s: float) -> None:
        """
        Delete entries and points that are too old, then the oldest until the size is within its
        limit.
        """
        # A clock that is wrong by far is soon corrected, but deleted entries do not come back. The
        # existing content ages only with the time that daemons have measured.
        seen_s = since_boot_s() - self._opened_boot_s + min(_MOST_ABSENCE_S, self.max_age_s / 4)
        now_unix_s = min(now_unix_s, self._newest_unix_s + seen_s)
        self._delete_before(round((now_unix_s - self.max_age_s) * 1000))
        while self.size_bytes() > self.max_bytes:
            row = self._db.execute("SELECT min(unix_ms), max(unix_ms) FROM points").fetchone()
            first, last = row if row[0] is not None else (None, None)
            if first is None or first == last:
                row = self._db.execute("SELECT min(unix_ms), max(unix_ms) FROM entries").fetchone()
                first, last = row
                if first is None or first == last:
                    break
            self._delete_before(first + max(1, (last - first) // 10))
        with self._db:
            self._db.execute(
                "DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM points)"
            )
            self._db.execute(
                "DELETE FROM hits WHERE task NOT IN (SELECT id FROM series)"
                " OR resource NOT IN (SELECT id FROM series)"
            )
        self._db.execute("PRAGMA incremental_vacuum").fetchall()

    def is_over_limit(self) -> bool:
        """Whether the journal is larger than its limit by more than a quarter."""
        return self.size_bytes() > _OVERFLOW * self.max_bytes

    def size_bytes(self) -> int:
        """Bytes of the pages in use."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {what}").fetchone()[0]
            for what in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def close(self) -> None:
        """Write the WAL back and close the file."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with suppress(sqlite3.Error):
            self._db.close()

    def _read_newest_unix_s(self) -> float:
        """Time of the newest existing row; the current time if there is none, or if it is later."""
        row = self._db.execute(
            "SELECT max(unix_ms) FROM entries UNION ALL SELECT max(last_unix_ms) FROM series"
        )
        written = [ms / 1000 for (ms,) in row if ms is not None]
        return min(time.time(), max(written, default=float("inf")))

    def _delete_before(self, unix_ms: int) -> None:
        for table, key in (("points", "series, unix_ms"), ("entries", "id")):
            while True:
                with self._db:
                    gone = self._db.execute(
                        f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table}"  # noqa: S608
                        " WHERE unix_ms < ? LIMIT ?)",
                        (unix_ms, _DELETE_AT_ONCE),
                    ).rowcount
                if gone < _DELETE_AT_ONCE:
                    break


def _read_entry(unix_ms: int, kind: str, data: Any) -> dict[str, Any] | None:
    """An entry as clients get it, also of an earlier version; None: it is damaged."""
    held = _load(data)
    if held is None:
        return None
    return {"unix_s": unix_ms / 1000, "kind": kind, **held}


def _load(data: Any) -> dict[str, Any] | None:
    """Decode what `_dump` wrote; None if the data is damaged, which SQLite does not notice."""
    try:
        found = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _dump(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), default=str)
