"""A job is requeued on a real Slurm of one node, and ends with the bits of an undisturbed one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.finished import finished

FOLDER = Path(__file__).parents[2] / "examples" / "slurm"
sys.path.insert(0, str(FOLDER))

import one_node  # noqa: E402


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.skipif(one_node.missing() is not None, reason=f"no Slurm: {one_node.missing()}")
@pytest.mark.parametrize(
    "case",
    [
        "memory",
        pytest.param("time", marks=pytest.mark.slow),
        pytest.param("preempted", marks=pytest.mark.slow),
    ],
)
def test_a_job_is_requeued_and_ends_with_equal_bits(case: str) -> None:
    done = finished([sys.executable, str(FOLDER / "three_ends.py"), case], timeout=580)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "losses and the weights are equal" in done.stdout
    assert ("requeued with" in done.stdout) == (case == "memory")
