"""A custom training loop that was interrupted and resumed in a new process is exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "loop_cases.py"
CASES = (
    *("tf_data", "tf_data_end_of_epoch", "generators", "zipped", "module", "own_order", "unbuilt"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each role's output; a role is a process."""
    folder = tmp_path_factory.mktemp("loops")
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    for role in ("reference", "interrupted", "resumed"):
        done = zygote.run(PROGRAM, folder, env={**env, "ROLE": role})
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_loop_repeats_the_uninterrupted_one(trained: Path, case: str):
    """
    Losses, metrics, random numbers, arrays and variables equal those of an uninterrupted loop.
    """
    expected = (trained / f"{case}.reference.txt").read_text().splitlines()

    interrupted = (trained / f"{case}.interrupted.txt").read_text().splitlines()
    resumed = (trained / f"{case}.resumed.txt").read_text().splitlines()

    assert expected == interrupted + resumed
    assert len(interrupted) > 0
    assert resumed[-1].startswith("state ")
