"""Files are complete at any moment, also with several writers and after a kill."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from watchdog_app.base.durable import make_folders, remove_temporary_files, write_atomic


def test_of_several_writers_each_leaves_a_complete_file(tmp_path):
    """The last rename wins; no writer fails and no temporary file remains."""
    path = tmp_path / "state.json"
    contents = [bytes([65 + number]) * 100_000 for number in range(8)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_atomic(str(path), content), contents))

    assert path.read_bytes() in contents
    assert ["state.json"] == os.listdir(tmp_path)


def test_a_write_that_fails_keeps_the_old_file(tmp_path):
    """A folder in the way makes the rename fail; nothing else remains."""
    (tmp_path / "state.json").mkdir()

    with pytest.raises(OSError, match=r"state\.json"):
        write_atomic(str(tmp_path / "state.json"), b"new")

    assert ["state.json"] == os.listdir(tmp_path)


def test_the_remains_of_a_kill_go_with_a_later_write(tmp_path):
    """Only those that no writer can still use, and only those of this file."""
    old, young, other = (
        tmp_path / name
        for name in (".a.00.watchdog-new", ".a.01.watchdog-new", ".b.00.watchdog-new")
    )
    for each in (old, young, other):
        each.write_text("half")
    os.utime(old, (1, 1))
    os.utime(other, (1, 1))

    write_atomic(str(tmp_path / "a"), b"whole")

    assert {young.name, other.name, "a"} == set(os.listdir(tmp_path))
    remove_temporary_files(str(tmp_path / "a"))
    assert {other.name, "a"} == set(os.listdir(tmp_path))


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_mode_is_as_asked_for_any_umask(tmp_path, mode):
    """Also where the file existed with another mode; a link is replaced, not followed."""
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("theirs")
    path.symlink_to(target)

    before = os.umask(0o077)
    try:
        write_atomic(str(path), b"ours", mode, (os.getuid(), os.getgid()))
    finally:
        os.umask(before)

    assert mode == stat.S_IMODE(path.lstat().st_mode)
    assert ("theirs", b"ours") == (target.read_text(), path.read_bytes())


def test_missing_folders_are_made_and_others_left_alone(tmp_path):
    """A file in the way is an error."""
    make_folders(str(tmp_path / "a/b"), 0o700)
    (tmp_path / "file").write_text("")

    assert 0o700 == stat.S_IMODE((tmp_path / "a/b").stat().st_mode)
    make_folders(str(tmp_path / "a/b"))
    with pytest.raises(OSError, match="file"):
        make_folders(str(tmp_path / "file"))
