"""
Opens the journal's file, or sets it aside if it cannot be trusted.

SQLite in WAL mode. A damaged file, a file of another version and a path that is not a file get a
new name. Then a new journal is created. If the disk refuses for the moment, the file stays.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import time
from contextlib import closing, suppress
from typing import NamedTuple

from watchdog_app.base import paths
from watchdog_app.base.durable import make_folders, sync_folder

_SCHEMA_VERSION = 3
_SCHEMA = """
CREATE TABLE entries (
  id INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, kind TEXT NOT NULL,
  pid INTEGER, name TEXT, path TEXT, data TEXT NOT NULL);
CREATE INDEX entries_by_time ON entries (unix_ms);
CREATE TABLE series (
  id INTEGER PRIMARY KEY, ident TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  pid INTEGER, name TEXT NOT NULL, path TEXT, unit TEXT NOT NULL, last_unix_ms INTEGER NOT NULL);
CREATE TABLE points (
  series INTEGER NOT NULL, unix_ms INTEGER NOT NULL, used, limit_, swap,
  PRIMARY KEY (series, unix_ms)) WITHOUT ROWID;
CREATE TABLE hits (task INTEGER NOT NULL, resource INTEGER NOT NULL,
  PRIMARY KEY (task, resource)) WITHOUT ROWID;
CREATE TABLE state (key TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID;
"""
_MOST_SET_ASIDE = 3
_CACHE_KIB = 512


class OpenedJournal(NamedTuple):
    """A journal that can be written."""

    db: sqlite3.Connection
    set_aside: str | None  # new path of a journal that could not be used
    why: str  # the reason, in words that follow "it"


def open_journal(path: str) -> OpenedJournal:
    """
    The journal at `path`; a new one if there is none or if it cannot be used.

    Raises:
        sqlite3.Error, OSError: the journal cannot be opened; its content is not lost.
    """
    folder = os.path.dirname(path)
    make_folders(folder, 0o700)
    check_owners(folder, path)
    why, set_aside = "was damaged", None
    if _is_not_regular_file(path):
        set_aside = _set_aside(path)
    try:
        return OpenedJournal(_connect(path), set_aside, why)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not _is_corrupt(error):
            raise  # full, read-only or locked: the file itself is good
        if isinstance(error, _OtherVersion):
            why = f"is of another version of watchdog ({error})"
            set_aside = _set_aside(path, "other-version")
        else:
            set_aside = _set_aside(path)
        return OpenedJournal(_connect(path), set_aside, why)


def check_owners(folder: str, path: str) -> None:
    """
    Refuse a journal of another user: the daemon resumes and thaws the processes that it names.

    Args:
        folder: the folder of the journal.
        path: the file of the journal.

    Raises:
        PermissionError: another user may have written it.
    """
    for each in (folder, path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            found = os.stat(each)
            if paths.is_foreign(found):
                raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", each)


def _is_not_regular_file(path: str) -> bool:
    """True for a folder or a pipe. A link counts as regular: its disk may not be mounted yet."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISLNK(mode)


class _OtherVersion(sqlite3.DatabaseError):
    """The file is intact and may serve another version of watchdog: never delete such files."""


def _columns(db: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    """Every column of every table as (table, column)."""
    return frozenset(
        db.execute(
            "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c"
            " WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%'"
        )
    )


def _is_corrupt(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "auto_vacuum=INCREMENTAL",  # before the first table, or it has no effect
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"cache_size=-{_CACHE_KIB}",
            "journal_size_limit=4194304",
            "temp_store=MEMORY",
        ):
            db.execute(f"PRAGMA {pragma}").fetchall()
        _ensure_schema(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _ensure_schema(db: sqlite3.Connection, path: str) -> None:
    """
    Create the tables of this version if the file has none.

    Raises:
        sqlite3.DatabaseError: the file has other tables or is damaged.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, _SCHEMA_VERSION):
        raise _OtherVersion(f"schema {version}")
    if version == 0:
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_SCHEMA_VERSION}; COMMIT;")
        with suppress(OSError):
            sync_folder(os.path.dirname(path))  # SQLite does not sync the folder of a new file
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_SCHEMA)
        expected = _columns(empty)
    if _columns(db) != expected:
        raise sqlite3.DatabaseError("its tables are not those of this version")
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _set_aside(path: str, word: str = "damaged") -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target = f"{path}.{word}-{stamp}"
    number = 1
    while os.path.lexists(target):
        number += 1
        target = f"{path}.{word}-{stamp}-{number}"
    os.replace(path, target)
    for end in ("-wal", "-shm"):
        with suppress(OSError):
            os.replace(path + end, target + end)
    folder = os.path.dirname(path)
    with suppress(OSError):
        sync_folder(folder)  # else a loss of power could leave only the new file
    kept = sorted(
        name
        for name in os.listdir(folder)
        if name.startswith("journal.db.damaged-") and not name.endswith(("-wal", "-shm"))
    )
    for name in kept[:-_MOST_SET_ASIDE]:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name + end))
    return target
