"""Containers, hidden processes and reused pids: a real daemon in real namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.finished import finished

APART = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
TRAINING = """
import time
from watchdog_app.agent.runtime.link import Link
link = Link("test", "/nonexistent")
link.start()
for step in range(600):
    link.report(training=True, step=step, step_s=0.1, phase="train")
    time.sleep(0.1)
"""
# Two Pythons, one after the other, with the same pid; reported on standard output.
TWICE = """
import os, subprocess, sys, time
from pathlib import Path
def begin(name):
    return subprocess.Popen([sys.executable, "-S", name], start_new_session=True)
for name in ("first.py", "second.py"):
    Path(name).write_text("import time; held = b'x' * 20_000_000; time.sleep(60)")
# Below a shell that leads a session of its own it would be a part of this very program.
sys.stdin.readline()
first = begin("first.py")
print(first.pid, flush=True)
sys.stdin.readline()
first.kill()
first.wait()
Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
print(begin("second.py").pid, flush=True)
sys.stdin.readline()
"""


def may_unshare() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not may_unshare(), reason="no process namespace may be made here")


@pytest.fixture
def apart():
    """Start programs in separate process namespaces; each gets a pipe to write to."""
    started = []

    def start(argv: list[str], **more) -> subprocess.Popen[str]:
        # The shell is process 1: a program that does not reap its children must not be the init.
        shell = ["sh", "-c", '"$@"; exit $?', "sh", *argv]
        started.append(subprocess.Popen([*APART, *shell], stdin=subprocess.PIPE, text=True, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def test_a_training_in_a_container_is_heard_by_the_daemon_outside(world, apart):
    """Its own pid differs inside; the kernel reports the outside pid."""
    world.start()

    apart([sys.executable, "-c", TRAINING], env=world.env, cwd=world.folder)

    def heard():
        with world.connect() as client:
            tasks = client.call("status")["tasks"]
        return next((t["agent"] for t in tasks if t["agent"] and t["agent"]["step"]), None)

    agent = world.until(heard, "the agent is heard")
    inside = Path(f"/proc/{agent['pid']}/status").read_text()
    numbers = next(line.split()[1:] for line in inside.splitlines() if line.startswith("NSpid:"))
    assert str(agent["pid"]) == numbers[0]
    assert numbers[0] != numbers[-1], "it has another pid for itself"


def test_an_agent_outside_is_told_why_a_daemon_in_a_container_does_not_take_it(world, apart):
    """The kernel gives no pid for a process outside the daemon's namespace: nothing is guessed."""
    argv = [sys.executable, "-m", "watchdog_app", "run"]
    apart(argv, env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    world.until(lambda: os.path.exists(world.socket), "the daemon listens")

    done = finished(
        [sys.executable, "-c", TRAINING.replace("range(600)", "range(10)")], env=world.env
    )

    assert 0 == done.returncode, "the training goes on without"
    assert "another container or process namespace" in done.stderr


def test_a_pid_that_is_used_again_is_another_task(world, apart, tmp_path):
    """Pid and start time identify a task: facts about the first do not apply to the second."""
    both = f'{sys.executable} -m watchdog_app run & exec {sys.executable} "$@"'
    program = tmp_path / "twice.py"
    program.write_text(TWICE)
    process = apart(
        ["sh", "-c", both, "sh", str(program)],
        env=world.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    world.until(lambda: os.path.exists(world.socket), "the daemon listens")

    def told(name):
        with world.connect() as client:
            tasks = client.call("status")["tasks"]
        return next((t for t in tasks if t["name"] == name), None)

    process.stdin.write("go\n")
    process.stdin.flush()
    pid = int(process.stdout.readline())
    first = world.until(lambda: told("first.py"), "the first is seen")
    process.stdin.write("go\n")
    process.stdin.flush()
    again = int(process.stdout.readline())
    second = world.until(lambda: told("second.py"), "the second is seen")

    assert (pid, pid) == (again, first["pid"])
    assert pid == second["pid"]
    assert first["start_time"] < second["start_time"]
    assert told("first.py") is None
    with world.connect() as client:
        series = client.call("series", task="second.py")["series"]
    own = [one for one in series if one["kind"] == "task"]
    assert all(one["name"] == "second.py" for one in own)


USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]


@pytest.fixture
def users_world(world):
    """
    A world of another user, in a folder that this user may enter: pytest's folders belong to root.
    """
    folder = Path(tempfile.mkdtemp(prefix="watchdog-user-"))
    world = type(world)(folder)
    for path in (folder, world.config):
        os.chown(path, 1000, 1000)
    yield world
    world.close()
    shutil.rmtree(folder)


def may_be_a_user() -> bool:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return False
    argv = [*USER, sys.executable, "-c", "import watchdog_app"]
    return subprocess.run(argv, cwd="/", capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_be_a_user(), reason="no other user may run this Python here")
def test_a_user_who_sees_only_own_processes_is_watched_over_all_the_same(users_world):
    """With hidepid=2 the daemon does not see others' processes, and that is not a fault."""
    world = users_world
    job = world.folder / "mine.py"
    job.write_text("import time; held = b'x' * 20_000_000; time.sleep(60)")
    hidden = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    env = {**world.env, "HOME": str(world.folder)}
    mine = subprocess.Popen([*USER, sys.executable, str(job)], start_new_session=True)

    def told():
        argv = [*USER, sys.executable, "-m", "watchdog_app", "status", "--json", "--all"]
        done = subprocess.run(argv, env=env, cwd="/", capture_output=True, check=False)
        status = json.loads(done.stdout)
        return next((t for t in status["tasks"] if t["pid"] == mine.pid), None), status

    with open(world.folder / "log", "ab") as log:
        daemon = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", hidden, "sh", *USER,
             sys.executable, "-m", "watchdog_app", "run"],
            env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        world.until(lambda: os.path.exists(world.socket), "the daemon listens")
        task = world.until(lambda: told()[0], "my own process is watched")
        assert "mine.py" == task["name"]
        _, status = told()
        assert {task["user"]} == {each["user"] for each in status["tasks"]}
        assert [] == [e for e in status["problems"] if e["source"] in ("processes", "machine")]
    finally:
        for process in (mine, daemon):
            process.kill()
            process.wait(10)
