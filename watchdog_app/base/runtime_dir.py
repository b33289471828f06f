"""
Create the runtime folder. The daemon or `watchdog exec` does so, whichever starts first.

Without a session manager the folder is in /tmp, where any user may have created it before. A
symbolic link, or a folder of another user, is refused and never changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from watchdog_app.base import durable, paths
from watchdog_app.base.errors import WatchdogError


def make(env: Mapping[str, str] = os.environ) -> str:
    """
    The absolute path of the runtime folder; a folder with a random name is created.

    `private_folder` creates and checks a folder with a fixed name.

    Raises:
        WatchdogError: the folder cannot be created.
    """
    fixed = paths.fixed_runtime_dir(env)
    if fixed is not None:
        return os.path.abspath(fixed)
    import fcntl

    link = os.path.abspath(paths.runtime_link(env))
    try:
        durable.make_folders(os.path.dirname(link))
        # Processes that start at once take turns, so that they use the same folder.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{link}.lock", flags, 0o600)
        try:
            with suppress(OSError):  # no locks on this file system: simultaneous starts are rare
                fcntl.flock(lock, fcntl.LOCK_EX)
            return paths.linked_folder(link) or _make_temporary_folder(link)
        finally:
            os.close(lock)
    except OSError as error:
        raise WatchdogError(
            f"No folder for the daemon's socket could be made: {error}. Let "
            "WATCHDOG_RUNTIME_DIR name a folder of your own."
        ) from error


def private_folder(path: str) -> None:
    """
    Make `path` a folder that this user owns and no other user may enter.

    Raises:
        WatchdogError: it is another user's, a link or not a folder, or cannot be created.
    """
    try:
        above = os.path.dirname(path) or "."
        durable.make_folders(above)  # not writable by others, for any umask
        _check_parent(path, os.stat(above))
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        # Check the open handle, because a name can change its target between two checks.
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(handle)
            if found.st_uid != os.geteuid():
                raise WatchdogError(
                    f"The folder {path} belongs to user {found.st_uid}, who could listen in on "
                    "everything said there; the daemon does not start. Have it removed, or let "
                    "WATCHDOG_RUNTIME_DIR name a folder of your own."
                )
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    except OSError as error:
        what = "is a link" if os.path.islink(path) else error.strerror
        raise WatchdogError(
            f"The daemon cannot use the folder {path}: {what}. "
            "Remove it, or let WATCHDOG_RUNTIME_DIR name a folder of your own."
        ) from error


def _check_parent(path: str, found: os.stat_result) -> None:
    """
    Check that other users cannot replace the folder `path` by renaming it.

    Raises:
        WatchdogError: they can.
    """
    if found.st_mode & stat.S_ISVTX:
        return  # sticky: only owners can rename; in a sandbox the overflow user may seem to own it
    if paths.is_foreign(found) or paths.is_writable_by_others(found):
        remedy = "Let WATCHDOG_RUNTIME_DIR name a folder below one of your own."
        if found.st_uid == os.geteuid():
            import shlex

            remedy = f"Close it to them: chmod go-w {shlex.quote(os.path.dirname(path) or '.')}"
        raise WatchdogError(
            f"The folder {path} lies where others can put one of theirs in its place; the daemon "
            f"does not start. {remedy}"
        )


def _make_temporary_folder(link: str) -> str:
    import tempfile  # 1 MB; with a session manager it is not needed

    # Not TMPDIR: batch systems set one for each job and remove it with the job.
    folder = tempfile.mkdtemp(prefix=f"watchdog-{os.getuid()}-", dir="/tmp")
    new = f"{link}.{os.getpid()}"
    try:
        os.symlink(folder, new)
        os.replace(new, link)  # the old target does not exist or belongs to another user
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        os.rmdir(folder)
        raise
    return folder
