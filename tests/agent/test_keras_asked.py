"""A real training process gets a rescue request over a real socket, is killed and runs again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_stand_in import StandIn
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_asked.py"


def environment(step_s: float, runtime: Path) -> dict[str, str]:
    return {**os.environ, "STEP_S": str(step_s), "WATCHDOG_RUNTIME_DIR": str(runtime)}


def train(folder: Path, epochs: int, step_s: float, runtime: Path) -> str:
    """Train to the end, and return the output."""
    folder.mkdir(exist_ok=True)
    done = zygote.run(PROGRAM, folder, str(epochs), env=environment(step_s, runtime))
    assert 0 == done.returncode, done.stderr
    return done.stderr + done.stdout


def start(folder: Path, epochs: int, step_s: float, runtime: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(epochs)],
        env=environment(step_s, runtime),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def losses(folder: Path) -> list[str]:
    return (folder / "losses.txt").read_text().splitlines()


def test_a_killed_training_goes_on_from_the_step_that_the_daemon_had_saved(tmp_path: Path):
    """
    The training reports its steps, answers the request, and the second run resumes from the saved
    step.
    """
    train(tmp_path / "reference", 6, 0, tmp_path / "nobody")
    daemon = StandIn(str(tmp_path / "runtime" / "daemon.sock"))
    training = start(tmp_path / "killed", 6, 0.1, tmp_path / "runtime")
    try:
        daemon.until(lambda: "agent.report" in daemon.methods(), 60)
        daemon.until(lambda: (daemon.last("agent.report").get("step") or 0) >= 4, 60)
        report = daemon.last("agent.report")
        daemon.ask()
        saved = daemon.wait_for("agent.saved")["rescue"]
    finally:
        training.send_signal(signal.SIGKILL)
        training.communicate()
        daemon.close()
    killed_with = losses(tmp_path / "killed")
    output = train(tmp_path / "killed", 6, 0, tmp_path / "nobody")

    registered = daemon.last("agent.register")
    assert (training.pid, "keras") == (registered["pid"], registered["framework"])
    assert str(tmp_path / "killed" / "rescues") == registered["directory"]
    assert report["training"] is True
    assert report["state_bytes"] > 0
    assert report["step_s"] > 0
    assert report["save_s"] > 0
    assert report["step"] == 10 * report["epoch"] + report["batch"]
    assert report["loss"] > 0
    assert saved["step"] >= report["step"]
    assert f"step {saved['step']}" in output
    assert output.endswith("ended well\n")
    whole = losses(tmp_path / "reference")
    assert whole[: len(killed_with)] == killed_with
    assert whole[saved["step"] :] == losses(tmp_path / "killed")[len(killed_with) :]


def test_a_training_that_ended_well_says_good_bye(tmp_path: Path):
    """The daemon gets the end, and no rescue without a request."""
    daemon = StandIn(str(tmp_path / "daemon.sock"))
    try:
        output = train(tmp_path / "fit", 1, 0.02, tmp_path)
        daemon.wait_for("agent.bye")
    finally:
        daemon.close()

    assert output.endswith("ended well\n")
    assert "agent.saved" not in daemon.methods()
