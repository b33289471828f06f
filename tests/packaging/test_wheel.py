"""Wheel and source distribution: their contents, and an installation by pipx."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = (
    "doctor/findings.toml",
    "doctor/versions.toml",
    "doctor/probe.py",
    "demo/train.py",
    "py.typed",
)

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


def run(*argv, status=0, **options):
    """Return a program's output; raise with the output if it fails."""
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert status == done.returncode, f"{argv}\n{done.stdout[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with both; the wheel is built from the source distribution, as installers do."""
    folder = tmp_path_factory.mktemp("dist")
    # No download: the build backend of this environment builds them.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (found,) = built.glob("watchdog_app-*.whl")
    return found


@pytest.fixture(scope="module")
def user(wheel):
    """A home folder with only pipx's installation of the wheel."""
    # Not in /tmp: other users must not be able to write to a program that starts at login.
    home = Path(tempfile.mkdtemp(prefix="home of a user ", dir=Path.home()))
    kept = ("LANG", "PATH", "PIP_CONFIG_FILE", "SSL_CERT_FILE")
    env = {
        **{
            key: value for key, value in os.environ.items() if key in kept or "PROXY" in key.upper()
        },
        **{key: value for key, value in os.environ.items() if key.startswith("PIP_")},
        "HOME": str(home),
        "PIPX_HOME": str(home / "pipx"),
        "PIPX_BIN_DIR": str(home / "bin"),
        "PIPX_MAN_DIR": str(home / "man"),
        "USE_EMOJI": "0",
        "WATCHDOG_RUNTIME_DIR": str(home / "run"),
    }
    pipx = [sys.executable, "-m", "pipx"]
    run(*pipx, "install", "--python", sys.executable, str(wheel), env=env)
    yield env
    shutil.rmtree(home)


def test_the_wheel_has_every_module_and_what_they_read(wheel):
    """The wheel has each file of the package and no build leftovers."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    package = {name for name in names if name.startswith("watchdog_app/")}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "watchdog_app").rglob("*.py")}
    assert here | {f"watchdog_app/{name}" for name in DATA} == package


def test_the_wheel_has_the_files_for_the_desktop(wheel):
    """`desktop install` looks for them below PREFIX/share."""
    share = ROOT / "packaging/linux/share"
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".data/data/share/")[2] for name in archive.namelist()}

    here = {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()}
    bundle = ROOT / "packaging/jupyterlab/labextension"
    for path in bundle.rglob("*.*"):
        here.add(f"jupyter/labextensions/watchdog-app/{path.relative_to(bundle)}")
    assert here == names - {""}


def test_the_source_distribution_has_everything_to_test_and_to_package(built):
    """It holds tests, documents and packaging, so no repository is needed."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}

    here = set()
    for folder in ("watchdog_app", "tests", "docs", "packaging", "examples", "bench"):
        here |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        here |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.md")}
    assert set() == here - names
    assert {"Makefile", "pyproject.toml", "README.md", "LICENSE", "packaging/setup.sh"} <= names
    assert {"packaging/linux/debian/rules", "packaging/pyinstaller/watchdog.spec"} <= names
    assert [] == [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_pipx_makes_a_working_watchdog_of_the_wheel(user, tmp_path):
    """A user without another watchdog runs version, daemon, status and doctor."""
    watchdog = f"{user['HOME']}/bin/watchdog"
    env = {**user, "PATH": "/usr/bin:/bin"}

    assert run(watchdog, "--version", env=env).startswith("watchdog ")
    assert "not running" in run(watchdog, "status", status=3, env=env)
    assert "--python" in run(watchdog, "doctor", "--help", env=env)
    assert '"findings"' in run(
        watchdog, "doctor", "--only", "storage", "--json", env=env, cwd=tmp_path
    )
    assert "Started (PID " in run(watchdog, "start", env=env)
    try:
        assert '"schema_version"' in run(watchdog, "status", "--json", env=env)
    finally:
        run(watchdog, "stop", env=env)
    assert (Path(user["HOME"]) / "man/man1/watchdog.1").is_file()


def test_install_desktop_finds_the_files_in_the_environment_of_pipx(user):
    """The files name the program of pipx, and the uninstall removes all of them."""
    home = Path(user["HOME"])
    watchdog = str(home / "bin/watchdog")
    before = {path for path in home.rglob("*") if "pipx" not in path.parts}

    shown = run(watchdog, "desktop", "install", "--dry-run", env=user).splitlines()
    assert before == {path for path in home.rglob("*") if "pipx" not in path.parts}
    run(watchdog, "desktop", "install", env=user)
    unit = (home / ".config/systemd/user/watchdog.service").read_text()
    missing = [path for path in shown if not os.path.isfile(path)]
    run(watchdog, "desktop", "remove", env=user)

    assert [] == missing
    assert f'ExecStart="{watchdog}" run' in unit
    assert before == {path for path in home.rglob("*") if "pipx" not in path.parts}
