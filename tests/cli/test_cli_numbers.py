"""A number on the command line is a PID, never the name of a script or notebook."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.finished import finished
from support.waiting import until

from watchdog_app.base.errors import TaskNotFound, WatchdogError
from watchdog_app.cli import limit, offline_status
from watchdog_app.cli.rescues import matches
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon import offline
from watchdog_app.daemon.pauses import Pause
from watchdog_app.guard import record
from watchdog_app.guard.record import GuardRecord
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.past_exits import find_death


def a_guard(name):
    return GuardRecord(
        pid=60, start_time=600, name=name, kind="signals", group=None, limit_bytes=1,
        reserve_bytes=0,
    )  # fmt: skip


GUARD = a_guard("4711")


def test_a_guard_of_a_script_called_like_a_pid_is_not_taken_for_that_pid(tmp_path):
    """`watchdog limit 4711 --end` must not end it."""
    nobody = str(_unused_pid())
    guard = a_guard(nobody)

    with pytest.raises(WatchdogError, match="is under no guard"):
        limit._find_guard(nobody, [guard])

    assert guard is limit._find_guard("60", [guard])
    assert guard is limit._find_guard(f"/a/{nobody}", [guard])


@pytest.mark.parametrize(
    ("state", "wanted", "said"),
    [
        ("stopped", "leak.py", "at its limit of 700 MiB. Start it again with more: watchdog exec"),
        ("stopped", "PID", "at its limit of 700 MiB. Start it again with more: watchdog exec"),
        ("running", "/a/leak.py", "s ago. Start it again: watchdog exec --limit ... -- ..."),
        ("stopped", "other.py", "other.py is under no guard"),
    ],
)
def test_the_limit_of_a_program_that_has_ended_says_so(
    own_folders, monkeypatch, state, wanted, said
):
    """The past guards know it; without one the text says that there is no guard."""
    pid = _unused_pid()
    past = replace(
        a_guard("leak.py"), pid=pid, state=state, limit_bytes=700 << 20, used_bytes=700 << 20,
        ended_unix_s=time.time(),
    )  # fmt: skip
    monkeypatch.setattr(record, "read_past", lambda: [past])

    with pytest.raises(WatchdogError) as refused:
        limit._find_guard(wanted.replace("PID", str(pid)), [])

    assert said in str(refused.value)
    assert ("leak.py (pid" in str(refused.value)) == (wanted != "other.py")


@pytest.mark.parametrize(
    ("wanted", "meant"), [("4711", False), ("/a/4711", True), ("60", True), ("0060", True)]
)
def test_a_guard_is_explained_by_pid_or_path(wanted, meant):
    assert meant is offline_status._matches(GUARD, wanted)


@pytest.mark.parametrize("wanted", ["4711", "47", "004711"])
def test_a_pause_of_a_script_called_like_a_pid_stays(wanted):
    """`watchdog resume 4711` without a daemon resumes only that process."""
    a = Pause(ProcessKey(60, 600), "4711", "")
    b = Pause(ProcessKey(61, 610), "train_4711.py", "")
    standing = [a, b]

    with pytest.raises(TaskNotFound):
        offline._select(standing, wanted)

    assert [a] == offline._select(standing, "60")
    assert [a] == offline._select(standing, "/x/4711")
    assert [b] == offline._select(standing, "train_4711")


def test_the_journal_takes_a_number_for_a_pid(tmp_path):
    """The journal returns no entries, series or deaths of a script with that name."""
    journal = Journal(str(tmp_path), max_age_s=1e9, max_bytes=1 << 30)
    for pid, name in ((60, "4711"), (4711, "other.py"), (61, "123456789012345.py")):
        data = {"name": name, "path": f"/a/{name}", "cause": "memory_error", "pid": pid}
        journal.add(
            [Entry(time.time(), "exit", {**data, "notable": True}, pid, name, f"/a/{name}")]
        )

    assert ["other.py"] == [each["name"] for each in journal.history(task="4711")]
    assert ["4711"] == [each["name"] for each in journal.history(task="/a/4711")]
    assert [] == journal.history(task="123456789012345")
    assert "other.py" == find_death(journal, "4711")["name"]
    assert find_death(journal, "123456789012345") is None
    journal.close()


def test_rescues_of_a_script_called_like_a_pid_are_not_those_of_that_pid():
    names = ("4711", "/a/4711", 60)

    assert [] == [name for name in names if matches("4711", name)]
    assert [60] == [name for name in names if matches("60", name)]
    assert ["/a/4711"] == [name for name in names if matches("/a/4711", name)]
    assert not matches("4711", "/a/train_4711.py")


def test_a_script_called_like_a_pid_is_paused_by_its_path_alone(
    own_folders, monkeypatch, watchdog, tmp_path
):
    """The test pauses and resumes it, with and without a daemon."""
    for action in ("NOTIFY", "CHECKPOINT", "PAUSE"):
        monkeypatch.setenv(f"WATCHDOG_ACTIONS_{action}", "false")
    name = str(_unused_pid())
    (tmp_path / name).write_text("import time\nwhile True:\n    time.sleep(0.05)\n")
    monkeypatch.chdir(tmp_path)
    told = finished(
        ["sh", "-c", 'setsid "$0" "$1" > /dev/null 2>&1 & echo $!', sys.executable, name],
        check=True,
    )
    pid = int(told.stdout)
    try:
        until(lambda: name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes())
        watchdog("start")
        until(lambda: str(pid) in watchdog("status", "--all", "--json").stdout)
        refused = watchdog("pause", name)
        assert 1 == refused.returncode
        assert f"No task has the pid {name}." in refused.stderr
        assert f"./{name}" in refused.stderr
        assert "T" != _state(pid)

        paused = watchdog("pause", f"./{name}")
        assert (0, "") == (paused.returncode, paused.stderr)
        assert "T" == _state(pid)
        assert 1 == watchdog("resume", name).returncode
        assert "T" == _state(pid)
        watchdog("stop")
        assert 1 == watchdog("resume", name).returncode
        assert "T" == _state(pid)

        assert 0 == watchdog("resume", f"./{name}").returncode
        until(lambda: _state(pid) != "T")
    finally:
        os.kill(pid, signal.SIGKILL)
        watchdog("stop")


def _unused_pid() -> int:
    with open("/proc/sys/kernel/pid_max") as file:
        pid = int(file.read()) - 1
    while os.path.exists(f"/proc/{pid}"):
        pid -= 1
    return pid


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
