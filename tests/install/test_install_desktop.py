"""Files for the desktop: installed, started at login and removed completely."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.finished import finished

from watchdog_app.base.errors import UsageError, WatchdogError
from watchdog_app.install.desktop_files import (
    APP_ID,
    DAEMON_UNIT,
    TRAY_UNIT,
    autostart_path,
    desktop_files,
    quote_exec_word,
    share_root,
)
from watchdog_app.install.login import LoginMethod, LoginStart
from watchdog_app.install.placed_files import PlacedFiles

COMMAND = "/home/me/my tools/bin/watchdog"


@pytest.fixture
def env(tmp_path):
    """The environment of a user with an empty home folder."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def placed(tmp_path):
    return PlacedFiles(str(tmp_path / "home/.local/state/watchdog/desktop.json"))


class Systemd:
    """A fake `systemctl --user` with prepared answers per command."""

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


def test_what_was_placed_goes_again_and_nothing_else(env, placed, tmp_path):
    """Existing folders remain; the uninstall removes the folders that the install created."""
    home = tmp_path / "home"
    (home / ".config/autostart").mkdir(parents=True)
    (home / ".config/autostart/other.desktop").write_text("[Desktop Entry]\n")
    before = everything_below(home)

    report = placed.place(desktop_files(env, COMMAND))
    LoginStart(env, COMMAND, placed, Systemd(running=False)).enable()
    again = PlacedFiles(str(home / ".local/state/watchdog/desktop.json"))
    gone = again.remove()

    assert len(report.written) > 10
    assert len(report.written) + 2 == len(gone.removed)
    assert before == everything_below(home)


def test_a_crash_while_placing_leaves_nothing_that_cannot_be_taken_away(env, tmp_path):
    """A folder in the way stops the install midway. The list still names every written file."""
    state = str(tmp_path / "state/desktop.json")
    wanted = {str(tmp_path / "a/one"): b"1", str(tmp_path / "file/two"): b"2"}
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(WatchdogError, match="desktop remove"):
        PlacedFiles(state).place(wanted)
    gone = PlacedFiles(state).remove()

    assert [str(tmp_path / "a/one")] == gone.removed
    assert {"file"} == everything_below(tmp_path)


def test_a_file_of_somebody_else_is_refused_and_one_changed_since_is_left(env, placed, tmp_path):
    """The install neither overwrites nor removes a user's file without asking."""
    foreign = tmp_path / "entry"
    foreign.write_text("mine")
    with pytest.raises(WatchdogError, match=r"not ours.*\n?.*mv "):
        placed.place({str(tmp_path / "first"): b"x", str(foreign): b"ours"})
    assert not (tmp_path / "first").exists()
    assert "mine" == foreign.read_text()

    foreign.rename(tmp_path / "moved")
    placed.place({str(foreign): b"ours"})
    foreign.write_text("mine again")
    gone = placed.remove()

    assert [str(foreign)] == gone.kept
    assert "mine again" == foreign.read_text()


def test_what_was_left_is_named_again_until_it_is_gone(placed, tmp_path):
    """A second uninstall names it again, and removes it once the user restored it."""
    state = str(tmp_path / "again/desktop.json")
    path = tmp_path / "entry"
    PlacedFiles(state).place({str(path): b"ours"})
    path.write_text("changed")

    first, second = PlacedFiles(state).remove(), PlacedFiles(state).remove()
    left = PlacedFiles(state).changed_files()
    path.write_text("ours")
    third = PlacedFiles(state).remove()

    assert [str(path)] == first.kept == second.kept == list(left)
    assert [str(path)] == third.removed
    assert not path.exists()
    assert not (tmp_path / "again").exists()


def test_a_file_that_was_the_same_before_is_left_where_it_is(placed, tmp_path):
    """pipx links completions itself. The uninstall must not remove files that it did not write."""
    original, link = tmp_path / "original", tmp_path / "link"
    original.write_text("complete -F _watchdog watchdog")
    link.symlink_to(original)

    report = placed.place({str(link): original.read_bytes()})
    gone = placed.remove()

    assert ([str(link)], []) == (report.unchanged, gone.removed)
    assert link.is_symlink()


