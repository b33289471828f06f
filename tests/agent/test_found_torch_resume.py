"""PyTorch trainings without a Rescue: killed, and resumed with the printed lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.finished import finished

from watchdog_app.agent.found import folders, resume_lines, training
from watchdog_app.agent.runtime import run_choice

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "torch_found_cases.py"
# Number of completed iterations in the rescue; the request comes in the 17th.
DONE = {
    "convolution": 17,
    "workers": 17,
    "accumulated": 18,  # where the optimizer steps next
    "no_loader": None,  # this iteration or the one before, which ends where the model computes
    "whole_batch": None,
    "adversarial": 17,
    "listed": 17,
    "own_iterator": None,
}
NAMES = {
    "convolution": {"model": "model", "optimizer": "optimizer", "scheduler": "scheduler"},
    "workers": {
        "net": "self.net",
        "average": "self.average",
        "optim": "self.optim",
        "decay": "self.decay",
    },
    "no_loader": {
        "model": "model",
        "weight": "weight",
        "optimizer": "optimizer",
        "draws": "draws",
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the output of each case's runs, started by `watchdog exec`."""
    folder = tmp_path_factory.mktemp("found")
    program = folder / "train.py"
    shutil.copy(PROGRAM, program)
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon")}
    env["OPENBLAS_NUM_THREADS"] = "1"  # the program forks, so it must have no threads
    watchdog = [sys.executable, "-m", "watchdog_app", "exec", "--"]
    done = finished(
        [*watchdog, sys.executable, str(program), str(folder), *DONE],
        cwd=folder,
        env=env,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said.txt").write_text(done.stderr)
    return folder


def step(trained: Path, case: str) -> int:
    """Return the step of the rescue that the run resumed from."""
    return int(json.loads((trained / f"{case}.names.json").read_text())["step"])


@pytest.mark.parametrize("case", [each for each in DONE if each != "no_loader"])
def test_a_training_that_names_no_rescue_goes_on_bit_for_bit_with_the_lines(
    trained: Path, case: str
):
    """Losses, learning rates and random numbers after the kill equal those of one run."""
    expected = (trained / f"{case}.reference.txt").read_text().splitlines()
    interrupted = (trained / f"{case}.interrupted.txt").read_text().splitlines()
    resumed = (trained / f"{case}.resumed.txt").read_text().splitlines()

    done = DONE[case] or step(trained, case)
    assert 30 == len(expected)
    assert expected[: len(interrupted)] == interrupted
    assert 16 <= done < len(interrupted) < 30
    assert expected[done:] == resumed


def test_a_loop_that_draws_its_batches_itself_goes_on_and_says_what_does_not_come_back(
    trained: Path,
):
    """
    The loop drew before its model computed:

    the agent cannot tell whether a new iteration had started.
    """
    resumed = (trained / "no_loader.resumed.txt").read_text().splitlines()
    told = {case: json.loads((trained / f"{case}.names.json").read_text())["lost"] for case in DONE}
    lost = {
        case: [each for each in texts if each.startswith(training.DRAWN)]
        for case, texts in told.items()
    }

    assert 30 - step(trained, "no_loader") == len(resumed)
    named = [f"{training.DRAWN}: draws, NumPy, PyTorch, Python"]
    assert {case: named if case == "no_loader" else [] for case in DONE} == lost


@pytest.mark.parametrize("case", NAMES)
def test_the_lines_name_what_the_program_names(trained: Path, case: str):
    """
    Names cover modules, optimizers, schedulers, averages, tensors and generators, as expressions.
    """
    found = json.loads((trained / f"{case}.names.json").read_text())

    assert NAMES[case] == found["names"]
    assert ([] if case == "no_loader" else ["loader"]) == found["data"]


def test_a_training_says_once_where_it_is_saved(trained: Path):
    """One line appears when the agent finds it, and one when it saves, per process that saved."""
    said = (trained / "said.txt").read_text().splitlines()

    met = sum("PyTorch trainings are saved in rescues/" in line for line in said)
    # On a slow machine the agent also finds the uninterrupted trainings.
    assert len(DONE) <= met <= 2 * len(DONE)
    assert len(DONE) == sum("When this program is run again" in line for line in said)


def test_a_loop_without_a_loader_claims_no_epoch(trained: Path):
    """The messages of saving and resuming name only its step."""
    said = (trained / "said.txt").read_text().splitlines()
    saved = [line for line in said if "When this program is run again" in line]
    resumed = [line for line in said if "resuming from" in line]

    assert len(DONE) - 2 == sum(", epoch " in line for line in saved)
    assert 2 == sum(re.search(r"step \d+, saved", line) is not None for line in resumed)


@pytest.mark.parametrize("newest_step", [4, 9])
def test_the_newest_of_several_waiting_rescues_is_offered_and_one_further_on_is_named(
    tmp_path: Path, monkeypatch, capsys, newest_step: int
):
    """A second killed run left its rescue in the folder next to it."""
    first, second = tmp_path / "train.py", tmp_path / "train.py-2"
    waits = {
        str(first): resume_lines.WaitingRescue(f"{first}/saved", 5, None, 100.0, None),
        str(second): resume_lines.WaitingRescue(f"{second}/saved", newest_step, 1, 200.0, None),
    }
    runs = {root: SimpleNamespace(directory=root, run="run") for root in waits}
    monkeypatch.setattr(folders, "rescue_folder", lambda: (str(first), True))
    monkeypatch.setattr(run_choice, "may_resume", lambda root, _: root in waits)
    monkeypatch.setattr(run_choice, "waiting_run", runs.get)
    monkeypatch.setattr(resume_lines, "newest", lambda folder, _: waits[folder])

    root, found = resume_lines.choose_folder()
    for _ in range(2):  # of a program that trains several times
        resume_lines.report_waiting(found, root)

    said = capsys.readouterr().err
    assert 1 == said.count("waits in")
    assert f"{first}-3" == root
    assert [waits[str(second)], waits[str(first)]] == found
    assert f"step {newest_step}, epoch 2, saved" in said
    other = f"Another unfinished rescue (step 5) is in {folders.display_path(str(first))}."
    assert (newest_step < 5) == (other in said)


def test_a_library_that_resumes_goes_on_in_the_folder_that_it_resumes_from(monkeypatch):
    """The rescue that waits beside it is not offered: the run has not started over."""
    monkeypatch.setitem(run_choice._process.adopted, "/folder/train.py-2", "run")

    assert ("/folder/train.py-2", []) == resume_lines.choose_folder()
