"""
A pause as the last resort:

it stops the growth, affects only the growing task, and can be undone.
"""

from __future__ import annotations

import time

import pytest
from harness import NO_PAUSE, PAUSE, state_letter

pytestmark = [pytest.mark.tensorflow, pytest.mark.cgroup]

BASE_MB = 290


def test_a_pause_stops_the_growth_and_a_resume_finishes(world, reference):
    """
    The daemon saves and pauses the task near the limit.

    With a higher limit and a resume it ends as an uninterrupted run.
    """
    whole = reference("fit.py")
    world.start_daemon(PAUSE)
    group = world.group(BASE_MB + 200)
    run = world.train("fit.py", "--leak-mb-s", "12", "--step-s", "0.05", group=group)

    task = world.until(
        lambda: (t := world.task(run.pid)) and t["paused_by_watchdog"] and t, "the pause"
    )

    assert "paused" == task["state"]
    assert run.complete_rescues(), world.daemon_log()
    used = group.usage().used_bytes
    time.sleep(2)
    assert state_letter(run.pid) == "T"
    assert abs(group.usage().used_bytes - used) < 5_000_000
    give_room(group, 4_000)
    answer = world.client.call("task.resume", task=str(run.pid))
    assert run.pid in answer["resumed"][0]["pids"]
    assert run.wait() == 0, run.tail()
    assert whole.final() == run.final()


def test_only_the_guilty_of_two_tasks_is_acted_on(world):
    """Two tasks share a group, one leaks: the daemon never pauses the healthy one."""
    world.start_daemon(PAUSE)
    group = world.group(2 * BASE_MB + 350)
    healthy = world.train("fit.py", "--step-s", "0.1", name="healthy", group=group)
    # Imports and first steps also grow memory: a trend over 15 s must not include them any more.
    world.until(lambda: step_of(world, healthy.pid) > 150, "the healthy one trains")
    # Twice the usual steps: it must reach the limit also where its imports take less memory.
    more = "--leak-mb-s", "25", "--step-s", "0.05", "--epochs", "8"
    guilty = world.train("fit.py", *more, group=group)

    world.until(
        lambda: (t := world.task(guilty.pid)) and t["paused_by_watchdog"], "the guilty is paused"
    )

    assert state_letter(guilty.pid) == "T"
    assert state_letter(healthy.pid) != "T"
    paused = [e for e in world.history("decision") if e["decision_kind"] == "pause"]
    said = [(each["pid"], each["name"], each["subject"], each["reason"]) for each in paused]
    assert {guilty.pid} == {entry["pid"] for entry in paused}, f"{healthy.pid=} {said=}"
    give_room(group, 4_000)
    assert healthy.wait() == 0, healthy.tail()


def test_a_process_gone_between_decision_and_action_is_a_clean_outcome(world):
    """The growing task is killed near the limit: the daemon continues and acts on no other task."""
    world.start_daemon(NO_PAUSE)
    group = world.group(600)
    pid = world.start("hog.py", "20", group=group)
    world.until(lambda: (world.task(pid) or {}).get("stage", "ok") != "ok", "a stage opens")

    group.close()

    world.until(lambda: world.task(pid) is None, "it is gone", 20)
    assert world.client.call("status")["daemon"]["pid"] == world.daemon.pid


def step_of(world, pid) -> int:
    """Return the step in the last report of a task's agent; 0 without a report."""
    agent = (world.task(pid) or {}).get("agent") or {}
    return agent.get("step") or 0


def give_room(group, limit_mb: float) -> None:
    """Raise the limit of a cgroup v1 group, memory and swap first."""
    for name in ("memory.memsw.limit_in_bytes", "memory.limit_in_bytes"):
        with open(f"{group.path}/{name}", "w") as file:
            file.write(str(int(limit_mb * 1e6)))
