"""A real daemon remembers the runs of a real program: shown, used at the next start, deleted."""

from __future__ import annotations

import json
import time

import pytest

HOLDS = """
import sys, time
held = bytearray(b"x" * 60_000_000)
time.sleep(6)
"""


def runs(world) -> list[dict]:
    """The stored runs of this world's job.py, the newest first."""
    shown = world.command("history", "--runs", str(world.folder / "job.py"), "--json")
    return json.loads(shown.stdout)["entries"]


def test_the_second_run_of_a_program_knows_the_first(world):
    world.start()
    world.seen(world.script(HOLDS))
    world.until(lambda: [one for one in runs(world) if one["outcome"] == "ended"], "it has ended")

    pid = world.script(HOLDS)
    task = world.until(
        lambda: (found := world.task(pid)) and found["past"] and found, "the first run is found"
    )

    assert task["past"].startswith("job.py peaked at ")
    assert task["past_verdict"] == "fits"
    assert task["expected_bytes"] > 60_000_000
    assert "Earlier runs: job.py peaked at" in world.command("explain", str(pid)).stdout
    assert "job.py peaked at" in world.command("status", "--all").stdout
    shown = world.command("history", "--runs", str(world.folder / "job.py")).stdout
    assert "ended well with" in shown
    assert "highest memory of job.py" in shown

    forgotten = world.command("forget", str(world.folder / "job.py"))
    assert forgotten.stdout == "Forgotten: 1 run.\n"
    world.until(lambda: world.task(pid)["past"] is None, "nothing is known any more")


def test_a_daemon_that_stops_keeps_the_run_in_progress(world):
    world.start()
    pid = world.sleeper()
    time.sleep(2.5)
    world.end()

    (found,) = runs(world)
    assert (found["pid"], found["outcome"]) == (pid, "lost_sight")


@pytest.mark.parametrize("words", [(), ("job.py", "--all")])
def test_forget_wants_a_program_or_all(world, words):
    world.start()

    refused = world.command("forget", *words)

    assert refused.returncode == 2
    assert "--all" in refused.stderr
