"""The agent finds what grows during the training, and the warning gets it as advice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from harness import NO_PAUSE, PROGRAMS, World
from support.finished import finished

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a memory group")
LINE = 1 + next(
    number
    for number, line in enumerate((PROGRAMS / "standstill.py").read_text().splitlines())
    if "the line that holds" in line
)


def test_the_line_that_holds_what_grows_is_in_the_advice_and_by_the_command(tmp_path: Path):
    """
    One line keeps 200 KB per step.

    The daemon finds it on request, and automatically before a warning.
    """
    world = World(tmp_path)
    try:
        world.start_daemon(f'{NO_PAUSE}[watch]\ncaution = "high"\n')
        group = world.group(limit_mb=360)
        pid = world.start("standstill.py", "grows", group=group)

        def trains():
            agent = (world.task(pid) or {}).get("agent")
            return agent is not None and agent["training"]

        world.until(trains, "the agent comes", 30)

        told = finished(
            [sys.executable, "-m", "watchdog_app", "leaks", str(pid), "--for", "2", "--json"],
            env=world.env,
        )
        assert 0 == told.returncode, told.stderr
        found = json.loads(told.stdout)
        first = found["lines"][0]
        assert ("standstill.py", LINE, True) == (
            Path(first["file"]).name,
            first["line"],
            first["own"],
        )
        assert 190_000 < first["bytes_per_step"] < 230_000

        def advised():
            for incident in world.client.call("status")["incidents"]:
                for line in incident["advice"]:
                    if f"line standstill.py:{LINE} holds them" in line:
                        return line
            return None

        line = world.until(advised, "advice from what grows", 90)
        assert line.startswith("Python objects grow ")
        assert "a step" in line
    finally:
        world.close()
