"""Notebooks that are renamed: found by the file itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchdog_app.machine.sensors.notebook_files import NotebookFiles


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """One that is open, with others beside it."""
    for name in ("train.ipynb", "other.ipynb", "train.py"):
        (tmp_path / name).write_text(name)
    return tmp_path / "train.ipynb"


def test_renamed_notebook_is_found_in_its_folder(notebook: Path):
    """Said once, and followed under its new name from then on."""
    files = NotebookFiles()
    assert {} == files.follow({str(notebook)})
    new = notebook.with_name("final \n\x1b.ipynb")

    notebook.rename(new)

    assert {str(notebook): str(new)} == files.follow({str(notebook)})
    assert {} == files.follow({str(notebook)})
    assert {} == files.follow({str(new)})


def test_deleted_notebook_is_nowhere(notebook: Path):
    """Also where another one has taken its number on the disk."""
    files = NotebookFiles()
    files.follow({str(notebook)})

    notebook.unlink()
    notebook.with_name("new.ipynb").write_text("another")

    assert {str(notebook): None} == files.follow({str(notebook)})


def test_notebook_that_is_written_anew_is_where_it_was(notebook: Path):
    """Some programs save by replacing the file."""
    files = NotebookFiles()
    files.follow({str(notebook)})
    fresh = notebook.with_name("fresh")
    fresh.write_text("more")

    os.replace(fresh, notebook)
    saved = files.follow({str(notebook)})
    notebook.rename(notebook.with_name("later.ipynb"))

    assert {} == saved
    assert {str(notebook): str(notebook.with_name("later.ipynb"))} == files.follow({str(notebook)})


def test_copy_under_another_suffix_is_no_notebook(notebook: Path):
    """`mv train.ipynb train.bak` is no rename that a user means to work on."""
    files = NotebookFiles()
    files.follow({str(notebook)})

    notebook.rename(notebook.with_name("train.bak"))

    assert {str(notebook): None} == files.follow({str(notebook)})


def test_what_never_was_a_file_is_not_gone(tmp_path: Path):
    """A session whose path is a console's, or of a server elsewhere."""
    assert {} == NotebookFiles().follow({str(tmp_path / "never.ipynb"), "relative.ipynb"})


def test_folder_that_is_gone_is_no_error(notebook: Path):
    """The whole project was moved."""
    files = NotebookFiles()
    files.follow({str(notebook)})

    notebook.parent.rename(notebook.parent.with_name("moved"))

    assert {str(notebook): None} == files.follow({str(notebook)})


def test_name_that_no_file_can_bear_is_nowhere():
    """And the thread that looks lives on."""
    assert {} == NotebookFiles().follow(["/a\0b.ipynb", "/\ud800.ipynb"])
