"""The files in packaging/linux, each checked by the program that reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARE = ROOT / "packaging/linux/share"
ID = "org.watchdog_app.watchdog"
UNITS = ("watchdog.service", "watchdog-tray.service")


def run(*argv, **options):
    """Run a program that setup.sh installs; it must exist."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed: run packaging/setup.sh test")
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, **options)


def test_the_menu_entry_is_valid():
    """desktop-file-validate reports nothing."""
    done = run("desktop-file-validate", str(SHARE / f"applications/{ID}.desktop"))

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_the_metainfo_is_valid():
    """appstreamcli runs with its strictest options."""
    path = SHARE / f"metainfo/{ID}.metainfo.xml"

    done = run("appstreamcli", "validate", "--no-net", "--pedantic", str(path))

    assert 0 == done.returncode, done.stdout
    assert "issue" not in done.stdout.lower()


@pytest.mark.parametrize("unit", UNITS)
def test_the_units_are_valid(tmp_path, unit):
    """systemd itself reads them and prints no warning."""
    (tmp_path / unit).write_text((SHARE / "systemd/user" / unit).read_text())
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    done = run("systemd-analyze", "verify", "--user", "--man=no", str(tmp_path / unit), env=env)

    said = [line for line in done.stderr.splitlines() if unit in line]
    assert (0, []) == (done.returncode, said), done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_the_units_make_no_namespace(unit):
    """In a namespace a user service may not read the processes of its own user."""
    text = (SHARE / "systemd/user" / unit).read_text()

    namespaces = re.findall(
        r"(?m)^(PrivateUsers|PrivateTmp|PrivateDevices|ProtectSystem|ProtectHome|ProtectProc|"
        r"ProtectKernel\w+|ReadOnlyPaths|InaccessiblePaths|CapabilityBoundingSet)=",
        text,
    )

    assert [] == namespaces


@pytest.mark.parametrize("size", [16, 22, 24, 32, 48, 64, 128, 256])
def test_icons_are_there_in_every_size(size):
    """Each icon is a square PNG with transparent corners."""
    from PIL import Image

    path = SHARE / f"icons/hicolor/{size}x{size}/apps/{ID}.png"

    with Image.open(path) as icon:
        assert ((size, size), "RGBA") == (icon.size, icon.mode)
        assert 0 == icon.getpixel((0, 0))[3]


def test_one_name_for_entry_metainfo_and_icon():
    """Desktops find one file by the name of the other."""
    entry = (SHARE / f"applications/{ID}.desktop").read_text()
    metainfo = (SHARE / f"metainfo/{ID}.metainfo.xml").read_text()

    assert f"Icon={ID}" in entry
    assert f"<id>{ID}</id>" in metainfo
    assert f'<launchable type="desktop-id">{ID}.desktop</launchable>' in metainfo


def test_one_version_everywhere():
    """Package, .deb changelog and newest metainfo release have the same version."""
    from watchdog_app import __version__

    changelog = (ROOT / "packaging/linux/debian/changelog").read_text()
    metainfo = (SHARE / f"metainfo/{ID}.metainfo.xml").read_text()

    assert changelog.startswith(f"watchdog-app ({__version__})")
    assert __version__ == re.search(r'<release version="([^"]+)"', metainfo)[1]


def test_the_man_page_has_no_faults():
    """groff prints no warning, if it is installed."""
    done = run("man", "--warnings", "-l", "-Tutf8", "-Z", str(SHARE / "man/man1/watchdog.1"))

    assert (0, "") == (done.returncode, done.stderr)


def test_every_command_that_an_entry_names_exists():
    """An entry that starts nothing is worse than a missing entry."""
    from watchdog_app.cli.dispatch import COMMANDS

    texts = [path.read_text() for path in SHARE.rglob("*.desktop")]
    texts += [path.read_text() for path in SHARE.rglob("*.service")]
    words = re.findall(r"(?m)^Exec(?:Start)?=(?:/usr/bin/env )?watchdog (\S+)", "\n".join(texts))

    assert words
    assert set(words) <= set(COMMANDS)


def test_the_wheel_carries_these_files():
    """hatchling puts them below PREFIX, what JupyterLab and its server look for too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]

    jupyter = {
        "labextension": "share/jupyter/labextensions/watchdog-app",
        "watchdog.json": "etc/jupyter/jupyter_server_config.d/watchdog.json",
    }
    jupyter = {f"packaging/jupyterlab/{path}": place for path, place in jupyter.items()}
    assert {"packaging/linux/share": "share", **jupyter} == shared
    assert all((ROOT / path).exists() for path in shared)
