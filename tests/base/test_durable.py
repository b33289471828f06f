"""Files are complete at any moment, also with several writers and after a kill."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from watchdog_app.base.durable import make_folders, write_atomic


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


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="no /proc tells who is alive")
def test_the_remains_of_a_kill_go_with_the_next_write(tmp_path):
    """Those of living writers and of other files stay, also of files with a longer name."""
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)
    left, *kept = (
        tmp_path / f".{name}.00.watchdog-new"
        for name in (
            f"a.{ended}",
            f"b.{ended}",
            f"a.{os.getpid()}",
            f"a.json.{os.getpid()}",
            f"a.{ended}.{os.getpid()}",
        )
    )
    for each in (left, *kept):
        each.write_text("half")

    write_atomic(str(tmp_path / "a"), b"whole")

    assert {*(each.name for each in kept), "a"} == set(os.listdir(tmp_path))


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


def test_a_missing_drive_is_an_error(monkeypatch):
    """The root of a missing drive has no parent."""
    monkeypatch.setattr(os.path, "isdir", lambda _: False)

    with pytest.raises(FileExistsError):
        make_folders("/")
