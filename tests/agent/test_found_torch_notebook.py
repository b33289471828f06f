"""PyTorch trainings in notebook cells: each ends with its cell."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.rescue.checkpoint import names

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).parent / "programs" / "torch_cells.py"


def test_a_training_is_over_with_its_cell_and_unfinished_where_that_failed(tmp_path: Path):
    """A later cell may train the model further. The failed cell's rescue stays for a resume."""
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "no-daemon")}
    env["IPYTHONDIR"] = str(tmp_path / "ipython")

    done = finished([sys.executable, str(PROGRAM)], cwd=tmp_path, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "True 0" in done.stdout
    assert "False 0" in done.stdout
    failed, succeeded, again = sorted(
        (each for each in tmp_path.glob("rescues/**/rescue-*") if each.is_dir()),
        key=lambda each: names.RescueName.parse(each.name).sequence,
    )
    runs = {names.RescueName.parse(each.name).run for each in (failed, succeeded, again)}
    assert 3 == len(runs)
    assert not names.is_finished(str(failed))
    assert names.is_finished(str(succeeded))
