"""Real trainings at the limit of a real guard: saved from outside, without any daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs"
PATIENCE_S = 90.0  # 8 s on a quiet machine; less than what a test is given at most


def train(desk, program, limit, *words, options=()):
    out, rescues = desk.folder / "out.csv", desk.folder / "rescues"
    process = desk.start(
        sys.executable, str(PROGRAMS / program), "--out", str(out), "--rescues", str(rescues),
        "--state-mb", "8", "--epochs", "30", "--leak-from", "5", *words,
        options=("--limit", limit, *options), cwd=desk.folder,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:  # what stands still says where
        pytest.fail(f"not over within {PATIENCE_S} s: {desk.record(process)}; {process.said()}")
    steps = [int(line.split(",")[0]) for line in out.read_text().split()] if out.exists() else []
    saved = sorted(int(path.name.split("-")[1]) for path in rescues.glob("rescue-*"))
    return code, steps, saved, process.said()


@pytest.mark.tensorflow
def test_a_keras_fit_that_leaks_is_copied_from_outside_and_ends_with_a_report(desk):
    """Nobody is killed; no step but the last few is lost."""
    pytest.importorskip("tensorflow")

    code, steps, saved, said = train(desk, "fit.py", "640M", "--leak-mb-s", "120")

    assert code not in (0, -9), said
    assert saved, said
    assert "Its work is saved: step" in said
    assert steps[-1] - saved[-1] <= 60


@pytest.mark.torch
def test_one_array_that_cannot_fit_is_an_error_after_which_the_work_is_saved(desk):
    """The agent in the program hears of the refusal and saves what was before that batch."""
    pytest.importorskip("torch")

    code, steps, saved, said = train(desk, "torch_loop.py", "700M", "--jump-mb", "2100")

    assert 1 == code, said
    assert saved, said
    assert steps[-1] - saved[-1] <= 1
    assert "stands still" not in said
