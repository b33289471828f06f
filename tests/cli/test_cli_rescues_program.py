"""`watchdog rescues show PROGRAM.py`: whether the rescues fit the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os
from watchdog_app.agent.identity import code
from watchdog_app.agent.runtime import run_choice
from watchdog_app.rescue.checkpoint import runs
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore


def loss(x):
    return x * 2


data = bytes(16)
begun = run_choice.begin("rescues", True)
store = RescueStore(begun.directory, run=begun.run)
function = {"name": "loss", "at": "", "functions": code.fingerprint(loss)}
statements = [text for text, _, _ in code.statements(__file__)]
meta = {"identity": {"code": [function], "statements": statements}, runs.KEY: begun.run.record()}
store.save([TensorEntry("w", "F32", (4,), 16, lambda: memoryview(data))], meta, step=3)
os._exit(0)
"""


@pytest.fixture
def shown(tmp_path: Path, watchdog: Any) -> Any:
    """Return the command's output for the edited program and its arguments."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), "--fold", "1", "--epochs", "5"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)

    def show(before: str, after: str, *arguments: str) -> dict[str, str]:
        program.write_text(PROGRAM.replace(before, after))
        told = ["--", *arguments] if arguments else []
        done = watchdog("rescues", "show", "--json", str(program), *told)
        assert "" == done.stderr
        (found,) = json.loads(done.stdout)["rescues"]
        return found

    return show


def test_the_same_program_resumes(shown: Any):
    """Model and data are known only at run time."""
    found = shown("", "", "--fold", "1", "--epochs", "5")

    assert ("the same", "the same", "the same") == tuple(
        found[key] for key in ("script", "arguments", "code")
    )
    assert "yes, where model and data are the same" == found["resume"]


def test_arguments_that_were_not_told_are_not_compared(shown: Any):
    """The output shows the plain arguments of the saved run."""
    found = shown("", "")

    said = "started as: train.py --epochs 5 --fold ...; give yours behind -- to compare them"
    assert said == found["arguments"]
    assert "yes with the arguments of before, where model and data are the same" == found["resume"]


def test_edits_are_named_with_their_lines(shown: Any):
    """The output reports another epoch count. A comment does not count as an edit."""
    found = shown("data = bytes(16)", "# 16\ndata = bytes(4 * 4)", "--fold", "1", "--epochs", "9")

    assert "the same; edited since: line 15" == found["script"]
    assert "started with --epochs 9 (was 5)." == found["arguments"]
    assert "the same" == found["code"]


def test_code_that_computes_is_named(shown: Any):
    """Watchdog may refuse the resume."""
    found = shown("x * 2", "x * 3")

    assert "changed: loss (train.py)" == found["code"]
    assert found["resume"].startswith("refused if what has changed computes something else")


def test_another_training_is_left_alone(shown: Any):
    """The training has another value of an option that identifies trainings."""
    found = shown("", "", "--fold", "2", "--epochs", "5")

    assert "is of train.py with another value of --fold" == found["arguments"]
    assert found["resume"].startswith("no: it is left alone")


def test_a_program_without_rescues_is_told_so(tmp_path: Path, watchdog: Any):
    """The message says where else to search."""
    (tmp_path / "other.py").write_text("")

    done = watchdog("rescues", "show", str(tmp_path / "other.py"))

    assert 1 == done.returncode
    assert "No unfinished rescue of" in done.stderr
