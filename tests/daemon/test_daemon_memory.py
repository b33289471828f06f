"""Real memory groups: the cause of a task's death, and a pause before it."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.cgroup

MIB = 1024 * 1024
GROW = """
import sys, time
kept = []
while True:
    time.sleep(0.05)
    kept.append(b"x" * int({rate} * 0.05 * 1e6))
"""


def test_a_kill_by_the_kernel_is_told_as_one_also_without_an_agent(world, group):
    """The entry names the task, the kernel and the limit."""
    world.start()
    pid = world.script(GROW.format(rate=60), "leak-of-this-test.py", group)
    world.seen(pid)

    death = world.ended(pid)

    assert (True, "leak-of-this-test.py", "group_limit", True) == (
        death["notable"], death["name"], death["cause"], death["memory"],
    )  # fmt: skip
    assert "killed by the kernel" in death["text"]
    assert group.oom_kills() == 1


def test_a_kill_elsewhere_is_not_taken_for_the_cause(world, group):
    """A script that ends while the kernel kills another one has simply ended."""
    world.start()
    quiet = world.sleeper("quiet-of-this-test.py")
    leak = world.script(GROW.format(rate=100), "leak-of-this-test.py", group)
    world.seen(leak)
    world.until(lambda: not world.state_letter(leak), "the leak is killed", 60)

    os.kill(quiet, 15)

    world.until(lambda: world.task(quiet) is None, "it is gone")
    assert [False] == [each["notable"] for each in world.ends(quiet)]
    assert [True] == [each["notable"] for each in world.ends(leak)]


def test_a_killed_worker_of_a_task_that_lives_is_told(world, group):
    """The task may wait for its worker for ever without a message."""
    world.start()
    code = (
        "import os, time\nif os.fork() == 0:\n    time.sleep(3)\n"
        + "".join(f"    {line}\n" for line in GROW.format(rate=100).strip().splitlines())
        + "\ntime.sleep(600)\n"
    )
    pid = world.script(code, "workers-of-this-test.py", group)
    world.until(lambda: (world.task(pid) or {}).get("children"), "the worker is seen")

    death = world.ended(pid)

    assert ("exit", True) == (death["kind"], death["notable"])
    assert "A worker" in death["text"]
    assert death["worker"] != pid
    assert world.state_letter(pid) in ("S", "R")


def test_the_last_resort_is_taken_written_down_and_can_be_undone(world, group):
    """It is paused before the limit, and the decision, with its figures, precedes the outcome."""
    world.config.write_text(
        "[actions]\nnotify = false\ncheckpoint = false\npause = false\n"
        '[[rule]]\ntask = "hold-of-this-test.py"\npause = true\n'
        "[notify]\ndesktop = false\n"
    )
    client = world.start()
    pid = world.script(GROW.format(rate=10), "hold-of-this-test.py", group)

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
