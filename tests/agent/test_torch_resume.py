"""A PyTorch training that was killed in the middle and run again is exact."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.finished import finished

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "torch_cases.py"
CASES = (
    "sgd",
    "augmented",
    "ahead",
    "workers",
    "persistent",
    "stream",
    "accumulated",
    "averaged",
    "bfloat16",
    "two_loaders",
    "scaled",
    "stateful",
)
SAVED_AFTER = "step 16 "


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the output of each case's runs."""
    folder = tmp_path_factory.mktemp("torch")
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    env["OPENBLAS_NUM_THREADS"] = "1"  # the program forks, so it must have no threads
    done = finished(
        [sys.executable, "-W", "error::UserWarning", str(PROGRAM), str(folder), *CASES],
        env=env,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_killed_and_resumed_training_repeats_the_uninterrupted_one(trained: Path, case: str):
    """Losses, random numbers, learning rates and final weights equal those of one run."""
    expected = (trained / f"{case}.reference.txt").read_text().splitlines()
    interrupted = (trained / f"{case}.interrupted.txt").read_text().splitlines()
    resumed = (trained / f"{case}.resumed.txt").read_text().splitlines()

    place = next(at for at, line in enumerate(expected) if line.startswith(SAVED_AFTER)) + 1

    assert expected[:place] == interrupted[:place]
    assert len(interrupted) == place + 3  # the kill came after the save
    assert expected[place:] == resumed[1:]  # the program runs the start of the epoch again
    assert resumed[-1].startswith("end ")


def test_the_epoch_begins_with_the_same_random_numbers_again(trained: Path):
    """Values that a program draws at the start of an epoch, such as an order, are equal."""
    reference = (trained / "augmented.reference.txt").read_text().splitlines()
    resumed = (trained / "augmented.resumed.txt").read_text().splitlines()

    begun = next(line for line in reference if line.startswith("epoch 1 "))

    assert begun == resumed[0]
