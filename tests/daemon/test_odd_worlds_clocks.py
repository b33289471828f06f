"""Clocks that are set, machines that sleep, gaps without samples: with a real daemon."""

from __future__ import annotations

import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog_app.daemon.pace import Clocks

REALTIME, MONOTONIC, BOOTTIME = 0, 1, 7
HOUR_S = 3600.0
NOTICES = """
[actions]
checkpoint = false
pause = false
[notify]
desktop = false
"""
# It reports like a real training.
TRAINING = """
import time
from watchdog_app.agent.runtime.link import Link
link = Link("test", "/nonexistent")
link.start()
for step in range(100000):
    link.report(training=True, step=step, step_s=0.1, phase="train")
    time.sleep(0.1)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="clocks of Linux")


class Shim:
    """The compiled library, and the offset of each clock."""

    def __init__(self, folder: Path) -> None:
        assert shutil.which("gcc"), "needs gcc: sudo apt-get install gcc libc6-dev"
        self.library = folder / "moved_clocks.so"
        source = Path(__file__).with_name("moved_clocks.c")
        subprocess.run(
            ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self.library),
             str(source), "-ldl"],
            check=True,
        )  # fmt: skip
        self.file = folder / "clocks"
        self.file.write_bytes(bytes(64))
        with self.file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "WATCHDOG_TEST_CLOCKS": str(self.file)}

    def move(self, by_s: float, *clocks: int) -> None:
        for clock in clocks:
            place = slice(8 * clock, 8 * clock + 8)
            now = int.from_bytes(self._map[place], "little", signed=True) + int(by_s * 1e9)
            self._map[place] = now.to_bytes(8, "little", signed=True)


def said(world, what: str) -> bool:
    with world.connect() as client:
        entries = client.call("history", kinds=["daemon"], limit=100)["entries"]
    return any(what in entry["what"] for entry in entries)


def ticks(world) -> int:
    with world.connect() as client:
        return client.call("status")["daemon"]["samples"]


def test_no_jump_of_a_clock_stops_the_looks_or_raises_an_alarm(world, tmp_path):
    """
    The wall clock forward and back, a night asleep, a minute without a sample: no false alarm.
    """
    world.config.write_text(NOTICES)
    shim = Shim(tmp_path)
    world.start(**shim.env())
    pid = world.script(TRAINING, "train_on.py")
    world.until(lambda: (world.seen(pid)["agent"] or {}).get("step"), "the training has an agent")
    jumps = (
        ("the clock was set forward by 1 h", HOUR_S, (REALTIME,)),
        ("the clock was set back by 3 h", -3 * HOUR_S, (REALTIME,)),
        ("the machine slept for 8 h", 8 * HOUR_S, (REALTIME, BOOTTIME)),
        (None, 45.0, (REALTIME, BOOTTIME, MONOTONIC)),
    )

    for what, by_s, clocks in jumps:
        before = ticks(world)
        shim.move(by_s, *clocks)
        world.until(lambda before=before: ticks(world) > before, "it goes on looking")
        if what is not None:
            world.until(lambda what=what: said(world, what), f"the journal says: {what}")

    step = world.seen(pid)["agent"]["step"]
    world.until(lambda: world.seen(pid)["agent"]["step"] > step, "its agent is still heard")
    with world.connect() as client:
        status = client.call("status")
        decided = client.call("history", kinds=["decision", "incident"], limit=100)["entries"]
    mine = [entry for entry in decided if "train_on.py" in str(entry)]
    assert [] == mine
    assert [] == [e for e in status["problems"] if "failed" in e["message"]]
    assert any(e["source"] == "loop_lag" for e in status["problems"]), "45 s were missed"


@pytest.mark.parametrize(
    ("mono", "boot", "wall", "expected"),
    [
        pytest.param(1, 1, 1, (0, 0), id="nothing"),
        pytest.param(1, 1, 1.5, (0, 0), id="the wall clock is slewed"),
        pytest.param(1, 601, 601, (600, 0), id="ten minutes asleep"),
        pytest.param(1, 1, 3601, (0, 3600), id="set forward"),
        pytest.param(1, 1, -86399, (0, -86400), id="set back by a day"),
        pytest.param(1, 601, 1, (600, -600), id="slept, and the wall clock stood"),
        pytest.param(600, 600, 600, (0, 0), id="nobody looked: no sleep"),
        pytest.param(601, 1, 601, (0, 600), id="moved to another machine"),
    ],
)
def test_clocks_are_told_apart(mono, boot, wall, expected):
    """A sleep shows between two clocks, a set clock between two others."""
    at = [[5000.0, 7000.0, 1.8e9]]
    clocks = Clocks(*(lambda place=place: at[-1][place] for place in range(3)))
    at.append([at[0][0] + mono, at[0][1] + boot, at[0][2] + wall])

    assert tuple(expected) == clocks.poll()
    assert (0, 0) == clocks.poll()
