"""Files for the desktop: placed, started at login, and taken away without a trace."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog_app.desktop.install import Ledger
from watchdog_app.desktop.login import LoginStart, Way
from watchdog_app.desktop.placements import (
    APP_ID,
    DAEMON_UNIT,
    TRAY_UNIT,
    Placement,
    autostart_path,
    placements,
    quoted,
)
from watchdog_app.errors import WatchdogError

COMMAND = "/home/me/my tools/bin/watchdog"


@pytest.fixture
def env(tmp_path):
    """A user with an empty home."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "home/.local/state/watchdog/desktop.json"))


class Systemd:
    """`systemctl --user` of a machine: which words it answers with what."""

    def __init__(self, running=True, graphical=True):
        self.running, self.graphical = running, graphical
        self.enabled = set()
        self.asked = []

    def __call__(self, words):
        self.asked.append(list(words))
        if not self.running:
            return 1, "Failed to connect to bus: No medium found"
        match list(words):
            case ["is-system-running"]:
                return 1, "degraded"
            case ["is-active", _]:
                return (0, "active") if self.graphical else (3, "inactive")
            case ["is-enabled", unit]:
                return (0, "enabled") if unit in self.enabled else (1, "disabled")
            case ["enable", unit]:
                self.enabled.add(unit)
            case ["disable", unit]:
                self.enabled.discard(unit)
        return 0, ""


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_what_was_placed_goes_again_and_nothing_else(env, ledger, tmp_path):
    """Folders that were there stay; those that were made go with what lay in them."""
    home = tmp_path / "home"
    (home / ".config/autostart").mkdir(parents=True)
    (home / ".config/autostart/other.desktop").write_text("[Desktop Entry]\n")
    before = everything_below(home)

    placed = ledger.place(placements(env, COMMAND))
    LoginStart(env, COMMAND, ledger, Systemd(running=False)).enable()
    again = Ledger(str(home / ".local/state/watchdog/desktop.json"))
    gone = again.take_away()

    assert len(placed.written) > 10
    assert len(placed.written) + 2 == len(gone.removed)
    assert before == everything_below(home)


def test_a_crash_while_placing_leaves_nothing_that_cannot_be_taken_away(env, tmp_path):
    """A folder in the way stops it in the middle; what was written is known all the same."""
    state = str(tmp_path / "state/desktop.json")
    wanted = [
        Placement(str(tmp_path / "a/one"), b"1"),
        Placement(str(tmp_path / "file/two"), b"2"),
    ]
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(WatchdogError, match="uninstall-desktop"):
        Ledger(state).place(wanted)
    gone = Ledger(state).take_away()

    assert [str(tmp_path / "a/one")] == gone.removed
    assert {"file"} == everything_below(tmp_path)


def test_a_file_of_somebody_else_is_refused_and_one_changed_since_is_left(env, ledger, tmp_path):
    """Nothing of a user's is written over without being asked, nor removed."""
    foreign = tmp_path / "entry"
    foreign.write_text("mine")
    with pytest.raises(WatchdogError, match="not ours"):
        ledger.place([Placement(str(tmp_path / "first"), b"x"), Placement(str(foreign), b"ours")])
    assert not (tmp_path / "first").exists()

    ledger.place([Placement(str(foreign), b"ours")], force=True)
    foreign.write_text("mine again")
    gone = ledger.take_away()

    assert [str(foreign)] == gone.kept
    assert "mine again" == foreign.read_text()


def test_a_newer_version_takes_the_place_of_an_older(ledger, tmp_path):
    """What we wrote ourselves may be written over."""
    path = str(tmp_path / "unit")
    ledger.place([Placement(path, b"1")])

    report = ledger.place([Placement(path, b"2")])

    assert [path] == report.written
    assert b"2" == Path(path).read_bytes()


def test_a_damaged_ledger_is_said(tmp_path):
    """Not taken for an empty one: its files would stay for ever."""
    path = tmp_path / "desktop.json"
    path.write_text('{"files": [')

    with pytest.raises(WatchdogError, match="damaged"):
        Ledger(str(path))


