"""A PyTorch training in several processes is saved at one common step, and resumed exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.rescue.checkpoint.inventory import foreign_content, rescues_in, verify

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "programs" / "torch_ranks.py"
SAVED_AT, KILLED = 13, "-9"
CASES = [pytest.param("ddp", 2, marks=pytest.mark.slow), ("ddp", 4), ("fsdp", 2)]


def run(
    folder: Path, kind: str, counts: str, *roles: str, before: Sequence[str] = (sys.executable,)
) -> subprocess.CompletedProcess[str]:
    """Run these roles of the program; each prints the exit statuses of its processes."""
    env = {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_AGENT_STRICT": "1",
        "OMP_NUM_THREADS": "1",  # the program forks, so it must have no threads
    }
    command = [*before, str(PROGRAM), str(folder), kind, counts, *roles]
    return finished(command, env=env, timeout=250)


def lines(folder: Path, role: str, rank: int) -> list[str]:
    return (folder / f"{role}.{rank}.txt").read_text().splitlines()


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_all_ranks_resume_from_one_step_with_equal_bits(tmp_path: Path, kind: str, count: int):
    """One rank is asked to save; later all are killed."""
    done = run(tmp_path, kind, str(count), "reference", "interrupted", "resumed")

    well, killed = " ".join(["0"] * count), " ".join([KILLED] * count)
    assert [f"reference {well}", f"interrupted {killed}", f"resumed {well}"] == (
        done.stdout.splitlines()
    ), done.stderr
    assert 1 == done.stderr.count(f"step {SAVED_AT},")  # only rank 0 says that it resumes
    for rank in range(count):
        reference = lines(tmp_path, "reference", rank)
        assert reference[:SAVED_AT] == lines(tmp_path, "interrupted", rank)[:SAVED_AT]
        assert reference[SAVED_AT:] == lines(tmp_path, "resumed", rank)
    (saved,) = rescues_in(str(tmp_path / "rescues"))
    verify(saved.path)
    assert foreign_content(saved.path) is None
    assert [f"rank-{rank}" for rank in range(1, count)] == sorted(
        each for each in os.listdir(saved.path) if each.startswith("rank-")
    )


@pytest.mark.cgroup
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_at_the_limit_of_a_guard_all_ranks_save_one_step(tmp_path: Path, kind: str):
    """One of them fills the memory of all. Then memory is refused, and they end by an error."""
    guard = [sys.executable, "-m", "watchdog_app", "exec", "--limit", "1400M", "--", sys.executable]
    done = run(tmp_path, kind, "2", "reference", "leaking", "resumed", before=guard)

    assert ["reference 0 0", "resumed 0 0"] == done.stdout.splitlines()[::2], done.stderr
    assert "reached its memory limit" in done.stderr
    for rank in range(2):
        reference, resumed = (lines(tmp_path, role, rank) for role in ("reference", "resumed"))
        assert 0 < len(resumed) < len(reference)
        assert reference[-len(resumed) :] == resumed


def test_a_rank_that_is_killed_ends_the_wait_of_the_others(tmp_path: Path):
    """They say which one, keep no incomplete rescue, and go on to what the program does."""
    done = run(tmp_path, "ddp", "2", "short")

    assert "short 1 -9" == done.stdout.strip(), done.stderr  # gloo ends the other one
    assert f"has ended, so step {SAVED_AT} was not saved" in done.stderr
    assert [] == rescues_in(str(tmp_path / "rescues"))


def test_another_number_of_processes_is_refused(tmp_path: Path):
    """What the missing processes have had is not known to the others."""
    done = run(tmp_path, "ddp", "2,3", "interrupted", "resumed")

    assert ["interrupted -9 -9", "resumed 1 1 1"] == done.stdout.splitlines()
    assert 3 == done.stderr.count("2 processes saved it, and 3 train now")
