"""
The journal's file: opened, or set aside where it cannot be trusted.

SQLite in WAL mode. What SQLite calls damaged, what is of another version and what is no file is
put under a new name, and a new journal is begun; what the disk refuses at the moment is left.
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
    set_aside: str | None  # where one lies now that could not be used
    why: str  # it could not, in words that follow "it"


def open_journal(path: str) -> OpenedJournal:
    """
    The journal at `path`; a new one where there is none, or none that can be used.

    Raises:
        sqlite3.Error, OSError: it cannot be opened; nothing that was there is lost.
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
            raise  # full, read-only, locked: the file is as good as it was
        if isinstance(error, _OtherVersion):
            why = f"is of another version of watchdog ({error})"
            set_aside = _set_aside(path, "other-version")
        else:
            set_aside = _set_aside(path)
        return OpenedJournal(_connect(path), set_aside, why)


def check_owners(folder: str, path: str) -> None:
    """
    What a journal says is acted on: which processes are resumed, what is thawed.

    Args:
        folder: that holds the journal.
        path: of the journal.

    Raises:
        PermissionError: somebody else may have written it.
    """
    for each in (folder, path, f"{path}-wal", f"{path}-shm"):
        with suppress(FileNotFoundError):
            found = os.stat(each)
            if paths.is_foreign(found):
                raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", each)


def _is_not_regular_file(path: str) -> bool:
    """A folder or a pipe; a link may lead to a disk that is not mounted, and is its user's."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISLNK(mode)


class _OtherVersion(sqlite3.DatabaseError):
    """It is whole, and may be of use to the watchdog that wrote it: none of these is removed."""


def _columns(db: sqlite3.Connection) -> frozenset[tuple[str, str]]:
    """Every column of every table, each with its table."""
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
    Give the file the tables of this version, where it has none.

    Raises:
        sqlite3.DatabaseError: it has others, or is damaged.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, _SCHEMA_VERSION):
        raise _OtherVersion(f"schema {version}")
    if version == 0:
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_SCHEMA_VERSION}; COMMIT;")
        with suppress(OSError):
            sync_folder(os.path.dirname(path))  # SQLite does not, for a new file
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
        sync_folder(folder)  # else the new one could be all that a loss of power leaves
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
