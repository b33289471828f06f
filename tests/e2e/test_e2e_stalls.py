"""Trainings that stall in different ways under one daemon: detected, explained, reported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import NO_PAUSE, World
from support.finished import finished

IDLE_S = 4
CONFIG = f"{NO_PAUSE}[stalls]\nidle_s = {IDLE_S}\nbusy_s = 5\n"
# The expected cause of each stall, and an observed reason.
WAYS = {
    "queue": ("a queue that no thread fills", "wait_for_a_queue"),
    "fifo": ("a pipe that no program writes to", "read_a_fifo"),
    "library": ("does not return and keeps Python from running", "the agent's own thread gets no"),
    "fork": ("a lock that no process will release", "no worker runs"),
    "killed": ("a worker process that has ended", "has ended since the last step"),
    "stopped": ("somebody has stopped process", "state T"),
    "lock": ("a lock that no other thread is left to release", "take_a_lock_of_the_dead"),
    "twice": ("a lock that no other thread is left to release", "take_a_lock_twice"),
    "pipe": ("a pipe, terminal or connection that no program reads", "pipe_write"),
    "busy": ("it still computes", "cores since the last step"),
}
DAILY_WAYS = ("queue", "lock", "busy")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, dict[str, int]]]:
    """One program per kind of stall, started together; each uses a core only for a moment."""
    folder: Path = tmp_path_factory.mktemp("stalls")
    world = World(folder)
    os.mkfifo(folder / "fifo")
    # The test opens the pipe, so that the program's open returns and its read blocks.
    pids: dict[str, int] = {}
    fifo = os.open(folder / "fifo", os.O_RDWR)
    try:
        world.start_daemon(CONFIG)
        for way in WAYS:
            pids[way] = world.start("standstill.py", way, str(folder / "fifo"))
        yield world, pids
    finally:
        for pid in pids.values():  # also the stopped worker, which outlives its parent
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        world.close()
        os.close(fifo)


def incident_of(world: World, pid: int):
    for incident in world.client.call("status")["incidents"]:
        if incident["resource"] == "stalled" and incident["contributors"][0]["pid"] == pid:
            return incident
    return None


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[] if way in DAILY_WAYS else [pytest.mark.slow]) for way in WAYS],
)
def test_a_standstill_is_told_with_what_most_likely_holds_it_up(stalled, way):
    """
    The daemon opens one incident, reads the cause from the threads, and sends one notification.
    """
    world, pids = stalled
    likely, reason = WAYS[way]

    def inspected():
        found = incident_of(world, pids[way])
        return found if found and "Most likely" in found["reason"] else None

    incident = world.until(inspected, f"{way} is looked into", 40)

    assert likely in incident["reason"]
    assert reason in incident["reason"]
    assert incident["advice"]
    assert "warn" == incident["stage"]
    assert incident["label"] == "standstill.py is stalled"

    def told():
        return [
            entry
            for entry in world.history("decision")
            if entry.get("incident") == incident["id"] and "no step" in entry.get("reason", "")
        ]

    assert 1 == len(world.until(told, f"{way} is told", 20))


def test_explain_says_where_one_waits_and_the_command_shows_its_threads(stalled):
    """The output shows the waiting line of the program and no value of a variable."""
    world, pids = stalled
    world.until(lambda: incident_of(world, pids["queue"]), "a stall", 30)
    pid = str(pids["queue"])

    def explained():
        text = world.client.call("explain", task=pid)["text"]
        return text if "Most likely" in text else None

    text = world.until(explained, "a reason in explain", 20)
    shown = finished([sys.executable, "-m", "watchdog_app", "stacks", pid], env=world.env)
    told = finished([sys.executable, "-m", "watchdog_app", "stacks", pid, "--json"], env=world.env)

    assert "in wait_for_a_queue" in text
    assert 0 == shown.returncode, shown.stderr
    assert "in wait_for_a_queue" in shown.stdout
    assert "most likely" in shown.stdout
    answer = json.loads(told.stdout)
    main = answer["processes"][0]["threads"][0]
    assert (int(pid), True, "S") == (main["tid"], main["trains"], main["state"])
    assert {"file", "line", "function"} == set(main["frames"][0])
    assert "data" == answer["reasons"][0]["kind"]