def test_a_file_of_ours_that_was_made_into_a_link_stays_its_users(placed, tmp_path):
    """
    The user moved the file to a dotfiles repository:

    an upgrade neither overwrites nor removes it.
    """
    place, kept = tmp_path / "unit", tmp_path / "repository"
    placed.place({str(place): b"1"})
    place.rename(kept)
    place.symlink_to(kept)

    with pytest.raises(WatchdogError, match="not ours"):
        placed.place({str(place): b"2"})
    gone = placed.remove()

    assert [str(place)] == gone.kept
    assert "1" == kept.read_text()
    assert place.is_symlink()


def test_folders_that_are_links_are_followed_and_stay(env, placed, tmp_path):
    """~/.config may be a link into a dotfiles repository."""
    home, kept = tmp_path / "home", tmp_path / "dotfiles/config"
    kept.mkdir(parents=True)
    home.mkdir()
    (home / ".config").symlink_to(kept)

    placed.place(desktop_files(env, COMMAND))
    assert (kept / "systemd/user" / DAEMON_UNIT).is_file()
    placed.remove()

    assert [] == list(kept.iterdir())
    assert (home / ".config").is_symlink()


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling"])
def test_what_is_no_plain_file_is_in_the_way(kind, placed, tmp_path):
    """The install never reads such a file, which could block, and never overwrites it."""
    path = tmp_path / "entry"
    {
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "dangling": lambda: path.symlink_to(tmp_path / "nothing"),
    }[kind]()

    with pytest.raises(WatchdogError, match="not ours"):
        placed.place({str(path): b"ours"})


def test_a_folder_that_leads_nowhere_is_named(env, placed, tmp_path):
    """~/.config may be on an unmounted disk. The install leaves no stray files."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".config").symlink_to("/not/mounted")

    with pytest.raises(WatchdogError, match=r"\.config.* could not be written"):
        placed.place(desktop_files(env, COMMAND))
    placed.remove()

    assert {".config"} == everything_below(home)


def test_where_nothing_can_be_written_nothing_is_left(env, tmp_path):
    """The list's folder cannot be created, so the install writes neither a file nor a folder."""
    (tmp_path / "state").write_text("no folder")
    home = tmp_path / "home"

    with pytest.raises(WatchdogError, match="could not be written"):
        PlacedFiles(str(tmp_path / "state/desktop.json")).place(desktop_files(env, COMMAND))

    assert not home.exists()


@pytest.mark.parametrize("folder", ["data", "./data", "~/data", ""])
def test_a_relative_xdg_folder_is_ignored(folder, tmp_path):
    """
    The XDG specification requires it; otherwise the result would depend on the current folder.
    """
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}

    places = desktop_files(env, COMMAND)

    inside = (f"{tmp_path}/.local/share/", f"{tmp_path}/.config/")
    assert all(path.startswith(inside) for path in places)


def test_without_home_the_accounts_is_taken():
    """The fallback is never the root of the file system."""
    import pwd

    home = pwd.getpwuid(os.getuid()).pw_dir

    assert all(each.startswith(home) for each in desktop_files({"HOME": ""}, COMMAND))


def test_files_that_are_installed_for_everybody_are_not_placed_again(tmp_path):
    """The .deb installed these files; a copy would give two menu entries of one name."""
    env = {"HOME": str(tmp_path), "XDG_DATA_DIRS": f"/usr/share:{share_root()}/"}

    assert {} == desktop_files(env, COMMAND)


def test_a_newer_version_takes_the_place_of_an_older(placed, tmp_path):
    """The install may overwrite its own files."""
    path = str(tmp_path / "unit")
    placed.place({path: b"1"})

    report = placed.place({path: b"2"})

    assert [path] == report.written
    assert b"2" == Path(path).read_bytes()


def test_a_damaged_ledger_is_said(tmp_path):
    """An empty list would leave its files behind forever."""
    path = tmp_path / "desktop.json"
    path.write_text('{"files": [')

    with pytest.raises(WatchdogError, match="damaged"):
        PlacedFiles(str(path))


@pytest.mark.parametrize(
    ("systemd", "daemon", "tray"),
    [
        (Systemd(), LoginMethod.UNIT, LoginMethod.UNIT),
        # On XFCE no target starts the companion's unit.
        (Systemd(graphical=False), LoginMethod.UNIT, LoginMethod.AUTOSTART),
        (Systemd(running=False), LoginMethod.AUTOSTART, LoginMethod.AUTOSTART),
    ],
)
def test_each_is_started_at_login_in_one_way_only(env, placed, systemd, daemon, tray):
    """
    A systemd unit starts it, or an autostart entry if units do not work; disabling removes it.
    """
    placed.place(desktop_files(env, COMMAND))
    login = LoginStart(env, COMMAND, placed, systemd)
    assert (None, None) == (login.method(DAEMON_UNIT), login.method(TRAY_UNIT))

    login.enable()

    assert (daemon, tray) == (login.method(DAEMON_UNIT), login.method(TRAY_UNIT))
    for unit, way in ((DAEMON_UNIT, daemon), (TRAY_UNIT, tray)):
        assert (way is LoginMethod.AUTOSTART) == os.path.exists(autostart_path(env, unit))
        assert (way is LoginMethod.UNIT) == (unit in systemd.enabled)
    login.disable()
    assert (None, None) == (login.method(DAEMON_UNIT), login.method(TRAY_UNIT))


