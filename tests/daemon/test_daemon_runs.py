"""A real daemon remembers the runs of a real program: shown, used at the next start, deleted."""

from __future__ import annotations

import json

import pytest

PROGRAM = "keep.py"  # no other test has one of this name
HOLDS = """
import pathlib, time
held = bytearray(b"x" * 60_000_000)
time.sleep(6)
while not pathlib.Path(__file__).with_name("end").exists():
    time.sleep(0.1)
"""


def runs(world) -> list[dict]:
    """The stored runs of the program, the newest first."""
    shown = world.command("history", "--runs", PROGRAM, "--json")
    return json.loads(shown.stdout)["entries"]


def test_runs_of_a_program_are_stored_shown_and_deleted(world):
    world.start()
    end = world.folder / "end"
    end.touch()
    world.seen(world.script(HOLDS, PROGRAM))
    world.until(lambda: [one for one in runs(world) if one["outcome"] == "ended"], "it has ended")

    end.unlink()
    pid = world.script(HOLDS, PROGRAM)
    task = world.until(
        lambda: (found := world.task(pid)) and found["past"] and found, "the first run is found"
    )

    assert task["past"].startswith(f"{PROGRAM} peaked at ")
    assert task["past_verdict"] == "fits"
    assert task["expected_bytes"] > 60_000_000
    assert f"Earlier runs: {PROGRAM} peaked at" in world.command("explain", str(pid)).stdout
    assert f"{PROGRAM} peaked at" in world.command("status", "--all").stdout
    shown = world.command("history", "--runs", PROGRAM).stdout
    assert "ended well with" in shown
    assert f"highest memory of {PROGRAM}" in shown
    assert PROGRAM not in world.command("history", "--kind", "exit").stdout

    world.end()
    stopped, ended = runs(world)
    assert (stopped["pid"], stopped["outcome"]) == (pid, "lost_sight"), "the daemon has stopped"
    assert ended["outcome"] == "ended"

    world.start()
    world.until(lambda: world.task(pid)["past"], "the runs are found again")
    forgotten = world.command("forget", PROGRAM)
    assert forgotten.stdout == "Forgotten: 2 runs.\n"
    world.until(lambda: world.task(pid)["past"] is None, "nothing is known any more")


@pytest.mark.parametrize("words", [(), (PROGRAM, "--all")])
def test_forget_wants_a_program_or_all(world, words):
    world.start()

    refused = world.command("forget", *words)

    assert refused.returncode == 2
    assert "--all" in refused.stderr
