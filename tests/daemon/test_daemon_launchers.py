"""A training in a worker of a launcher: the report of its end names its rescue."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from watchdog_app.base.linux.process import Statm

pytestmark = pytest.mark.cgroup

TRAINS = """
import os, time
from watchdog_app.agent.runtime.link import Link
open("worker", "w").write(str(os.getpid()))
link = Link("test", os.getcwd())
link.restored_from("/r/rescue-90", 90, 1 << 20, time.time())
link.start()
kept = []
for step in range(91, 10**6):
    link.report(training=True, step=step, step_s=0.02)
    time.sleep(0.02)
    if os.path.exists("grow"):
        kept.append(bytearray(b"x") * 5_000_000)
"""
# Like torchrun and multiprocessing, it starts the training program and waits for it.
LAUNCHES = """
import subprocess, sys, time
status = subprocess.call([sys.executable, "trains.py"])
if {ends}:
    sys.exit(1)
time.sleep(600)
"""


def launch(world, group, *, ends: bool) -> tuple[int, int]:
    """The pids of a launcher inside the group and of its worker, whose agent is known."""
    (world.folder / "trains.py").write_text(TRAINS)
    pid = world.script(LAUNCHES.format(ends=ends), "launcher.py", group)
    world.until(lambda: (world.task(pid) or {}).get("agent"), "its agent")
    return pid, int((world.folder / "worker").read_text())


def deaths(client):
    return client.call("history", kinds=["exit"], all_exits=True, limit=100)["entries"]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kernel", [True, False])
def test_the_rescue_of_a_worker_is_named_whether_its_launcher_lives_or_dies(
    world, group, ends, kernel
):
    """In the journal and in `explain` of the launcher, never "no agent that could have saved"."""
    client = world.start()
    launcher, worker = launch(world, group, ends=ends)

    if kernel:
        (world.folder / "grow").touch()
    else:
        os.kill(worker, signal.SIGKILL)

    def told():
        own = [each for each in deaths(client) if worker in (each["pid"], each.get("worker"))]
        root = [each for each in deaths(client) if each["pid"] == launcher and "worker" not in each]
        return own and (root or not ends) and (own[0], *root)

    found = world.until(told, "the deaths are written down", 12)
    for entry in found:
        assert "/r/rescue-90" == entry["rescue"]["path"], entry["text"]
        assert "rescue of step 90" in entry["text"]
        answer = client.call("explain", task=str(entry["pid"]))
        assert "/r/rescue-90" in answer["death_text"]
    if kernel:
        assert found[0]["memory"], found[0]
        for entry in found[1:]:  # those of the launcher, which exited by its own choice
            told = [each["text"] for each in entry["evidence"] if each["source"] == "worker"]
            assert [True] == [f"process {worker}) was killed by the kernel" in one for one in told]


def test_a_worker_is_diagnosed_before_its_launcher_that_ended_with_it(world, group):
    """The daemon sees both ends at once: the kill that the group counts is the worker's."""
    client = world.start()
    launcher, worker = launch(world, group, ends=True)

    os.kill(world.process.pid, signal.SIGSTOP)  # as on a busy machine
    try:
        (world.folder / "grow").touch()
        world.until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in (launcher, worker)),
            "both have ended",
        )
    finally:
        os.kill(world.process.pid, signal.SIGCONT)

    def told():
        found = {each["pid"]: each for each in deaths(client)}
        return {launcher, worker} <= found.keys() and found

    found = world.until(told, "the deaths are written down", 12)
    assert found[worker]["memory"], found[worker]["text"]
    assert f"process {worker}) was killed" in str(found[launcher]["evidence"])


ALONE_IN_GROUP = """
import subprocess, sys, time
subprocess.call({command!r})
time.sleep(600)
"""


def test_a_worker_that_is_alone_in_its_group_is_described_by_its_own_figures(world, group):
    """Its launcher lives outside: its memory and the machine's kill count do not apply."""
    client = world.start()
    (world.folder / "trains.py").write_text(TRAINS)
    command = group.command([sys.executable, str(world.folder / "trains.py")])
    pid = world.script(ALONE_IN_GROUP.format(command=command), "launcher.py")
    world.until(lambda: (world.task(pid) or {}).get("agent"), "its agent")
    worker = int((world.folder / "worker").read_text())
    held_bytes = Statm(Path(f"/proc/{worker}/statm").read_bytes()).resident_bytes

    (world.folder / "grow").touch()

    def told():
        return [each for each in deaths(client) if worker in (each["pid"], each.get("worker"))]

    (entry,) = world.until(told, "its death is written down")
    assert "group_limit" == entry["cause"]
    assert entry["rss_bytes"] > 0.9 * held_bytes
    assert [] == [each for each in entry["evidence"] if "on this machine" in each["text"]]
    assert any(entry["takers"].values())
    assert 150 << 20 == entry["group"]["limit_bytes"]
    text = client.call("explain", task="trains.py")["death_text"]
    assert f"process {worker}" in text or f"pid {worker}" in text
