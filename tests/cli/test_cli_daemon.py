"""The commands with a real daemon on this machine, with every action switched off."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import schemas
from support.finished import finished
from support.waiting import until

from watchdog_app.cli import start
from watchdog_app.core.model.settings import CHANNELS


@pytest.fixture
def quiet(own_folders, monkeypatch, watchdog):
    """A daemon that only observes, because the machine runs other users' processes."""
    for action in ("NOTIFY", "CHECKPOINT", "PAUSE"):
        monkeypatch.setenv(f"WATCHDOG_ACTIONS_{action}", "false")
    yield own_folders
    watchdog("resume", "--all")
    watchdog("stop")


@pytest.fixture
def script(tmp_path):
    """
    Return the PID of a Python script that runs until the test stops it.

    The script is not the test's child: a pause stops the whole tree, which would include the test.
    """
    path = tmp_path / "patient_\u5206\u6790.py"
    path.write_text("import time\nwhile True:\n    time.sleep(0.05)\n", encoding="utf-8")
    told = finished(
        ["sh", "-c", 'setsid "$0" "$1" > /dev/null 2>&1 & echo $!', sys.executable, str(path)],
        check=True,
    )
    pid = int(told.stdout)
    until(lambda: b"patient" in Path(f"/proc/{pid}/cmdline").read_bytes())
    assert os.getpid() != parent(pid)
    yield pid
    os.kill(pid, signal.SIGKILL)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def test_the_life_of_a_daemon(quiet, watchdog, script):
    """
    The test covers start, status, check, config, reload, history, stop, and history without a
    daemon.
    """
    started = watchdog("start")
    assert (0, "") == (started.returncode, started.stderr)
    assert re.search(r"It watches [1-9]\d* Python tasks?\.", started.stdout)
    assert "Already running" in watchdog("start").stdout

    found = json.loads(watchdog("status", "--json").stdout)
    schemas.validator("status").validate(found)
    assert script in [one["pid"] for one in found["tasks"]]
    assert "patient_分析.py" in watchdog("status", "--all").stdout

    assert "patient_分析.py" in watchdog("explain", str(script)).stdout
    assert 0 == watchdog("reload").returncode
    running = json.loads(watchdog("config", "--json").stdout)
    assert {one["key"]: one["value"] for one in running["daemon"]} == {
        one["key"]: one["value"] for one in running["settings"]
    }
    assert "started" in watchdog("history", "--kind", "daemon").stdout

    stopped = watchdog("stop")
    assert (0, "") == (stopped.returncode, stopped.stderr)
    assert 3 == watchdog("status").returncode
    assert "stopped" in watchdog("history", "--kind", "daemon").stdout
    assert 0 == watchdog("start").returncode


def test_a_pause_can_be_undone_without_the_daemon(quiet, watchdog, script):
    """The task stays paused when the daemon ends, and resume works without a daemon."""
    watchdog("start")

    paused = watchdog("pause", str(script))
    assert 0 == paused.returncode, paused.stderr
    assert f"watchdog resume {script}" in paused.stdout
    assert "T" == state(script)
    shown = watchdog("status").stdout
    assert "paused by watchdog" in shown

    watchdog("stop")
    assert "T" == state(script)
    wrong = watchdog("resume", "another.py")
    assert 1 == wrong.returncode
    assert str(script) in wrong.stderr

    resumed = watchdog("resume", "patient")
    assert (0, "") == (resumed.returncode, resumed.stderr)
    until(lambda: state(script) != "T")
    assert 1 == watchdog("resume", "patient").returncode
    assert 0 == watchdog("resume", "--all").returncode


