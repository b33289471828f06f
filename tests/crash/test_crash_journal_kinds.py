"""Odd files at the journal's path: watchdog neither loses, waits for nor trusts them."""

from __future__ import annotations

import os
import sqlite3

import pytest

from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.past import open_read_only

DAY_S, MIB = 86400.0, 1 << 20


def write(folder) -> None:
    """Check that a journal opens and keeps what the test writes."""
    journal = Journal(str(folder), DAY_S, MIB)
    journal.add([Entry(1.0, "daemon", {})], sync=True)
    journal.close()


def aside(folder, word: str) -> list:
    return sorted(folder.glob(f"journal.db.{word}-*[0-9]"))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_set_aside_whole(tmp_path, kind):
    """Its contents stay."""
    path = tmp_path / "journal.db"
    if kind == "folder":
        path.mkdir()
        (path / "mine").write_text("kept")
    else:
        os.mkfifo(path)

    write(tmp_path)

    (found,) = aside(tmp_path, "damaged")
    assert path.is_file()
    assert found.is_fifo() if kind == "pipe" else (found / "mine").read_text() == "kept"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_reading_waits_for_nothing(tmp_path, kind):
    """`watchdog history` with a pipe at the journal's path."""
    (tmp_path / "journal.db").mkdir() if kind == "folder" else os.mkfifo(tmp_path / "journal.db")

    with pytest.raises((OSError, sqlite3.Error)), open_read_only(str(tmp_path)):
        """Not reached."""


def test_a_link_to_a_disk_that_is_not_there_is_left(tmp_path):
    """The disk may be mounted later, and the link belongs to the user."""
    path = tmp_path / "journal.db"
    path.symlink_to("/not/mounted/journal.db")

    with pytest.raises((OSError, sqlite3.Error)):
        write(tmp_path)

    assert path.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_strangers_journal_is_neither_believed_nor_moved(tmp_path):
    """A journal says which tasks to resume, so only its owner or root may write it."""
    write(tmp_path)
    path = tmp_path / "journal.db"
    before = path.read_bytes()
    os.chown(path, 1234, 1234)

    with pytest.raises(PermissionError, match="belongs to user 1234"):
        write(tmp_path)
    with (
        pytest.raises(PermissionError, match="belongs to user 1234"),
        open_read_only(str(tmp_path)),
    ):
        """Not reached."""

    assert before == path.read_bytes()


def test_journals_of_other_versions_are_all_kept(tmp_path):
    """
    After five upgrades and downgrades each journal is complete, because the user may need it again.
    """
    for number in range(5):
        write(tmp_path)
        with sqlite3.connect(tmp_path / "journal.db") as other:
            other.execute(f"PRAGMA user_version={7 + number}")
        other.close()

    write(tmp_path)

    kept = aside(tmp_path, "other-version")
    assert 5 == len(kept)
    for each in kept:
        db = sqlite3.connect(each)
        assert [(1,)] == db.execute("SELECT count(*) FROM entries").fetchall()
        db.close()
