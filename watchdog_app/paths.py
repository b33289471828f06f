"""
Where watchdog keeps its files: one function a place, environment as an argument.

Linux and other Unixes follow the XDG base directory specification 0.8; macOS
and Windows use what their users expect. Nothing is created here.
"""

from __future__ import annotations

import os
import stat
import sys

# Every kernel and script with an agent comes by here at its start: the import would take 2 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def runtime_dir(env: Mapping[str, str] = os.environ) -> str:
    """Folder of the socket and the lock: private to the user, gone after a restart."""
    override = env.get("WATCHDOG_RUNTIME_DIR")
    if override:
        return override
    if sys.platform == "win32":
        return os.path.join(env.get("LOCALAPPDATA", _home(env)), "watchdog", "run")
    base = env.get("XDG_RUNTIME_DIR")
    if base and os.path.isabs(base) and os.path.isdir(base) and os.stat(base).st_uid == os.getuid():
        return os.path.join(base, "watchdog")
    # A notebook server started by a service or through sudo has no XDG_RUNTIME_DIR, or another
    # user's: its agents are to find the daemon that a login session started.
    session = f"/run/user/{os.getuid()}"
    if os.path.isdir(session):
        return os.path.join(session, "watchdog")
    # No session manager (ssh without logind, containers). Not TMPDIR: batch systems set one per
    # job, and both ends must come to the same place.
    return f"/tmp/watchdog-{os.getuid()}"  # noqa: S108 - the daemon refuses a foreign folder


def state_dir(env: Mapping[str, str] = os.environ) -> str:
    """Folder of the journal: kept over restarts."""
    override = env.get("WATCHDOG_STATE_DIR")
    if override:
        return override
    if sys.platform == "win32":
        return os.path.join(env.get("LOCALAPPDATA", _home(env)), "watchdog", "state")
    if sys.platform == "darwin":
        return os.path.join(_home(env), "Library", "Application Support", "watchdog")
    base = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(_home(env), ".local", "state")
    return os.path.join(base, "watchdog")


def daemon_log(env: Mapping[str, str] = os.environ) -> str:
    """Where a daemon that `watchdog start` has started says what it does."""
    return os.path.join(state_dir(env), "daemon.log")


def config_file(env: Mapping[str, str] = os.environ) -> str:
    """Path of config.toml, whether it exists or not."""
    override = env.get("WATCHDOG_CONFIG")
    if override:
        return override
    if sys.platform == "win32":
        return os.path.join(env.get("APPDATA", _home(env)), "watchdog", "config.toml")
    if sys.platform == "darwin":
        return os.path.join(_home(env), "Library", "Application Support", "watchdog", "config.toml")
    base = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(_home(env), ".config")
    return os.path.join(base, "watchdog", "config.toml")


def foreign(found: os.stat_result) -> bool:
    """Whether a file or folder is a stranger's: neither this user nor root owns it."""
    return hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0)


def open_to_others(found: os.stat_result) -> bool:
    """Whether others may write to a file, or change names in a folder."""
    if not hasattr(os, "geteuid"):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    # Last: who is in a group a server in the network may have to be asked.
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found)


def _is_own_group(found: os.stat_result) -> bool:
    """Whether the group is the owner's alone, as many systems give one to each user."""
    import grp  # there is none on Windows
    import pwd

    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    alone = not set(group.gr_mem) - {owner.pw_name}
    return alone and owner.pw_gid == found.st_gid and owner.pw_name == group.gr_name


def socket_path(env: Mapping[str, str] = os.environ) -> str:
    """The daemon's socket."""
    return os.path.join(runtime_dir(env), "daemon.sock")
