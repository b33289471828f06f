"""A Keras fit that was interrupted and resumed in a new process is exact."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import zygote

from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_cases.py"
DRAWN = "validation_that_draws"
TWICE = "twice"  # interrupted a second time after the first resume
DAILY = (
    "xla",
    "weighted_from_epoch_2",
    "initial_epoch_of_its_own_checkpoint",
    "own_generator",
    "noisy_py_dataset",
    "noisy_pipeline",
    "tf_data_of_unknown_size",
    "tf_data_without_end",
    "globally_shuffled_py_dataset",
    "py_dataset_with_workers",
    "generator_with_cosine_and_accumulation",
    "five_steps_per_execution",
    "lazy_model_with_moving_average",
    "mixed_precision",
    "during_validation",
    "two_optimizers",
    "validation_shuffled_by_itself",
    "during_shuffled_validation",
    "validation_pipeline",
)
# Each has less than a daily case, or another way to run the same steps.
NIGHTLY = (
    "arrays",
    "tf_data",
    "tf_data_last_batch",
    "py_dataset",
    "quantized_with_lora",
    "callbacks_and_validation",
    "mirrored_strategy",
    "run_eagerly",
    "in_a_thread",
)


def train(role: str, folder: Path, *cases: str) -> None:
    """Run these cases in one process without a daemon."""
    env = {
        **os.environ,
        "ROLE": role,  # not an argument: the roles are runs of one program
        "CASES": " ".join(cases),
        "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
    }
    done = zygote.run(PROGRAM, folder, env=env, timeout_s=850)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A folder with each role's output.

    Each role is a process, so every resume is fresh. Only the cases of selected tests are trained.
    """
    folder = tmp_path_factory.mktemp("fits")
    selected = {item.name for item in request.session.items if item.path == request.path}
    cases = [
        each for each in (*DAILY, *NIGHTLY, DRAWN, TWICE) if any(f"[{each}]" in n for n in selected)
    ]
    train("reference", folder, *cases)
    train("interrupted", folder, *cases)
    if TWICE in cases:
        train("again", folder, TWICE)
    train("resumed", folder, *cases)
    return folder


def written(folder: Path, case: str, *roles: str) -> list[str]:
    return "".join((folder / f"{case}.{role}.txt").read_text() for role in roles).splitlines()


@pytest.mark.parametrize(
    "case", [*DAILY, *(pytest.param(case, marks=pytest.mark.slow) for case in NIGHTLY)]
)
def test_a_resumed_fit_repeats_the_uninterrupted_one(trained: Path, case: str):
    """Losses, metrics, history, weights and slots equal those of an uninterrupted fit."""
    expected = written(trained, case, "reference")

    interrupted = written(trained, case, "interrupted")
    resumed = written(trained, case, "resumed")

    assert expected == interrupted + resumed
    assert len(interrupted) > 0
    assert resumed[-1].startswith("state ")


@pytest.mark.parametrize("case", [DRAWN, "validation_shuffled_by_itself"])
def test_numbers_that_validation_data_draws_while_it_is_read_are_named(trained: Path, case: str):
    """Keras reads some batches twice at first. A shuffle at the end is no such draw."""
    path = next((trained / f"{case}.rescues").glob("rescue-*"))

    with LoadedRescue(str(path)) as rescue:
        lost = rescue.meta["not_restored"]

    assert (case == DRAWN) is (
        "random numbers that the validation data draws while it is read" in lost
    )


@pytest.mark.parametrize("case", [TWICE])
def test_a_fit_can_be_interrupted_again_after_its_resume(trained: Path, case: str):
    """The callback that resumed a fit saves it again with its position in the whole training."""
    expected = written(trained, case, "reference")

    pieces = [written(trained, case, role) for role in ("interrupted", "again", "resumed")]

    assert expected == [line for piece in pieces for line in piece]
    assert all(pieces)
