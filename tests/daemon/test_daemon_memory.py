"""Real memory groups: of what a task died, and a pause before it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from watchdog_app.guard.memory_group import open_group

pytestmark = pytest.mark.cgroup

MIB = 1024 * 1024
GROW = """
import sys, time
kept = []
while True:
    time.sleep(0.05)
    kept.append(b"x" * int({rate} * 0.05 * 1e6))
"""


@pytest.fixture
def group():
    """A memory group of 150 MiB that ends with the test."""
    made = open_group(f"watchdog-test-daemon-{os.getpid()}-{time.monotonic_ns()}", 150 * MIB)
    yield made
    made.close()


def start(world, group, code: str, name: str) -> int:
    """A script inside the group, nobody's child. Its pid."""
    path = world.folder / name
    path.write_text(code)
    argv = group.command([sys.executable, str(path)])
    done = subprocess.run(
        ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 </dev/null & echo $!', "sh", *argv],
        env=world.env,
        cwd=world.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_a_kill_by_the_kernel_is_told_as_one_also_without_an_agent(world, group):
    """Who died, that the kernel did it, and of which limit."""
    client = world.start()
    pid = start(world, group, GROW.format(rate=60), "leak-of-this-test.py")
    world.seen(pid)

    def deaths():
        entries = client.call("history", kinds=["death"])["entries"]
        return [entry for entry in entries if entry["pid"] == pid]

    death = world.until(deaths, "the death is told", 60)[0]
    assert ("leak-of-this-test.py", "group_limit", True) == (
        death["name"],
        death["cause"],
        death["memory"],
    )
    assert "killed by the kernel" in death["text"]
    assert group.oom_kills() == 1


def test_a_kill_elsewhere_is_not_taken_for_the_cause(world, group):
    """A script that ends while the kernel kills another one: it simply ended."""
    client = world.start()
    leak = start(world, group, GROW.format(rate=100), "leak-of-this-test.py")
    quiet = world.script("import time\ntime.sleep(600)\n", "quiet-of-this-test.py")
    world.seen(quiet)
    world.seen(leak)
    world.until(lambda: not world.state_letter(leak), "the leak is killed", 60)

    os.kill(quiet, 15)

    world.until(lambda: world.task(quiet) is None, "it is gone")
    entries = client.call("history", kinds=["death"])["entries"]
    assert quiet not in [entry["pid"] for entry in entries]
    assert leak in [entry["pid"] for entry in entries]


def test_a_killed_worker_of_a_task_that_lives_is_told(world, group):
    """The task may wait for it for ever, and says nothing by itself."""
    client = world.start()
    code = (
        "import os, time\nif os.fork() == 0:\n    time.sleep(3)\n"
        + "".join(f"    {line}\n" for line in GROW.format(rate=100).strip().splitlines())
        + "\ntime.sleep(600)\n"
    )
    pid = start(world, group, code, "workers-of-this-test.py")
    world.until(lambda: (world.task(pid) or {}).get("children"), "the worker is seen")

    def deaths():
        entries = client.call("history", kinds=["death"])["entries"]
        return [entry for entry in entries if entry["pid"] == pid]

    death = world.until(deaths, "the worker's death is told", 60)[0]
    assert "A worker" in death["text"]
    assert death["worker"] != pid
    assert world.state_letter(pid) in ("S", "R")


def test_the_last_resort_is_taken_written_down_and_can_be_undone(world, group):
    """Paused before the limit, decision before outcome, with the figures that decided."""
    world.config.write_text(
        "[actions]\nnotify = false\ncheckpoint = false\npause = false\n"
        '[[rule]]\ntask = "hold-of-this-test.py"\npause = true\n'
        "[notify]\ndesktop = false\n"
    )
    client = world.start()
    pid = start(world, group, GROW.format(rate=10), "hold-of-this-test.py")

    world.until(lambda: world.state_letter(pid) in ("T", ""), "the pause", 60)

    assert "T" == world.state_letter(pid)
    task = world.until(
        lambda: (t := world.task(pid)) and t["paused_by_watchdog"] and t, "it is shown"
    )
    assert "paused" == task["state"]
    entries = client.call("history", kinds=["decision", "outcome"], task=str(pid))["entries"]
    outcome, decision = [e for e in entries if e["decision_kind"] == "pause"][:2]
    assert ["outcome", "decision"] == [outcome["kind"], decision["kind"]]
    assert "done" == outcome["status"]
    assert decision["unix_s"] <= outcome["unix_s"]
    assert decision["evidence"]["limit"] - decision["evidence"]["used"] < 100 * MIB
    assert "watchdog" == decision["by"]
    incident = client.call("explain", task=str(pid))["incidents"][0]
    assert pid == incident["contributors"][0]["pid"]
    assert [pid] == client.call("task.resume", task=str(pid))["resumed"][0]["pids"]
    world.until(lambda: world.state_letter(pid) != "T", "it runs again", 10)
