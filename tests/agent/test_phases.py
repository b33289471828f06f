"""Phases of an epoch and announced growth, as the daemon receives them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

import pytest
from daemon_stand_in import StandIn

from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore

PROGRAM = Path(__file__).parent / "programs" / "fit_phases.py"


def capture() -> Capture:
    return Capture([TensorEntry("a", "U8", (4,), 4, lambda: memoryview(b"abcd"))])


@pytest.fixture
def daemon(tmp_path: Path):
    stand_in = StandIn(str(tmp_path / "run" / "daemon.sock"))
    yield stand_in
    stand_in.close()


@pytest.fixture
def session(tmp_path: Path, daemon: StandIn):
    link = Link("test", str(tmp_path / "r"), socket_path=daemon.path)
    made = Session(RescueStore(str(tmp_path / "r")), link, capture)
    made.prepare()
    yield made
    made.end()


def test_a_phase_and_an_announcement_are_told_without_another_step(session, daemon):
    """A validation has no step boundary, so the agent sends its phase separately."""
    daemon.wait_for("agent.register")
    session.boundary(3, epoch=1)

    session.phase("validate")
    daemon.until(lambda: daemon.last("agent.report").get("phase") == "validate")
    session.expect(5_000, "the shuffle buffer")
    daemon.until(lambda: daemon.last("agent.report").get("expected_bytes") == 5_000)

    report = daemon.last("agent.report")
    assert (3, 1, "validate") == (report["step"], report["epoch"], report["phase"])
    assert (5_000, "the shuffle buffer") == (report["expected_bytes"], report["expected_for"])


def test_phases_that_fly_past_do_not_flood_the_daemon(session, daemon):
    """A thousand phases per second cause a few messages, and the last one is correct."""
    daemon.wait_for("agent.register")
    began = time.monotonic()
    for epoch in range(1000):
        session.phase("validate", epoch)
        session.phase("train", epoch)
        time.sleep(0.001)
    session.phase("save", 1000)

    daemon.until(lambda: daemon.last("agent.report").get("phase") == "save")

    assert daemon.methods().count("agent.report") <= 5 * (time.monotonic() - began) + 3


def test_less_than_nothing_cannot_be_announced(session):
    """The caller made the mistake and gets the error."""
    with pytest.raises(ValueError, match="-1"):
        session.expect(-1, "nothing")


@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_keras_and_loops_say_what_they_are_doing(tmp_path: Path, daemon: StandIn):
    """
    The phases are training, validation and end of the epoch.

    An announcement before fit counts.
    """
    subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        env={**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run")},
        check=True,
        timeout=200,
    )
    daemon.wait_for("agent.bye", 2)

    end = daemon.methods().index("agent.bye")
    fit = [params for name, params in daemon.received[:end] if name == "agent.report"]
    loop = [params for name, params in daemon.received[end:] if name == "agent.report"]
    phases = [key for key, _ in groupby(p["phase"] for p in fit if p.get("phase"))]
    assert ["train", "validate", "epoch_end"] * 2 == phases
    assert {0, 1} == {p["epoch"] for p in fit if p.get("phase") == "validate"}
    assert (123_456, "the shuffle buffer") == (fit[-1]["expected_bytes"], fit[-1]["expected_for"])
    assert ["validate", "train"] == [
        key for key, _ in groupby(p["phase"] for p in loop if p.get("phase"))
    ]
    assert 99 == loop[-1]["expected_bytes"]
