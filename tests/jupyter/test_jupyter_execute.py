"""Notebooks that a program runs from the command line: named by their path, as in a browser."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.finished import finished

pytest.importorskip("nbclient")
pytest.importorskip("nbconvert")

CELL = """
from watchdog_app.agent.found.folders import rescue_folder
open("place.txt", "w").write(" ".join(map(str, rescue_folder())))
"""


@pytest.mark.parametrize("way", ["jupyter-execute", "jupyter-execute-output", "nbconvert"])
def test_rescues_of_a_notebook_that_is_executed_lie_beside_it(tmp_path: Path, way: str):
    """A later run uses the same folder."""
    cell = {"cell_type": "code", "source": CELL, "metadata": {}, "outputs": []}
    notebook = {
        "cells": [{**cell, "execution_count": None}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    (tmp_path / "train.ipynb").write_text(json.dumps(notebook))
    execute = str(Path(sys.executable).with_name("jupyter-execute"))
    words = {
        "jupyter-execute": [execute, "train.ipynb"],
        "jupyter-execute-output": [execute, "--output=out.ipynb", "train.ipynb"],
        "nbconvert": ["-m", "nbconvert", "--to", "notebook", "--execute", "train.ipynb"],
    }

    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    finished([sys.executable, *words[way]], check=True, cwd=tmp_path, env=env, timeout=120)

    assert f"{tmp_path}/rescues/train.ipynb True" == (tmp_path / "place.txt").read_text()
