"""The one-folder program made by PyInstaller: built, moved, and run without other software."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_stub.driver_stub import DriverStub
from support.finished import finished

from watchdog_app.base.children import CHILD, MODULES
from watchdog_app.cli.dispatch import COMMANDS

ROOT = Path(__file__).parents[2]
MOST_BYTES = 110 * 1024 * 1024  # 78 MB today; a framework would add hundreds
CONFIG = "[actions]\npause = false\n[notify]\ndesktop = false\n"

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The program, built in one folder and moved to another whose name has a space."""
    place = tmp_path_factory.mktemp("frozen")
    done = subprocess.run(
        [str(ROOT / "packaging/pyinstaller/build.sh"), str(place)],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return shutil.move(place / "watchdog", place / "moved to here")


@pytest.fixture
def watchdog(folder, tmp_path):
    """Run it with a minimal environment: no PATH, no Python, no desktop."""
    (tmp_path / "config.toml").write_text(CONFIG)
    env = {
        "HOME": str(tmp_path / "home"),
        "PATH": "/nonexistent",
        "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"),
        "WATCHDOG_STATE_DIR": str(tmp_path / "state"),
        "WATCHDOG_CONFIG": str(tmp_path / "config.toml"),
    }

    def run(*words, status=0, **more):
        done = subprocess.run(
            [f"{folder}/watchdog", *words],
            env={**env, **more}, cwd="/", input="", timeout=120, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert status == done.returncode, done.stdout
        return done.stdout

    yield run
    subprocess.run([f"{folder}/watchdog", "stop"], env=env, capture_output=True, check=False)


def test_the_daemon_runs_is_asked_and_ends(watchdog):
    """`start` starts the same program again as the daemon."""
    assert "not running" in watchdog("status", status=3)
    assert "Started (PID " in watchdog("start")

    status = json.loads(watchdog("status", "--json", "--all"))
    assert "ended" in watchdog("stop")

    named = [each["name"] for each in status["tasks"] if "watchdog" in each["name"]]
    assert [] == named  # the program contains an interpreter, but is not a user's training
    assert "not running" in watchdog("status", status=3)


def test_the_gpu_reader_is_a_child_of_the_same_program(watchdog, tmp_path):
    """With the real binding and a stub driver library the daemon shows its GPU."""
    stub = DriverStub(tmp_path / "driver", cards=1)
    watchdog("start", **stub.env(base={}))

    for _ in range(100):
        gpus = json.loads(watchdog("status", "--json"))["gpus"]
        if gpus:
            break
        time.sleep(0.2)

    assert 1 == len(gpus)


def test_every_command_is_in_it(watchdog):
    """Each command prints its help, so its modules are in the build."""
    assert "watchdog" in watchdog("--version")
    for command in COMMANDS:
        assert watchdog(command, "--help").startswith(f"usage: watchdog {command}")


@pytest.mark.parametrize(
    ("module", "status", "said"),
    [
        ("watchdog_app.daemon.notify.desktop_helper", 1, '"delivered": false'),
        ("watchdog_app.machine.gpu.reader", 4, '"code":12'),  # no driver library
        ("os", 2, "no part"),
        ("watchdog_app.cli", 2, "no part"),
    ],
)
def test_parts_of_ours_run_as_children_and_nothing_else_does(watchdog, module, status, said):
    """The names are those of watchdog_app/base/children.py."""
    assert said in watchdog(CHILD, module, status=status)


def test_what_is_read_as_a_file_is_in_it(watchdog):
    """These are the doctor's table, the probe for the user's Python, and the desktop's files."""
    report = json.loads(
        watchdog("doctor", "--json", "--fast", "--python", sys.executable, "--only", "framework")
    )
    places = watchdog("desktop", "install", "--dry-run").splitlines()

    assert [sys.executable] == [each["python"] for each in report["environments"]]
    assert "tensorflow" in report["environments"][0]["frameworks"]
    assert any(path.endswith("systemd/user/watchdog.service") for path in places)


def test_the_live_view_draws(watchdog, folder, tmp_path):
    """In a tmux terminal textual finds the modules that it loads by name."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: run packaging/setup.sh test")
    socket = str(tmp_path / "tmux")
    tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}
    command = f"'{folder}/watchdog' top; echo ended $?; sleep 60"
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "100", "-y", "30", command], env=env, check=True
    )
    try:
        for _ in range(200):
            shown = finished([*tmux, "capture-pane", "-p"], check=True).stdout
            if "watchdog start" in shown or "ended" in shown:
                break
            time.sleep(0.2)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)

    assert "ended" not in shown
    assert "watchdog start" in shown  # the message without a daemon


def test_it_carries_no_framework(folder):
    """Frameworks belong to the user's Python."""
    names = {path.name for path in Path(folder, "_internal").iterdir()}
    size = sum(path.stat().st_size for path in Path(folder).rglob("*") if not path.is_symlink())

    assert set() == names & {"tensorflow", "keras", "torch", "jax", "numpy", "matplotlib", "gi"}
    assert MOST_BYTES > size


def test_our_children_are_named_in_one_place():
    """In the frozen program `sys.executable` is not a Python, so only few modules may use it."""
    speaking = {
        path.relative_to(ROOT / "watchdog_app").as_posix()
        for path in (ROOT / "watchdog_app").rglob("*.py")
        if "sys.executable" in path.read_text()
    }

    known = {
        "base/children.py",
        "cli/agent.py",  # asks for another Python when frozen
        "cli/estimate.py",  # the last choice; asks for another Python when frozen
        "estimate/child.py",  # runs in the user's Python
        "cli/desktop.py",  # the path of the program next to it
        "daemon/methods.py",  # the program itself when frozen
        "demo/sandbox.py",  # runs after it found TensorFlow, which the frozen program never has
        "doctor/environments.py",  # not when frozen
        "doctor/probe.py",  # runs in the user's Python
        "install/pythons.py",  # compares only
    }
    assert set() == speaking - known
    for module in MODULES:
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
