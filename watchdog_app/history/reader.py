"""
Opens the journal read-only, also on a disk that is full or read-only.

To read a file in WAL mode, SQLite needs an index file next to it. It must create the index if the
last writer has exited. If it cannot, this module reads a copy in another folder. Source:
sqlite.org/wal.html, "Read-Only Databases".
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from urllib.parse import quote

from watchdog_app.history.journal import Journal
from watchdog_app.history.journal_file import check_owners

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - used only for a private folder in it


@contextmanager
def open_read_only(folder: str) -> Iterator[Journal]:
    """
    The journal in `folder`, without changing its content.

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
