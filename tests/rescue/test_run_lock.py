"""The lock of a run: replaced files, other clocks, forked children."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from watchdog_app.rescue.checkpoint import run_lock, runs
from watchdog_app.rescue.checkpoint.owner import start_time, this_process

RUN = "0123456789ab"


def test_a_lock_file_that_is_removed_or_replaced_is_held_again_at_the_next_beat(tmp_path: Path):
    """The user cleans the folder while the training lives."""
    lock = run_lock.acquire(str(tmp_path), RUN, new=True)
    path = Path(run_lock.lock_path(str(tmp_path), RUN))
    text = path.read_text()
    try:
        for replaced in (False, True):
            path.unlink()
            if replaced:
                path.write_text("{}")
                path.chmod(0o600)
            lock.heartbeat()

            now = json.loads(path.read_text())
            assert path.stat().st_ino == now["inode"]
            assert {**json.loads(text), "inode": now["inode"]} == now
            assert run_lock.check_owner(str(tmp_path), RUN, None, None).life == "alive"
    finally:
        lock.release(remove=True)
    assert not path.exists()


def test_a_lock_that_another_process_has_taken_meanwhile_is_left_to_it(tmp_path: Path):
    """Both hold a separate lock; neither removes the other's."""
    lock = run_lock.acquire(str(tmp_path), RUN, new=True)
    Path(run_lock.lock_path(str(tmp_path), RUN)).unlink()
    other = run_lock.acquire(str(tmp_path), RUN, new=True)
    try:
        lock.heartbeat()

        assert run_lock.check_owner(str(tmp_path), RUN, None, None).life == "alive"
    finally:
        lock.release(remove=True)
        assert os.path.exists(run_lock.lock_path(str(tmp_path), RUN))
        other.release(remove=True)


def test_the_age_of_a_beat_is_told_by_the_clock_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A machine whose clock is an hour ahead must not treat another machine's training as dead."""
    owner = {
        "host": "other",
        "machine": "m",
        "boot": "b",
        "pid": 1,
        "start_time": 1,
        "namespace": "00000000",
        "job": None,
        "restart": 0,
    }
    path = Path(run_lock.lock_path(str(tmp_path), RUN))
    path.write_text(json.dumps(owner))
    path.chmod(0o600)
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)

    assert run_lock.check_owner(str(tmp_path), RUN, None, None).life == "alive"

    os.utime(path, (0, 0))
    assert run_lock.check_owner(str(tmp_path), RUN, None, None).life == "left"


def test_the_lock_decides_where_proc_is_of_another_pid_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`unshare --pid` without a separate /proc: the pid there belongs to another process."""
    held = run_lock.acquire(str(tmp_path), RUN, new=True)
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            began = {"pid": other.pid, "start_time": start_time(other.pid)}
            path = Path(run_lock.lock_path(str(tmp_path), RUN))
            path.write_text(json.dumps({**this_process().to_json(), **began}))
            readlink = os.readlink
            monkeypatch.setattr(
                os, "readlink", lambda path: "1" if path == "/proc/self" else readlink(path)
            )

            alive = run_lock.check_owner(str(tmp_path), RUN, None, None)
            held.release(remove=False)
            dead = run_lock.check_owner(str(tmp_path), RUN, None, None)
        finally:
            other.kill()

    assert ("alive", "dead") == (alive.life, dead.life)


def test_a_copied_lock_file_does_not_prove_that_its_owner_has_died(tmp_path: Path):
    """The owner, in another PID namespace, holds the original; its heartbeat decides."""
    held = run_lock.acquire(str(tmp_path), RUN, new=True)
    path = Path(run_lock.lock_path(str(tmp_path), RUN))
    path.write_text(json.dumps({**json.loads(path.read_text()), "namespace": "00000000"}))
    alive = run_lock.check_owner(str(tmp_path), RUN, None, None)
    copy = tmp_path / "copy"
    shutil.copy2(path, copy)
    copy.rename(path)

    copied = run_lock.check_owner(str(tmp_path), RUN, None, None)
    os.utime(path, (0, 0))
    silent = run_lock.check_owner(str(tmp_path), RUN, None, None)

    assert ("alive", "alive", "left") == (alive.life, copied.life, silent.life)
    held.release(remove=True)


def test_a_released_lock_proves_that_an_owner_in_another_namespace_has_died(tmp_path: Path):
    """Its file is the one that the owner wrote."""
    run_lock.acquire(str(tmp_path), RUN, new=True).release(remove=False)
    path = Path(run_lock.lock_path(str(tmp_path), RUN))
    path.write_text(json.dumps({**json.loads(path.read_text()), "namespace": "00000000"}))

    assert "dead" == run_lock.check_owner(str(tmp_path), RUN, None, None).life


def test_a_forked_child_saves_under_a_key_that_no_later_start_has(tmp_path: Path):
    """Otherwise its parent's next start might resume from the child's state."""
    run = runs.start_run(str(tmp_path), {"rank": "0", "place": 1})
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, json.dumps(run.record()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = json.loads(os.read(reads, 4096))
    os.close(reads)
    os.close(writes)
    mine = run.record()
    run.release(remove=True)

    assert told["id"] != mine["id"]
    assert ("0, forked", "0") == (told["key"]["rank"], mine["key"]["rank"])


def test_a_backup_of_hard_links_ends_no_claim(tmp_path: Path):
    """`cp -al`: the lock works under both names, and the backup stays unchanged."""
    run_lock.acquire(str(tmp_path), RUN, new=True).release(remove=False)
    path, backup = Path(run_lock.lock_path(str(tmp_path), RUN)), tmp_path / "backup"
    path.write_text("kept")
    backup.hardlink_to(path)

    held = run_lock.acquire(str(tmp_path), RUN)

    assert held.held
    assert "kept" == backup.read_text()
    held.release(remove=True)
    assert "kept" == backup.read_text()
