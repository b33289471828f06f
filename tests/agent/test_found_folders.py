"""The rescue folder of a program without a Rescue, for each way to start it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.finished import finished

import watchdog_app
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found.fit_rescue import trained_again
from watchdog_app.agent.found.folders import has_begun_too_many, start_over_advice
from watchdog_app.agent.runtime import run_choice

_PROGRAM = """
from watchdog_app.agent.found.folders import rescue_folder
print(*rescue_folder())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(_PROGRAM)
    (tmp_path / "link.py").symlink_to("train.py")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(_PROGRAM)
    (tmp_path / "c.yaml").touch()
    return tmp_path


def folder_of(folder: Path, words: str) -> str:
    """Return the folder relative to `folder`."""
    done = finished([sys.executable, *words.format(folder=folder).split()], check=True, cwd=folder)
    directory, known = done.stdout.split()
    assert "True" == known
    return str(Path(directory).relative_to(folder))


@pytest.mark.parametrize(
    "words",
    [
        "train.py --config ./c.yaml",
        "train.py --config={folder}/c.yaml",
        "{folder}/train.py --config c.yaml",
        "link.py --config c.yaml",
        "-m train --config c.yaml",
    ],
)
def test_another_way_to_start_the_same_program_leads_to_the_same_folder(folder: Path, words: str):
    """The key treats them as equal; another folder would hide the rescue."""
    assert folder_of(folder, "train.py --config c.yaml") == folder_of(folder, words)


def test_how_to_start_over_depends_on_how_the_program_was_started(monkeypatch):
    """Users of `watchdog exec` read of its option; other users and kernels of the variable."""
    shim = os.path.join(os.path.dirname(watchdog_app.__file__), "agent", "shim")
    by_exec = {"PYTHONPATH": os.pathsep.join([shim, "/a"])}
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)

    assert "watchdog exec --no-resume -- COMMAND" in start_over_advice(by_exec)
    assert "WATCHDOG_AGENT_RESUME=no" in start_over_advice({})
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert "WATCHDOG_AGENT_RESUME=no" in start_over_advice(by_exec)


def test_other_arguments_and_a_package_lead_to_folders_of_their_own(folder: Path):
    """A package's folder has the name under which the user starts it."""
    one, other = (folder_of(folder, f"train.py --config {name}.yaml") for name in "cd")

    assert one != other
    assert "rescues/train.py" == folder_of(folder, "train.py")
    assert "rescues/package" == folder_of(folder, "-m package") == folder_of(folder, "package")


def test_trainings_beyond_the_most_are_not_saved_and_that_is_said_once(capsys):
    """A hyperparameter search runs thousands of trainings."""
    guard = Guard("a test")

    assert [False, True, True] == [has_begun_too_many(n, "fits", guard) for n in (99, 100, 101)]

    said = capsys.readouterr()
    assert 1 == (said.out + said.err).count("begun 100 fits")


def test_the_fits_that_train_again_are_counted(monkeypatch: pytest.MonkeyPatch):
    """Those whose ends are saved do not."""
    monkeypatch.setattr(run_choice._process, "ended", [])
    assert "" == trained_again(0)
    assert " Fits before it that are trained again: 2 of 2." == trained_again(2)

    run_choice._process.ended.append((None, "rescue"))

    assert " Fits before it that are trained again: 1 of 2." == trained_again(2)
    assert "" == trained_again(1)
