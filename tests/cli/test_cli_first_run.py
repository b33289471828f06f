"""On the first day people learn that a training cannot be saved yet, and what to type."""

from __future__ import annotations

import time

import pytest
from support import statuses

from watchdog_app.cli import start

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
            "Of these, 2 train and cannot be saved yet: "
            "train.ipynb (watchdog agent enable --python /opt/venvs/tf), "
            "train.py (watchdog exec -- python train.py)."
        ),
    ] == start._watched_lines()


def test_start_says_nothing_where_nothing_trains(daemon):
    """A sentence about saving would be noise."""
    daemon.answers["status"] = statuses.status()
    assert ["It watches 1 Python task. See them: watchdog status"] == start._watched_lines()


def test_status_shows_the_paragraph_until_it_is_switched_off(unsaved, watchdog, own_folders):
    """The column and the headline stay; a mistake in the configuration does not hide the status."""
    shown = watchdog("status", env={"COLUMNS": "100"}).stdout
    assert "2 trainings cannot be saved." in shown
    assert "watchdog exec -- python train.py" in shown
    assert "cannot" in next(line for line in shown.splitlines() if "4711" in line)

    (own_folders / "config.toml").write_text("[hints]\nsaving = false\n")
    shown = watchdog("status", env={"COLUMNS": "100"}).stdout
    assert "2 trainings cannot be saved." in shown
    assert "watchdog exec" not in shown

    (own_folders / "config.toml").write_text("[hints]\nsaving = 'maybe'\n")
    assert "watchdog exec" in watchdog("status").stdout
