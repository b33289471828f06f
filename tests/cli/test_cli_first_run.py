"""On the first day people learn that a training cannot be saved yet, and what to type."""

from __future__ import annotations

import io
import os
import sys
import time

import pytest
from support import statuses

from watchdog_app.base.errors import UsageError
from watchdog_app.cli import agent, hello, start
from watchdog_app.cli.dispatch import main
from watchdog_app.cli.output import type_program
from watchdog_app.core.explain.saving import next_start_command
from watchdog_app.core.model.status import Task

GIB = statuses.GIB
NOTEBOOK = statuses.process(
    4711, "train.ipynb", GIB, can_save=False, framework="torch", python="/opt/venvs/tf"
)
SCRIPT = statuses.process(
    5000, "train.py", GIB, can_save=False, framework="torch", kind="script", python="/opt/venvs/tf"
)


@pytest.fixture
def unsaved(daemon):
    """A daemon that watches a notebook and a script without an agent."""
    daemon.answers["status"] = {
        **statuses.status(tasks=[NOTEBOOK, SCRIPT]),
        "time_unix_s": time.time(),
    }
    return daemon


def test_start_names_the_trainings_that_cannot_be_saved(unsaved):
    """The line has the command for each."""
    assert [
        "It watches 2 Python tasks. See them: watchdog status",
        (
            "Of these, 2 seem to train and cannot be saved yet: "
            "train.ipynb (watchdog agent enable --python /opt/venvs/tf), "
            "train.py (watchdog exec -- /opt/venvs/tf/bin/python3 train.py)."
        ),
    ] == start._watched_lines()


def test_the_command_names_the_interpreter_that_ran_the_program(tmp_path, monkeypatch):
    """Its environment need not be active in this shell, nor need watchdog be on PATH."""
    for name in ("bin/python3", "bin/python", "other/python", "own/watchdog"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/own/watchdog", "status"])

    def command(*folders):
        monkeypatch.setenv("PATH", ":".join(f"{tmp_path}/{each}" for each in folders))
        return next_start_command("script", "train.py", str(tmp_path), type_program)

    assert command("bin", "own") == "watchdog exec -- python train.py"
    assert command("other", "own") == f"watchdog exec -- {tmp_path}/bin/python3 train.py"
    assert command("bin") == f"{tmp_path}/own/watchdog exec -- python train.py"
    (tmp_path / "bin" / "python").unlink()  # as on Debian
    assert command("bin", "own") == "watchdog exec -- python3 train.py"


def test_start_says_nothing_where_nothing_trains(daemon):
    """A sentence about saving would be noise."""
    daemon.answers["status"] = statuses.status()
    assert ["It watches 1 Python task. See them: watchdog status"] == start._watched_lines()


def test_status_shows_the_paragraph_until_it_is_switched_off(unsaved, watchdog, own_folders):
    """The column and the headline stay; a mistake in the configuration does not hide the status."""
    shown = watchdog("status", env={"COLUMNS": "100"}).stdout
    assert "2 possible trainings cannot be saved." in shown
    assert "watchdog exec -- /opt/venvs/tf/bin/python3 train.py" in shown
    assert "cannot" in next(line for line in shown.splitlines() if "4711" in line)

    (own_folders / "config.toml").write_text("[hints]\nsaving = false\n")
    shown = watchdog("status", env={"COLUMNS": "100"}).stdout
    assert "2 possible trainings cannot be saved." in shown
    assert "watchdog exec" not in shown

    (own_folders / "config.toml").write_text("[hints]\nsaving = 'maybe'\n")
    assert "watchdog exec" in watchdog("status").stdout


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Three environments with IPython, and no kernelspec but that of the second."""
    for name, framework in (("tf", "tensorflow"), ("lab", "numpy"), ("own", "rich")):
        packages = tmp_path / name / "lib" / "python3.11" / "site-packages"
        for package in ("IPython", framework):
            (packages / package).mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").touch()
    kernel = tmp_path / "jupyter" / "kernels" / "lab"
    kernel.mkdir(parents=True)
    python = tmp_path / "lab" / "bin" / "python"
    (kernel / "kernel.json").write_text(f'{{"argv": ["{python}", "-m", "ipykernel_launcher"]}}')
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_DATA_HOME", "JUPYTER_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(agent, "_user", lambda: "ada")
    return tmp_path


def _tasks(folders, **more):
    return [Task.read({**NOTEBOOK, "python": str(folders / "tf"), **more})]


def test_environments_with_running_trainings_come_first_and_watchdogs_own_last(folders):
    """With pipx the own environment is the wrong one."""
    found = agent.environments(_tasks(folders))
    known = [each for each in found if each.prefix.startswith(str(folders))]
    assert ["tf", "lab", "own"] == [os.path.basename(each.prefix) for each in known]
    lines = agent.list_lines(known, [str(folders / "lab")])
    assert [
        "  1  ~/tf   tensorflow, torch  train.ipynb runs in it",
        "  2  ~/lab  no framework       kernel lab (saving is on)",
        "  3  ~/own  no framework       watchdog itself runs in it",
    ] == lines


def test_agent_status_names_the_kernels_of_each_environment(folders, capsys):
    """New kernels of an environment have the agent if it is on there."""
    assert 0 == main(["agent", "status"])
    assert f"off  {folders}/lab  (kernels: lab)\n" in capsys.readouterr().out


def test_the_environment_of_another_user_is_not_offered(folders):
    """The command runs the Python of the chosen environment."""
    assert [] == agent.own_tasks(_tasks(folders, user="eve"))
    assert 1 == len(agent.own_tasks(_tasks(folders)))


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("typed", "chosen"), [("1\n", "tf"), ("\n", None), ("9\n", None), ("x\n", None), ("", None)]
)
def test_a_person_chooses_by_number_and_nothing_is_changed_otherwise(
    folders, monkeypatch, typed, chosen
):
    """Enter alone chooses nothing."""
    monkeypatch.setattr(agent, "running_tasks", lambda: _tasks(folders))
    monkeypatch.setattr(sys, "stdin", _Terminal(typed))
    monkeypatch.setattr(sys, "stderr", _Terminal())
    if chosen is None:
        with pytest.raises(UsageError, match="Nothing was changed"):
            agent.ask([])
    else:
        assert str(folders / chosen) == agent.ask([])


def test_enable_without_a_terminal_lists_the_environments_and_changes_nothing(watchdog, tmp_path):
    """A script gets exit code 2 and the line to type."""
    home = tmp_path / "home"
    done = watchdog("agent", "enable", env={"HOME": str(home)}, input="1\n")
    assert (2, "") == (done.returncode, done.stdout)
    assert "--python" in done.stderr
    assert not home.exists()


def test_the_first_words_count_the_environments_in_which_saving_is_off(folders, unsaved):
    """The row leads to the command that changes it."""
    tasks = _tasks(folders)
    state, command = hello._saving_row(tasks)
    assert ("off in 3 environments", "watchdog agent enable") == (state, command)
