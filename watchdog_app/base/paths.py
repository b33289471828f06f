"""
Paths of watchdog's files: one function per path, with the environment as an argument.

Linux and other Unixes follow the XDG base directory specification 0.8; macOS and Windows use their
usual folders. Nothing is created here.
"""

from __future__ import annotations

import os
import stat
import sys

# Every kernel and script with an agent imports this at its start; `typing` would take 2 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Used instead of the XDG folders, below the home.
_SYSTEM_FOLDERS = {"darwin": "Library/Application Support", "win32": "AppData/Local"}


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")


def _folder(env: Mapping[str, str], variable: str, usual: str) -> str:
    """The watchdog folder of one kind: below an absolute `variable`, else below the home."""
    base = env.get(variable, "")
    if sys.platform in _SYSTEM_FOLDERS:
        base = os.path.join(_home(env), _SYSTEM_FOLDERS[sys.platform])
    elif not os.path.isabs(base):  # the specification says to ignore relative paths
        base = os.path.join(_home(env), usual)
    return os.path.join(base, "watchdog")


def runtime_dir(env: Mapping[str, str] = os.environ) -> str:
    """
    Folder of the socket and the lock: private to the user, lost at a restart of the machine.

    If the folder does not exist yet or belongs to another user, a path that does not exist is
    returned. `runtime_dir.make` creates the folder.
    """
    fixed = fixed_runtime_dir(env)
    if fixed is not None:
        return fixed
    link = runtime_link(env)
    return linked_folder(link) or f"{link}.missing"


def fixed_runtime_dir(env: Mapping[str, str] = os.environ) -> str | None:
    """The runtime folder with a fixed name; None: the folder has a random name in /tmp."""
    override = env.get("WATCHDOG_RUNTIME_DIR")
    if override:
        return override
    if sys.platform == "win32":
        return os.path.join(state_dir(env), "run")
    # A notebook server from a service or sudo has no XDG_RUNTIME_DIR, or that of another user. Its
    # agents must still find the daemon of the login session.
    for base in (env.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if os.path.isabs(base) and os.path.isdir(base) and os.stat(base).st_uid == os.getuid():
            return os.path.join(base, "watchdog")
    return None


def runtime_link(env: Mapping[str, str] = os.environ) -> str:
    """
    The link to the runtime folder on systems without a session manager (containers, plain ssh).

    Other users can take a predictable name in /tmp, so the folder there has a random name. The
    link contains the host's name, because several hosts may share one home.
    """
    host = os.uname().nodename.replace("/", "_")[:64]
    return os.path.join(state_dir(env), f"runtime-{host}")


def linked_folder(link: str) -> str | None:
    """The target of the link, if this user owns it and others have no access; else None."""
    try:
        folder = os.readlink(link)
        found = os.lstat(folder)
    except OSError:
        return None
    closed = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return folder if closed and os.path.isabs(folder) and found.st_uid == os.getuid() else None


def state_dir(env: Mapping[str, str] = os.environ) -> str:
    """Folder of the journal, which survives restarts."""
    return env.get("WATCHDOG_STATE_DIR") or _folder(env, "XDG_STATE_HOME", ".local/state")


def daemon_log(env: Mapping[str, str] = os.environ) -> str:
    """Log file of a daemon that `watchdog start` started."""
    return os.path.join(state_dir(env), "daemon.log")


def config_file(env: Mapping[str, str] = os.environ) -> str:
    """Path of config.toml, which may not exist."""
    usual = os.path.join(_folder(env, "XDG_CONFIG_HOME", ".config"), "config.toml")
    return env.get("WATCHDOG_CONFIG") or usual


def is_foreign(found: os.stat_result) -> bool:
    """Whether neither this user nor root owns a file or folder."""
    return hasattr(os, "geteuid") and found.st_uid not in (os.geteuid(), 0)


def is_writable_by_others(found: os.stat_result) -> bool:
    """Whether other users may write to a file, or change names in a folder."""
    if not hasattr(os, "geteuid"):
        return False
    if found.st_mode & stat.S_IWOTH:
        return True
    # Check the group last, because a lookup of its members may ask a server in the network.
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != own_group(found.st_uid)


def own_group(uid: int) -> int | None:
    """The private group of a user (many systems have one per user); None: no private group."""
    import grp  # missing on Windows
    import pwd

    try:
        owner = pwd.getpwuid(uid)
        group = grp.getgrgid(owner.pw_gid)
    except KeyError:
        return None
    alone = owner.pw_name == group.gr_name and not set(group.gr_mem) - {owner.pw_name}
    return owner.pw_gid if alone else None


def socket_path(env: Mapping[str, str] = os.environ) -> str:
    """Path of the daemon's socket."""
    return os.path.join(runtime_dir(env), "daemon.sock")


def add_vendored() -> None:
    """Put the vendored packages first on sys.path; call it before importing one of them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(package, "_vendor")
    if folder not in sys.path and os.path.isdir(folder):
        # First in the path, before an older version from the distribution.
        sys.path.insert(0, folder)
