"""The pages for JupyterLab in the repository are what their TypeScript says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.finished import finished

SOURCE = Path(__file__).resolve().parents[2] / "packaging" / "jupyterlab"
BUNDLE = "labextension"
MOST_BYTES = 60_000


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_the_built_pages_are_those_of_the_sources_byte_for_byte(tmp_path: Path):
    """Built again in another folder, from nothing but the sources and the exact versions."""
    builder = Path(sys.executable).with_name("jupyter-builder")
    if shutil.which("npm") is None or not builder.exists():
        pytest.skip("needs npm and jupyter-builder")
    built = tmp_path / "built"
    shutil.copytree(SOURCE, built, ignore=shutil.ignore_patterns(BUNDLE))
    fetched = finished(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=built)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch the packages: {fetched.stderr[-300:]}")
    path = f"{builder.parent}{os.pathsep}{os.environ['PATH']}"

    finished(["npm", "run", "build"], cwd=built, env={**os.environ, "PATH": path}, check=True)

    assert content(SOURCE / BUNDLE) == content(built / BUNDLE)


def test_the_built_pages_are_small_and_bring_no_framework():
    files = content(SOURCE / BUNDLE)

    assert sum(map(len, files.values())) < MOST_BYTES
    told = json.loads(files["static/third-party-licenses.json"])
    assert ["css-loader", "style-loader"] == [each["name"] for each in told["packages"]]


def test_the_built_pages_may_load_in_every_jupyterlab_4():
    """JupyterLab refuses an extension whose ranges exclude its own packages."""
    about = json.loads((SOURCE / BUNDLE / "package.json").read_text())

    assert "^4.0.0" == about["dependencies"]["@jupyterlab/application"]
    assert (SOURCE / BUNDLE / about["jupyterlab"]["_build"]["load"]).exists()
    assert not [one for one in about["dependencies"].values() if not one.startswith("^")]