def test_a_daemon_that_hangs_is_ended_by_stop(quiet, watchdog):
    """Each command advises `watchdog stop; watchdog start` if the daemon does not answer."""
    watchdog("start")
    pid = json.loads(watchdog("status", "--json").stdout)["daemon"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        told = watchdog("stop")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    assert (0, "") == (told.returncode, told.stderr)
    assert f"(pid {pid}) did not answer and was ended" in told.stdout
    assert 0 == watchdog("start").returncode
    assert pid != json.loads(watchdog("status", "--json").stdout)["daemon"]["pid"]


OLDER = """
import json, os, socket, sys
from watchdog_app.base import paths
from watchdog_app.base.runtime_dir import private_folder
from watchdog_app.daemon.instance import InstanceLock
folder = private_folder(paths.runtime_dir()) or paths.runtime_dir()
lock = InstanceLock(os.path.join(paths.runtime_dir(), "daemon.lock"))
door = socket.socket(socket.AF_UNIX)
door.bind(paths.socket_path())
door.listen()
print("ready", flush=True)
while True:
    line, _ = door.accept()
    asked = json.loads(line.makefile("rb").readline())
    error = {"code": -32001, "message": "This daemon (watchdog 0.1.0) speaks protocol 1. Restart "
             "the daemon with the newer version: watchdog stop; watchdog start"}
    answer = {"jsonrpc": "2.0", "id": asked["id"], "error": error}
    line.sendall(json.dumps(answer).encode() + b"\\n")
    line.close()
"""


def test_a_daemon_of_an_older_protocol_is_said_to_be_restarted_and_can_be(quiet, watchdog):
    """The command in the error message works."""
    older = subprocess.Popen([sys.executable, "-c", OLDER], stdout=subprocess.PIPE)
    try:
        assert b"ready" in older.stdout.readline()
        refused = watchdog("status")
        told = watchdog("stop")
        older.wait(10)
    finally:
        older.kill()
        older.communicate()

    assert "watchdog stop; watchdog start" in refused.stderr
    assert (0, "") == (told.returncode, told.stderr)
    assert f"(pid {older.pid}) is of another version and was ended" in told.stdout
    assert 0 == watchdog("start").returncode


def test_a_process_that_is_merely_named_in_the_lock_is_not_ended(quiet, watchdog, script):
    """The PID was reused, or a user wrote the file."""
    watchdog("start")
    pid = json.loads(watchdog("status", "--json").stdout)["daemon"]["pid"]
    lock = Path(os.environ["WATCHDOG_RUNTIME_DIR"]) / "daemon.lock"
    lock.write_text(f"{script}\n")
    os.kill(pid, signal.SIGSTOP)
    try:
        told = watchdog("stop")
    finally:
        os.kill(pid, signal.SIGCONT)

    assert 1 == told.returncode
    assert "did not answer" in told.stderr
    assert state(script) in "RS"


def test_a_mistake_in_the_configuration_stops_the_start(quiet, watchdog):
    """The message names file, key and valid values instead of a log."""
    (quiet / "config.toml").write_text("[stages]\nwarn_s = -1\n")

    for words in (["start"], ["run"], ["config"], ["config", "check"]):
        done = watchdog(*words)
        assert 2 == done.returncode, words
        assert "config.toml" in done.stderr
        assert "warn_s" in done.stderr


def test_settings_of_the_file_and_of_the_daemon_are_told_apart(quiet, watchdog):
    """The command reports a change that is not in force, and how to apply it."""
    watchdog("start")
    (quiet / "config.toml").write_text("[stages]\nwarn_s = 60\n")

    before = watchdog("config").stdout
    watchdog("reload")
    after = watchdog("config").stdout

    assert "stages.warn_s: 120.0 (2 min) instead of 60.0 (1 min)" in before
    assert "watchdog reload" in before
    assert "watchdog reload" not in after


def test_the_defaults_are_a_configuration(quiet, watchdog):
    """The output of --default is valid, also with every line uncommented."""
    text = watchdog("config", "--default").stdout
    bare = quiet / "bare.toml"
    full = quiet / "full.toml"
    bare.write_text(text)
    taken = [
        line.removeprefix("# ") if " = " in line and not line.startswith("# accepted") else line
        for line in text.partition("\n# Other actions")[0].splitlines()
    ]
    full.write_text("\n".join(taken))

    for path in (bare, full):
        done = watchdog("config", "check", str(path))
        assert (0, "") == (done.returncode, done.stderr)
    assert 20 < full.read_text().count("=") + 4


def test_start_from_a_folder_with_a_trap(quiet, watchdog, tmp_path):
    """The daemon must not import a json.py from the current folder."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("json", "socket", "signal", "watchdog_app"):
        (trap / f"{name}.py").write_text("raise SystemExit('trapped')\n")
    code = "import sys; from watchdog_app.cli import main; sys.exit(main(['start']))"

    done = finished([sys.executable, "-P", "-c", code], cwd=trap)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("more", "shows"),
    [
        ({}, False),
        ({"DISPLAY": ":0"}, True),
        ({"WATCHDOG_NOTIFY_COMMAND": '["send-mail"]'}, True),
        ({"WATCHDOG_ACTIONS_NOTIFY": "false"}, True),
        ({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere/bus"}, False),
    ],
)
def test_start_says_where_warnings_are_if_nothing_can_show_them(
    own_folders, monkeypatch, more, shows
):
    """A server has no desktop; a command of the user shows them too."""
    env = {"XDG_RUNTIME_DIR": str(own_folders), "WATCHDOG_CONFIG": str(own_folders / "none.toml")}

    assert shows is start._shows_notifications({**env, **more})
    monkeypatch.setitem(CHANNELS, "mine", "mine:MyChannel")
    (own_folders / "none.toml").write_text("[notify.mine]\n")
    assert start._shows_notifications({**env, **more}), "a channel is turned on by its table"


def test_two_starts_at_once_give_one_daemon(quiet, watchdog):
    """Both commands succeed with the same daemon."""
    starts = [
        subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "start"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for _ in range(2)
    ]
    said = [start.communicate(timeout=60) for start in starts]

    assert [0, 0] == [start.returncode for start in starts], said


def test_without_a_daemon_the_json_names_the_guards_too(own_folders, monkeypatch, capsys):
    """Guards exist without a daemon."""
    from watchdog_app.cli import main

    monkeypatch.setattr(
        "watchdog_app.cli.offline_status.guard_lines", lambda: ["hog.py (pid 7): full"]
    )

    code = main(["status", "--json"])

    found = json.loads(capsys.readouterr().out)
    schemas.validator("status").validate(found)
    assert ["hog.py (pid 7): full"] == [
        each["message"] for each in found["problems"] if each["source"] == "guards"
    ]
    assert 3 == code
