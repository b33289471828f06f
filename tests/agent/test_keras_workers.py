"""Trainings of TensorFlow and Keras in two processes are saved at one step, resumed exactly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.rescue.checkpoint.inventory import rescues_in, verify

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "programs" / "keras_ranks.py"
SAVED_AT = 17
KINDS = ["keras2", pytest.param("loop", marks=pytest.mark.slow), "jax"]


def run(folder: Path, kind: str, *roles: str) -> subprocess.CompletedProcess[str]:
    """Run these roles of the program; each prints the exit statuses of its processes."""
    pytest.importorskip({"keras2": "tf_keras"}.get(kind, "jax"))
    env = {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_AGENT_STRICT": "1",
    }
    return finished([sys.executable, str(PROGRAM), str(folder), kind, *roles], env=env, timeout=380)


def lines(folder: Path, role: str, rank: int) -> list[str]:
    return (folder / f"{role}.{rank}.txt").read_text().splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_both_processes_resume_from_one_step_with_equal_bits(tmp_path: Path, kind: str) -> None:
    """One of them is asked to save; later both are killed."""
    done = run(tmp_path, kind, "reference", "interrupted", "resumed")

    said = re.findall(r"(?m)^(?:reference|interrupted|resumed) .*$", done.stdout)
    assert ["reference 0 0", "interrupted -9 -9", "resumed 0 0"] == said, done.stderr
    assert 1 == done.stderr.count(f"step {SAVED_AT},")  # only rank 0 says that it resumes
    for rank in range(2):
        reference = lines(tmp_path, "reference", rank)
        interrupted, resumed = (lines(tmp_path, each, rank) for each in ("interrupted", "resumed"))
        assert reference[: len(interrupted)] == interrupted
        assert resumed[0].startswith(f"{SAVED_AT + 1} ")
        assert reference[-len(resumed) :] == resumed
    (saved,) = rescues_in(str(tmp_path / "rescues"))
    verify(saved.path)
    assert os.path.isdir(os.path.join(saved.path, "rank-1"))


@pytest.mark.parametrize("kind", ["keras2", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_process_that_is_killed_ends_the_wait_of_the_other(tmp_path: Path, kind: str) -> None:
    """It keeps no incomplete rescue; then the framework ends it with an error of its own."""
    done = run(tmp_path, kind, "short")

    assert done.stdout.endswith(" -9\n"), done.stderr
    assert "short 0" not in done.stdout
    assert [] == rescues_in(str(tmp_path / "rescues"))


@pytest.mark.parametrize("kind", ["keras2", pytest.param("jax", marks=pytest.mark.slow)])
def test_sigterm_saves_a_training_whose_framework_ignores_the_signal(
    tmp_path: Path, kind: str
) -> None:
    """TensorFlow and JAX catch it in several processes; as without the agent it trains on."""
    done = run(tmp_path, kind, "asked")

    assert "asked 0 0" in done.stdout.splitlines(), done.stderr
    assert 1 == done.stderr.count("SIGTERM: saved at step")
    assert "so it continues until it is killed" in done.stderr
    (saved,) = rescues_in(str(tmp_path / "rescues"))
    assert os.path.isdir(os.path.join(saved.path, "rank-1"))
