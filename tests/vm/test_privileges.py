"""What an ordinary user's daemon may read and receive, on a machine with modern restrictions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from guest import MB, PATIENCE_S, until


def test_pressure_wakes_the_daemon_of_an_ordinary_user(me):
    """A trigger on PSI needs no privilege; memory pressure of the whole machine wakes the loop."""
    me.start_daemon(override="ExecStart=\nExecStart=/usr/bin/env watchdog run --verbose\n")
    pid = me.daemon_pid()
    targets = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(entry))
        except OSError:
            continue  # closed meanwhile

    assert "/proc/pressure/memory" in targets
    assert [] == [e for e in me.status()["problems"] if "pressure" in e["source"]]


def test_with_hidden_processes_the_users_own_are_watched(me):
    """With hidepid=2 the daemon sees only its user's processes, including the training."""
    subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"], check=True)
    try:
        me.start_daemon()
        training = me.train("--seconds", "1200", properties=["MemoryMax=300M"])
        task = me.until_watched(training)

        assert task["ram_bytes"] > 20 * MB
        assert training.pid in [p["pid"] for p in me.status()["tasks"]]
        me.run("watchdog", "status")
    finally:
        subprocess.run(["mount", "-o", "remount,hidepid=0", "/proc"], check=True)


def test_a_stranger_may_not_speak_to_the_daemon(me):
    """Another user of the machine can access neither the folder nor the socket."""
    me.start_daemon()

    done = subprocess.run(
        ["runuser", "-u", "stranger", "--", "env", "XDG_RUNTIME_DIR=/run/user/1000",
         "watchdog", "status"],
        check=False, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip

    assert 0 != done.returncode
    until(lambda: me.status()["daemon"]["pid"], "it answers its own user")
