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


def _folder(env: Mapping[str, str], variable: str, usual: str) -> str:
    """Our folder of one kind: by the variable where it is absolute, else below the home."""
    if sys.platform == "darwin":
        return os.path.join(_home(env), "Library", "Application Support", "watchdog")
    base = env.get(variable, "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(_home(env), usual)
    return os.path.join(base, "watchdog")


def runtime_dir(env: Mapping[str, str] = os.environ) -> str:
    """
    Folder of the socket and the lock: private to the user, gone after a restart.

    Where nobody has made one yet, or what is there is not this user's, a path that does not exist.
    `runtime_dir.make` makes it.
    """
    fixed = fixed_runtime_dir(env)
    if fixed is not None:
        return fixed
    link = runtime_link(env)
    return linked_folder(link) or f"{link}.missing"


def fixed_runtime_dir(env: Mapping[str, str] = os.environ) -> str | None:
    """The runtime folder where its name is given; None: it has a random name in /tmp."""
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
    if os.path.isdir(session) and os.stat(session).st_uid == os.getuid():
        return os.path.join(session, "watchdog")
    return None


def runtime_link(env: Mapping[str, str] = os.environ) -> str:
    """
    The link to the runtime folder where there is no session manager (containers, plain ssh).

    A name in /tmp that others can foresee can be taken by them, so the folder there has a random
    one. The link has the host's name, as several hosts may share one home.
    """
    host = os.uname().nodename.replace("/", "_")[:64]
    return os.path.join(state_dir(env), f"runtime-{host}")


def linked_folder(link: str) -> str | None:
    """The folder that a link names, if it is this user's and closed to all others; else None."""
    try:
        folder = os.readlink(link)
        found = os.lstat(folder)
    except OSError:
        return None
    closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return folder if closed and os.path.isabs(folder) and found.st_uid == os.getuid() else None


def state_dir(env: Mapping[str, str] = os.environ) -> str:
    """Folder of the journal: kept over restarts."""
    override = env.get("WATCHDOG_STATE_DIR")
    if override:
        return override
    if sys.platform == "win32":
        return os.path.join(env.get("LOCALAPPDATA", _home(env)), "watchdog", "state")
    return _folder(env, "XDG_STATE_HOME", ".local/state")


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
    return os.path.join(_folder(env, "XDG_CONFIG_HOME", ".config"), "config.toml")


def is_foreign(found: os.stat_result) -> bool:
    """Whether a file or folder is a stranger's: neither this user nor root owns it."""
    return hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0)


def is_writable_by_others(found: os.stat_result) -> bool:
    """Whether others may write to a file, or change names in a folder."""
    if not hasattr(os, "geteuid"):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    # Last: who is in a group a server in the network may have to be asked.
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != own_group(found.st_uid)


def own_group(uid: int) -> int | None:
    """The group that is this user's alone, as many systems give one to each; None: none is."""
    import grp  # there is none on Windows
    import pwd

    try:
        owner = pwd.getpwuid(uid)
        group = grp.getgrgid(owner.pw_gid)
    except KeyError:
        return None
    alone = owner.pw_name == group.gr_name and not set(group.gr_mem) - {owner.pw_name}
    return owner.pw_gid if alone else None


def socket_path(env: Mapping[str, str] = os.environ) -> str:
    """The daemon's socket."""
    return os.path.join(runtime_dir(env), "daemon.sock")