def test_an_enabled_unit_of_ours_leaves_no_link_behind(env, placed):
    """The user enabled it after `desktop install`. Removing the file must also disable the unit."""
    systemd = Systemd()
    placed.place(desktop_files(env, COMMAND))
    systemd.enabled.add(TRAY_UNIT)

    LoginStart(env, COMMAND, placed, systemd).disable()

    assert set() == systemd.enabled


def test_moving_to_a_desktop_without_systemd_ends_the_unit(env, placed):
    """From GNOME to XFCE: the entry starts the companion, and the unit no longer does."""
    systemd = Systemd()
    placed.place(desktop_files(env, COMMAND))
    login = LoginStart(env, COMMAND, placed, systemd)
    login.enable()

    systemd.graphical = False
    login.enable()

    assert {DAEMON_UNIT} == systemd.enabled
    assert LoginMethod.AUTOSTART is login.method(TRAY_UNIT)


@pytest.mark.parametrize("line", ["Hidden=true", "X-GNOME-Autostart-enabled=false"])
def test_an_entry_that_the_desktops_settings_switched_off_counts_as_off(env, placed, line):
    """The switch "Start at login" can enable it, disable it and remove it again."""
    login = LoginStart(env, COMMAND, placed, Systemd(running=False))
    login.enable([TRAY_UNIT])
    entry = Path(autostart_path(env, TRAY_UNIT))
    entry.write_text(entry.read_text() + line + "\n")

    assert login.method() is None
    login.enable([TRAY_UNIT])
    assert LoginMethod.AUTOSTART is login.method()
    entry.write_text(entry.read_text() + "X-MATE-Autostart-Delay=5\n")
    login.disable([TRAY_UNIT])

    assert not entry.exists()


def test_somebody_elses_entry_is_named_where_it_starts_us_as_well(env, placed):
    """Disabling watchdog's own entry would not stop the user's copy, so the message names it."""
    entry = Path(autostart_path(env, TRAY_UNIT))
    entry.parent.mkdir(parents=True)
    entry.write_text("[Desktop Entry]\nExec=watchdog tray\n")
    login = LoginStart(env, COMMAND, placed, Systemd(running=False))

    with pytest.raises(WatchdogError, match="not placed by watchdog"):
        login.disable([TRAY_UNIT])

    assert entry.exists()


def test_an_entry_follows_the_program_when_it_moves(env, placed):
    """After a move from pip to pipx the old path would not start."""
    LoginStart(env, COMMAND, placed, Systemd(running=False)).enable([TRAY_UNIT])

    LoginStart(env, "/new/watchdog", placed, Systemd(running=False)).update_entries()

    assert "Exec=/new/watchdog tray\n" in Path(autostart_path(env, TRAY_UNIT)).read_text()
    assert not os.path.exists(autostart_path(env, DAEMON_UNIT))


def test_a_user_who_starts_by_unit_is_freed_of_an_older_autostart_entry(env, placed):
    """Two starts would make the second daemon fail."""
    LoginStart(env, COMMAND, placed, Systemd(running=False)).enable()
    placed.place(desktop_files(env, COMMAND))

    LoginStart(env, COMMAND, placed, Systemd()).enable()

    assert not os.path.exists(autostart_path(env, TRAY_UNIT))
    assert not os.path.exists(autostart_path(env, DAEMON_UNIT))


