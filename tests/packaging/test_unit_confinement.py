"""The daemon works under the restrictions of its unit."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.finished import finished
from support.waiting import until

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging/linux/share/systemd/user/watchdog.service"
CONFINED = str(Path(__file__).with_name("confined.py"))
HOLDER = "import time; held = bytearray(80 << 20); time.sleep(600)"
PROGRAM = """
import ctypes, os, socket, sys
pid = sys.argv[1]
assert "Rss:" in open(f"/proc/{pid}/smaps_rollup").read()
assert os.readlink(f"/proc/{pid}/exe")
assert open(f"/proc/{pid}/mem", "rb") and os.listdir(f"/proc/{pid}/fd")
assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)(1) == 2
socket.socket(socket.AF_UNIX).close()
for what in (lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
             lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else os.chroot("/"),
             lambda: os.chroot("/")):
    try:
        what()
    except OSError as error:
        print(error.errno)
    else:
        print("allowed")
"""

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def tools():
    if shutil.which("systemd-analyze") is None or ctypes.util.find_library("seccomp") is None:
        pytest.skip("systemd-analyze or libseccomp is missing: run packaging/setup.sh test")


@pytest.fixture
def task(tmp_path):
    """A process of this user with 80 MiB, without any confinement."""
    script = tmp_path / "hold_memory.py"
    script.write_text(HOLDER)
    process = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("mdwe", ["", "1"])
def test_memory_and_program_of_others_can_be_read_and_the_rest_is_refused(task, mdwe):
    """
    It can read smaps_rollup, exe and open files and use ctypes, but not raw sockets or chroot.
    """
    done = finished(
        [sys.executable, CONFINED, str(UNIT), sys.executable, "-c", PROGRAM, str(task.pid)],
        env={**os.environ, "CONFINED_MDWE": mdwe},
    )

    assert 0 == done.returncode, done.stderr
    assert ["97", "1", "1"] == done.stdout.split()


def test_the_daemon_watches_pauses_and_resumes(task, tmp_path):
    """The daemon runs under the unit's directives; clients run outside."""
    config = tmp_path / "config.toml"
    config.write_text("[actions]\npause = false\n[notify]\ndesktop = false\n")
    env = {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"),
        "WATCHDOG_STATE_DIR": str(tmp_path / "state"),
        "WATCHDOG_CONFIG": str(config),
    }
    ours = [sys.executable, "-P", "-m", "watchdog_app"]

    def watchdog(*words):
        return subprocess.run([*ours, *words], env=env, capture_output=True, text=True, check=False)

    def found():
        said = watchdog("status", "--json", "--all").stdout
        processes = json.loads(said)["tasks"] if said else []
        return next((each for each in processes if each["pid"] == task.pid), None)

    def state():
        return Path(f"/proc/{task.pid}/stat").read_text().rpartition(")")[2].split()[0]

    with (tmp_path / "log").open("w") as log:
        daemon = subprocess.Popen(
            [sys.executable, CONFINED, str(UNIT), *ours, "run"], env=env, stdout=log, stderr=log
        )
    try:
        seen = until(found, (tmp_path / "log").read_text)
        paused = watchdog("pause", str(task.pid))
        until(lambda: state() == "T" or "frozen" in found()["state"], "it is paused")
        resumed = watchdog("resume", str(task.pid))
        until(lambda: state() == "S", "it runs again")
    finally:
        daemon.terminate()
        daemon.wait(30)

    assert "hold_memory.py" == seen["name"]
    assert 80 << 20 < seen["ram_bytes"]
    assert (0, 0) == (paused.returncode, resumed.returncode), paused.stderr + resumed.stderr
    assert 0 == daemon.returncode
    assert "denied" not in (tmp_path / "log").read_text().lower()
