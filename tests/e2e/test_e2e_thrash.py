"""The daemon inside a thrashing group keeps its sample rate, and the rescue completes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import NO_PAUSE, World

from watchdog_app.base.errors import DaemonNotRunning
from watchdog_app.client.client import Client

pytestmark = pytest.mark.cgroup

TRAIN = Path(__file__).parent.parent / "vm" / "programs" / "train.py"

# The unchanged daemon, which prints the name of every module that it imports once it is ready.
TELLING = """
import os, runpy, sys

def told(event, args):
    if event == "import" and os.path.exists({ready!r}):
        with open({log!r}, "a") as file:
            file.write(f"{{args[0]}}\\n")

sys.addaudithook(told)
sys.argv = ["watchdog", "run", "--verbose"]
runpy.run_module("watchdog_app", run_name="__main__", alter_sys=True)
"""


def start_inside(world: World, group) -> Client:
    """Start the daemon in the group; it reports its imports from now on."""
    code = TELLING.format(ready=str(world.folder / "ready"), log=str(world.folder / "imports"))
    (world.folder / "config.toml").write_text(NO_PAUSE)
    world.daemon = world._start([sys.executable, "-c", code], group, world.folder / "daemon.log")
    end = time.monotonic() + 30
    while time.monotonic() < end and world.daemon.poll() is None:
        try:
            world._client = Client.connect(str(world.folder / "run" / "daemon.sock"))
        except DaemonNotRunning:
            time.sleep(0.05)
        else:
            return world._client
    raise AssertionError("the daemon did not start:\n" + world.daemon_log())


def train(world: World, group, name: str, *words: str) -> subprocess.Popen[bytes]:
    folder = world.folder / name
    folder.mkdir()
    argv = [sys.executable, str(TRAIN), "--folder", str(folder), *words]
    return world._start(argv, group, world.folder / f"{name}.log")


def test_in_a_group_that_thrashes_the_daemon_keeps_its_rate_and_saves(world, swap_file):
    """
    The full group also accounts the daemon's own pages.

    It samples, decides and saves as usual.
    """
    group = world.group(170, swap_mb=130)
    client = start_inside(world, group)
    train(world, group, "busy", "--no-agent", "--hold-mb", "90", "--touch", "--step-s", "0.005",
          "--seconds", "100")  # fmt: skip
    training = train(world, group, "leaking", "--leak-mb-s", "14", "--leak-after-s", "2",
                     "--seconds", "100")  # fmt: skip
    world.until(
        lambda: ((world.task(training.pid) or {}).get("agent") or {}).get("step"), "it reports"
    )
    (world.folder / "ready").touch()
    before, began = client.call("status")["daemon"], time.monotonic()

    world.until(lambda: training.poll() is not None, "the group is full", 60)

    after, span = client.call("status")["daemon"], time.monotonic() - began
    world.until(
        lambda: [e for e in world.history("exit") if e["pid"] == training.pid], "the death", 20
    )
    assert before["pid"] == after["pid"]
    assert 1 <= (after["samples"] - before["samples"]) / span
    assert list((world.folder / "leaking" / "rescues").glob("rescue-*")), world.daemon_log()
    imports = world.folder / "imports"
    assert "" == (imports.read_text() if imports.exists() else "")
