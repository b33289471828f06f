"""A save at the end of a fit's last epoch is written, and a longer fit resumes from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import zygote

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_longer.py"


def run(role: str, folder: Path) -> list[str]:
    env = {**os.environ, "ROLE": role, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    done = zygote.run(PROGRAM, folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
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
