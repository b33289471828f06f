"""A fit that was saved at its end: a longer fit resumes from it, and a later run skips it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"


def run(role: str, folder: Path, program: str = "fit_longer.py", code: int = 0) -> list[str]:
    env = {**os.environ, "ROLE": role, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    done = zygote.run(PROGRAMS / program, folder, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_fit_that_was_saved_at_its_end_can_be_made_longer(tmp_path: Path):
    """
    Two epochs with a save in the last on_epoch_end, then two in another process, equal four at
    once.
    """
    reference = run("reference", tmp_path)

    saved = run("saved", tmp_path)
    longer = run("longer", tmp_path)

    assert 1 == len(list((tmp_path / "rescues").glob("rescue-*")))
    assert reference == saved + longer


@pytest.mark.parametrize("role", ["dies", "near"])
def test_a_fit_that_ended_before_its_program_died_is_not_trained_again(tmp_path: Path, role: str):
    """
    It had a rescue when it ended, or its guard's limit was near. A later run restores it as it
    ended, early and with its best weights, and trains the rest.

    The run after a good end starts over.
    """
    reference = run("reference", tmp_path, "fit_ended.py")
    run(role, tmp_path, "fit_ended.py", code=9)

    again = run("again", tmp_path, "fit_ended.py")
    later = run("later", tmp_path, "fit_ended.py")

    assert [each for each in reference if each != "trained 1 15"] == [
        each for each in again if each != "trained 1 0"
    ]
    assert "trained 1 0" in again
    assert reference == later
