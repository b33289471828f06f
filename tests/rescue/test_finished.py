"""The note of which rescues belong to trainings that ended well, as it may lie on a disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from watchdog_app.rescue.checkpoint import finished
from watchdog_app.rescue.checkpoint.finished import FINISHED_FILE, Finished


def test_what_was_noted_is_read(tmp_path: Path):
    """Of rescues that are still there."""
    (tmp_path / "rescue-a").mkdir()

    finished.add(str(tmp_path), 3, ["rescue-a", "rescue-gone"])

    assert Finished(3, frozenset({"rescue-a"})) == finished.read(str(tmp_path))


@pytest.mark.timeout(60)
def test_trainings_that_end_at_once_note_all_of_theirs(tmp_path: Path):
    """Two threads of one process; neither note is lost, and nothing is left over."""
    names = [f"rescue-{number}" for number in range(40)]
    for name in names:
        (tmp_path / name).mkdir()
    errors: list[BaseException] = []

    def note(mine: list[str]) -> None:
        try:
            for name in mine:
                finished.add(str(tmp_path), 1, [name])
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=note, args=(names[part::2],)) for part in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert [] == errors
    assert frozenset(names) == finished.read(str(tmp_path)).rescues
    assert {*names, FINISHED_FILE} == set(os.listdir(tmp_path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "deep", "bytes"])
def test_what_is_no_note_is_none_and_is_not_waited_for(tmp_path: Path, kind: str):
    """A folder of somebody else's, who wants to see us hang."""
    path = tmp_path / FINISHED_FILE
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "deep":
            path.write_bytes(b"[" * 100_000)
        case "bytes":
            path.write_bytes(b"\xff\x00")

    assert Finished() == finished.read(str(tmp_path))
