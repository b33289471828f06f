"""Trainings that SIGTERM ends at random moments resume to the same bits."""

from __future__ import annotations

import os
import random
import shlex
import signal
from pathlib import Path

import pytest
from support import zygote

PROGRAMS = Path(__file__).parent.parent / "e2e" / "programs"
STEPS, STEP_S = 60, 0.01


class Training:
    """One training, which may be ended and run again."""

    def __init__(self, folder: Path, program: str, framework: str) -> None:
        self.folder = folder
        self.program = PROGRAMS / program
        self.framework = framework
        self.out = folder / "losses.csv"
        folder.mkdir()

    def run(self, *options: str) -> tuple[int, str]:
        words = ["--epochs", "2", "--steps", str(STEPS // 2), "--step-s", str(STEP_S), *options]
        env = dict(
            os.environ,
            WATCHDOG_RUNTIME_DIR=str(self.folder / "run"),
            WATCHDOG_STATE_DIR=str(self.folder / "state"),
            WATCHDOG_AGENT_STRICT="1",
            WATCHDOG_AGENT_GRACE_S="500",
            TF_NUM_INTRAOP_THREADS="1",
            TRAINING_WORDS=shlex.join(words),
        )
        given = ("--out", self.out, "--rescues", self.folder / "rescues")
        done = zygote.run(self.program, *given, env=env, cwd=self.folder, framework=self.framework)
        return done.returncode, done.stderr

    def final(self) -> list[str]:
        """The digest of the trained values, where the program writes one."""
        return [each.read_text() for each in self.folder.glob("*.final")]

    def lines(self) -> list[str]:
        """Step and loss of each step that was trained, in the order of training."""
        return [line.rsplit(",", 2)[0] for line in self.out.read_text().splitlines()]


@pytest.mark.parametrize(
    ("program", "framework"),
    [
        pytest.param("fit.py", "tensorflow", marks=pytest.mark.tensorflow),
        ("torch_loop.py", "torch"),
    ],
)
@pytest.mark.parametrize("ends", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_training_that_is_ended_again_and_again_trains_each_step_once_with_the_same_bits(
    tmp_path: Path, program: str, framework: str, ends: int
) -> None:
    """It saves where it is, trains no step more, and has the exit status of the signal."""
    reference = Training(tmp_path / "reference", program, framework)
    assert reference.run("--no-agent" if framework == "torch" else "--epochs=2")[0] == 0
    expected = reference.lines()
    assert len(expected) == STEPS
    rng = random.Random(ends)
    ended = Training(tmp_path / "ended", program, framework)

    for _ in range(ends):
        after_s = rng.uniform(0, 2 * STEPS * STEP_S / (ends + 1))
        before = ended.lines() if ended.out.exists() else []
        status, errors = ended.run("--term-after-s", f"{after_s:.3f}")
        if status == 0:  # it was faster
            break
        assert status == -signal.SIGTERM, errors
        if ended.lines() == expected:  # after the last step nothing is left to save
            return
        assert "SIGTERM: saved at step" in errors or ended.lines() == before
    else:
        status, errors = ended.run()

    assert status == 0, errors
    assert ended.lines() == expected
    assert ended.final() == reference.final()