def test_what_starts_at_login_names_the_program_in_full(env, tmp_path):
    """A session's PATH lacks ~/.local/bin."""
    files = desktop_files(env, COMMAND).items()
    found = {os.path.basename(path): text.decode() for path, text in files if ".png" not in path}

    entry = configparser.RawConfigParser(interpolation=None)
    entry.read_string(found[f"{APP_ID}.desktop"])
    assert f'"{COMMAND}" tray' == entry["Desktop Entry"]["Exec"]
    assert f'\nExecStart="{COMMAND}" run\n' in found[DAEMON_UNIT]
    assert f'\nExecStart="{COMMAND}" tray\n' in found[TRAY_UNIT]


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/usr/bin/watchdog", "/usr/bin/watchdog"),
        ("/a b/watchdog", '"/a b/watchdog"'),
        ("/a&b/watchdog", '"/a&b/watchdog"'),
    ],
)
def test_words_of_an_exec_line_are_quoted(word, written):
    """The test follows the Desktop Entry Specification, the Exec key."""
    assert written == quote_exec_word(word)


@pytest.mark.parametrize("folder", ["plain", "a b", "ä→ö", "a&(b)", "~"])
def test_systemd_finds_the_program_in_any_folder(folder, tmp_path):
    """systemd-analyze reads the unit, and the named program exists and runs."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: run packaging/setup.sh test")
    program = tmp_path / folder / "watchdog"
    program.parent.mkdir()
    program.symlink_to("/bin/true")
    files = desktop_files({"HOME": str(tmp_path)}, str(program))
    (unit,) = (text for path, text in files.items() if path.endswith(DAEMON_UNIT))
    (tmp_path / DAEMON_UNIT).write_bytes(unit)

    done = finished(
        ["systemd-analyze", "verify", "--user", "--man=no", str(tmp_path / DAEMON_UNIT)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )

    assert (0, []) == (
        done.returncode,
        [line for line in done.stderr.splitlines() if DAEMON_UNIT in line],
    )


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/home/me/.cache/uv/archive/bin/watchdog", "uv tool install"),
        ("/var/tmp/cache of mine/bin/watchdog", "uv tool install"),
        ("/home/me/new\nline/watchdog", "characters"),
        ("/home/me/\udcff/watchdog", "characters"),
        ("/home/me/100%/watchdog", "characters"),
        ("/home/me/a$b/watchdog", "characters"),
        ("/home/me/a'b/watchdog", "characters"),
    ],
)
def test_a_program_that_login_could_not_start_is_refused(path, said, monkeypatch):
    """Examples are a program in a cache folder, and a name that an entry cannot hold."""
    from watchdog_app.cli.desktop import check_program_path

    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/cache of mine")

    with pytest.raises(UsageError, match=said):
        check_program_path(path)
    assert "/home/me/.local/bin/watchdog" == check_program_path("/home/me/.local/bin/watchdog")


def test_root_of_sudo_is_sent_back_to_the_user(tmp_path):
    """The user could not remove root's files from the home folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can be root")
    env = {**os.environ, "HOME": str(tmp_path), "SUDO_UID": "1000"}

    done = finished([sys.executable, "-m", "watchdog_app", "desktop", "install"], env=env)

    assert (2, set()) == (done.returncode, everything_below(tmp_path))
    assert "without sudo" in done.stderr


def test_the_commands_place_and_take_away(tmp_path):
    """The test runs each command twice, as a user types it."""
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "HOME": str(home), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "WATCHDOG_STATE_DIR"):
        env.pop(name, None)
    # Simulates a session without systemd's user manager, on any machine.
    refuses = tmp_path / "systemctl"
    refuses.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    refuses.chmod(0o755)

    def watchdog(*words):
        return finished([sys.executable, "-m", "watchdog_app", *words], env=env, check=True).stdout

    shown = watchdog("desktop", "install", "--dry-run").splitlines()
    assert set() == everything_below(home)
    assert "Nothing is placed" in watchdog("desktop")
    first = watchdog("desktop", "install", "--login")
    placed = {str(p) for p in home.rglob("*") if p.is_file() and p.name != "desktop.json"}
    assert set(shown) < placed
    assert "autostart entry" in first
    assert "a login by ssh does not" in first
    env["SHELL"] = "/usr/bin/zsh"  # zsh does not search a home folder by default
    again = watchdog("desktop", "install")
    assert "0 files placed" in again
    assert "--login" not in again
    assert "at every login, as before" in again
    assert f"fpath+=({home}/.local/share/zsh/site-functions)" in again
    shown = json.loads(watchdog("desktop", "status", "--json"))
    assert placed == set(shown["placed"])
    assert {"autostart entry"} == set(shown["login"].values())
    assert f"{len(placed)} files removed" in watchdog("desktop", "remove")
    assert "Nothing was placed" in watchdog("desktop", "remove")
    assert set() == everything_below(home)