@pytest.mark.parametrize(
    ("systemd", "daemon", "tray"),
    [
        (Systemd(), Way.UNIT, Way.UNIT),
        # XFCE: nothing pulls the companion's unit in.
        (Systemd(graphical=False), Way.UNIT, Way.AUTOSTART),
        (Systemd(running=False), Way.AUTOSTART, Way.AUTOSTART),
    ],
)
def test_each_is_started_at_login_in_one_way_only(env, ledger, systemd, daemon, tray):
    """By a unit where that works, else by an autostart entry; and off again."""
    ledger.place(placements(env, COMMAND))
    login = LoginStart(env, COMMAND, ledger, systemd)
    assert (None, None) == (login.way(DAEMON_UNIT), login.way(TRAY_UNIT))

    login.enable()

    assert (daemon, tray) == (login.way(DAEMON_UNIT), login.way(TRAY_UNIT))
    for unit, way in ((DAEMON_UNIT, daemon), (TRAY_UNIT, tray)):
        assert (way is Way.AUTOSTART) == os.path.exists(autostart_path(env, unit))
        assert (way is Way.UNIT) == (unit in systemd.enabled)
    login.disable()
    assert (None, None) == (login.way(DAEMON_UNIT), login.way(TRAY_UNIT))


def test_a_user_who_starts_by_unit_is_freed_of_an_older_autostart_entry(env, ledger):
    """Never both: a second daemon would refuse to start."""
    LoginStart(env, COMMAND, ledger, Systemd(running=False)).enable()
    ledger.place(placements(env, COMMAND))

    LoginStart(env, COMMAND, ledger, Systemd()).enable()

    assert not os.path.exists(autostart_path(env, TRAY_UNIT))
    assert not os.path.exists(autostart_path(env, DAEMON_UNIT))


def test_what_starts_at_login_names_the_program_in_full(env, tmp_path):
    """A session's PATH has no ~/.local/bin."""
    texts = [each for each in placements(env, COMMAND) if not each.path.endswith(".png")]
    found = {os.path.basename(each.path): each.content.decode() for each in texts}

    entry = configparser.RawConfigParser(interpolation=None)
    entry.read_string(found[f"{APP_ID}.desktop"])
    assert f'"{COMMAND}" tray' == entry["Desktop Entry"]["Exec"]
    assert f'\nExecStart="{COMMAND}" run\n' in found[DAEMON_UNIT]
    assert f'\nExecStart="{COMMAND}" tray\n' in found[TRAY_UNIT]


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/usr/bin/watchdog", "/usr/bin/watchdog"),
        ("/opt/100%/watchdog", "/opt/100%%/watchdog"),
        ("/a b/watchdog", '"/a b/watchdog"'),
        ('/a"b/watchdog', '"/a\\\\"b/watchdog"'),
        ("/a$b/watchdog", '"/a\\\\$b/watchdog"'),
    ],
)
def test_words_of_an_exec_line_are_quoted(word, written):
    """Desktop Entry Specification, the Exec key."""
    assert written == quoted(word)


def test_the_commands_place_and_take_away(tmp_path):
    """As a user types them, twice each."""
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "WATCHDOG_STATE_DIR"):
        env.pop(name, None)
    # Stands for a session without systemd's user manager, whatever this machine has.
    refuses = tmp_path / "systemctl"
    refuses.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    refuses.chmod(0o755)

    def watchdog(*words):
        return subprocess.run(
            [sys.executable, "-m", "watchdog_app", *words],
            env=env, capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    shown = watchdog("install-desktop", "--dry-run").splitlines()
    assert set() == everything_below(home)
    first = watchdog("install-desktop", "--login")
    placed = {str(p) for p in home.rglob("*") if p.is_file() and p.name != "desktop.json"}
    assert set(shown) < placed
    assert "autostart entry" in first
    assert "0 files placed" in watchdog("install-desktop")
    assert f"{len(placed)} files removed" in watchdog("uninstall-desktop")
    assert "Nothing was placed" in watchdog("uninstall-desktop")
    assert set() == everything_below(home)
