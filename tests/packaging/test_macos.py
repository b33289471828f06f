"""The files in packaging/macos, as far as Linux can check them."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import sys
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.cli.dispatch import COMMANDS

ROOT = Path(__file__).parents[2]
MACOS = ROOT / "packaging/macos"
LABELS = ("org.watchdog_app.watchdog.daemon", "org.watchdog_app.watchdog.tray")
# Replaces Apple's plutil, which edits a property list in place.
PLUTIL = """#!{python}
import plistlib, sys
command, key, kind, value, path = sys.argv[1:]
assert (command, kind) == ("-replace", "-string")
with open(path, "rb") as file:
    whole = plistlib.load(file)
name, _, number = key.partition(".")
whole[name][int(number)] = value
with open(path, "wb") as file:
    plistlib.dump(whole, file)
"""


@pytest.mark.parametrize("label", LABELS)
def test_the_launch_agents_start_commands_that_exist(label):
    """The test parses them as macOS does; the label equals the file name."""
    found = plistlib.loads((MACOS / f"{label}.plist").read_bytes())

    assert label == found["Label"]
    assert found["RunAtLoad"] is True
    assert {"SuccessfulExit": False} == found["KeepAlive"]
    assert found["ProgramArguments"][0].endswith("/Watchdog.app/Contents/MacOS/watchdog")
    assert found["ProgramArguments"][1] in COMMANDS


@pytest.fixture
def mac(tmp_path):
    """Run login.sh for a user whose plutil and launchctl record their arguments."""
    tools, home = tmp_path / "tools", tmp_path / "home of a user"
    tools.mkdir()
    home.mkdir()
    (tools / "plutil").write_text(PLUTIL.format(python=sys.executable))
    (tools / "launchctl").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def login(*words, status=0):
        done = finished(
            [str(MACOS / "login.sh"), *words],
            env={
                "HOME": str(home),
                "PATH": f"{tools}:/usr/bin:/bin",
                "WATCHDOG_LOGIN_AS_ROOT": "1",
            },
        )
        assert status == done.returncode, done.stderr
        asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
        return asked, done.stdout + done.stderr

    login.agents = home / "Library/LaunchAgents"
    return login


def test_login_places_both_agents_with_the_path_of_the_program_and_removes_them(mac, tmp_path):
    """The path has a space and an ampersand; a second run works as after an update."""
    program = tmp_path / "R & D/watchdog"
    program.parent.mkdir()
    program.symlink_to("/bin/true")

    mac("on", str(program))
    asked, _ = mac("on", str(program))
    placed = {path.stem: plistlib.loads(path.read_bytes()) for path in mac.agents.iterdir()}
    mac("off")

    assert set(LABELS) == set(placed)
    assert {str(program)} == {each["ProgramArguments"][0] for each in placed.values()}
    assert 4 == len(re.findall(rf"(?m)^bootstrap gui/{os.getuid()} /.*\.plist$", asked))
    assert [] == list(mac.agents.iterdir())


@pytest.mark.parametrize("words", [(), ("maybe",), ("on", "/nowhere/watchdog"), ("on",)])
def test_login_says_what_is_wrong_and_places_nothing(mac, words):
    """The argument is missing or wrong, or the program is missing."""
    asked, said = mac(*words, status=1)

    assert "login.sh:" in said
    assert ("", False) == (asked, mac.agents.exists())


@pytest.mark.parametrize("path", ["macos/login.sh", "pyinstaller/build.sh", "linux/build-deb.sh"])
def test_shell_scripts_are_whole(path):
    """The strictest available shell parses them."""
    done = finished([shutil.which("dash") or "sh", "-n", str(ROOT / "packaging" / path)])

    assert (0, "") == (done.returncode, done.stderr)
