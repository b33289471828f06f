"""A Keras fit that was interrupted and resumed in a new process is exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_cases.py"
TWICE = ("twice",)  # interrupted a second time after the first resume
ONCE = (
    "xla",
    "arrays",
    "first_batch_of_all",
    "last_batch_of_an_epoch",
    "weighted_from_epoch_2",
    "tf_data",
    "own_generator",
    "noisy_py_dataset",
    "noisy_pipeline",
    "tf_data_last_batch",
    "tf_data_of_unknown_size",
    "tf_data_without_end",
    "py_dataset",
    "py_dataset_with_workers",
    "generator",
    "cosine_and_accumulation",
    "five_steps_per_execution",
    "lazy_model_with_moving_average",
    "mixed_precision",
    "quantized_with_lora",
    "callbacks_and_validation",
    "during_validation",
    "mirrored_strategy",
    "two_optimizers",
    "run_eagerly",
    "in_a_thread",
)


def start(role: str, folder: Path) -> subprocess.Popen[str]:
    """Run all cases in one process without a daemon."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, "ROLE": role, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=850)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each role's output: each role is a process, so every resume is fresh."""
    folder = tmp_path_factory.mktemp("fits")
    reference = start("reference", folder)
    finish(start("interrupted", folder))
    finish(start("again", folder))
    finish(start("resumed", folder))
    finish(reference)
    return folder


def written(folder: Path, case: str, *roles: str) -> list[str]:
    return "".join((folder / f"{case}.{role}.txt").read_text() for role in roles).splitlines()


@pytest.mark.parametrize("case", ONCE)
def test_a_resumed_fit_repeats_the_uninterrupted_one(trained: Path, case: str):
    """Losses, metrics, history, weights and slots equal those of an uninterrupted fit."""
    expected = written(trained, case, "reference")

    interrupted = written(trained, case, "interrupted")
    resumed = written(trained, case, "resumed")

    assert expected == interrupted + resumed
    assert len(interrupted) > 0
    assert resumed[-1].startswith("state ")


@pytest.mark.parametrize("case", TWICE)
def test_a_fit_can_be_interrupted_again_after_its_resume(trained: Path, case: str):
    """The callback that resumed a fit saves it again with its position in the whole training."""
    expected = written(trained, case, "reference")

    pieces = [written(trained, case, role) for role in ("interrupted", "again", "resumed")]

    assert expected == [line for piece in pieces for line in piece]
    assert all(pieces)
