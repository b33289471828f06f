"""
The files of a desktop installation and their paths: values only, this module writes nothing.

The source tree has the files in packaging/linux/share. A wheel has them in its data folder, so that
pip installs them in PREFIX/share.
"""

from __future__ import annotations

import os
import pwd
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping

from watchdog_app.base.errors import WatchdogError

APP_ID = "org.watchdog_app.watchdog"
DAEMON_UNIT = "watchdog.service"
TRAY_UNIT = "watchdog-tray.service"

# Folders below share/ that are copied into the user's data folder, XDG_DATA_HOME.
_DATA_FOLDERS = ("applications", "metainfo", "icons", "man", "bash-completion", "fish", "zsh")
_UNITS = "systemd/user"
_EXEC = re.compile(r"^(Exec|ExecStart)=(?:/usr/bin/env )?watchdog\b", re.MULTILINE)


def desktop_files(env: Mapping[str, str], command: str) -> dict[str, bytes]:
    """
    Return every file for the user with this environment, by path.

    Args:
        env: environment of the user.
        command: absolute path of the `watchdog` program. A session's PATH rarely has the folders of
            pip, pipx and uv, so entries that start it at login need the full path.

    Returns:
        Contents by path; empty if the installation's own files already serve every user.

    Raises:
        WatchdogError: this installation lacks the files.
    """
    root = share_root()
    if root in _system_data_folders(env):
        return {}
    data, config = data_home(env), config_home(env)
    found: dict[str, bytes] = {}
    for folder in _DATA_FOLDERS:
        for relative, content in _read_files(os.path.join(root, folder)):
            where = os.path.join(data, folder, relative)
            found[where] = _insert_command(relative, content, command)
    for relative, content in _read_files(os.path.join(root, _UNITS)):
        where = os.path.join(config, _UNITS, relative)
        found[where] = _insert_command(relative, content, command)
    return found


def share_root() -> str:
    """
    Return the folder with our files, in the source tree or in the installation.

    Raises:
        WatchdogError: no folder with our files was found.
    """
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    candidates = [
        os.path.join(here, "packaging", "linux", "share"),
        os.path.join(sys.prefix, "share"),
        os.path.join(sysconfig.get_path("data"), "share"),
        os.path.join(site.USER_BASE or "", "share"),
        os.path.join(getattr(sys, "_MEIPASS", ""), "share"),  # a bundle made by PyInstaller
        "/usr/share",
    ]
    for candidate in candidates:
        if os.path.isfile(os.path.join(candidate, "applications", f"{APP_ID}.desktop")):
            return candidate
    raise WatchdogError(
        "The files for the desktop are not part of this installation: looked in "
        f"{', '.join(filter(None, candidates))}. Install watchdog again, from its wheel: "
        "pip install --force-reinstall watchdog-app"
    )


def autostart_entry(command: str, unit: str) -> bytes:
    """Return the autostart entry that starts the daemon or the tray at login without systemd."""
    tray = unit == TRAY_UNIT
    lines = (
        "[Desktop Entry]",
        "Type=Application",
        f"Name={'Watchdog' if tray else 'Watchdog daemon'}",
        "Comment=See a training run out of memory coming, and save its work in time",
        f"Exec={quote_exec_word(command)} {'tray' if tray else 'start'}",
        f"Icon={APP_ID}",
        "Terminal=false",
        "StartupNotify=false",
        "NoDisplay=true",
        "X-GNOME-Autostart-enabled=true",
    )
    return ("\n".join(lines) + "\n").encode()


def autostart_path(env: Mapping[str, str], unit: str) -> str:
    """Return the path of a unit's autostart entry."""
    name = f"{APP_ID}.desktop" if unit == TRAY_UNIT else f"{APP_ID}.daemon.desktop"
    return os.path.join(config_home(env), "autostart", name)


def unit_path(env: Mapping[str, str], unit: str) -> str:
    """Return the path of a unit in the user's own folder."""
    return os.path.join(config_home(env), _UNITS, unit)


def data_home(env: Mapping[str, str]) -> str:
    """Return XDG_DATA_HOME; ignore a relative path, as the specification requires."""
    return _xdg_folder(env, "XDG_DATA_HOME", ".local/share")


def config_home(env: Mapping[str, str]) -> str:
    """Return XDG_CONFIG_HOME; ignore a relative path."""
    return _xdg_folder(env, "XDG_CONFIG_HOME", ".config")


def quote_exec_word(word: str) -> str:
    """
    Quote a path for an Exec line of a menu entry or an ExecStart line of a unit.

    Source: Desktop Entry Specification 1.5, the Exec key. The caller refuses paths with characters
    that one of them would have to escape (`check_program_path`).
    """
    return f'"{word}"' if re.search(r"[\s><~|&*?#()]", word) else word


def _xdg_folder(env: Mapping[str, str], name: str, default: str) -> str:
    base = env.get(name, "")
    if os.path.isabs(base):
        return base
    home = env.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return os.path.abspath(os.path.join(home, default))


def _system_data_folders(env: Mapping[str, str]) -> list[str]:
    """Return the folders whose files every desktop of this machine reads."""
    named = env.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    return [os.path.normpath(each) for each in named.split(":") if os.path.isabs(each)]


def _read_files(folder: str) -> Iterator[tuple[str, bytes]]:
    """
    Yield our files below a folder, by their relative path.

    PREFIX/share may belong to the whole system: only files with our name are ours.
    """
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            stem = name.removeprefix("_")
            if stem.startswith(APP_ID) or stem.split(".")[0] in ("watchdog", "watchdog-tray"):
                path = os.path.join(place, name)
                with open(path, "rb") as file:
                    yield os.path.relpath(path, folder), file.read()


def _insert_command(relative: str, content: bytes, command: str) -> bytes:
    if not relative.endswith((".desktop", ".service")):
        return content
    word = quote_exec_word(command)
    return _EXEC.sub(lambda found: f"{found[1]}={word}", content.decode()).encode()
