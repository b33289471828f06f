"""
Write files that are complete after a kill or a loss of power at any moment.

A file is written under another name, synced and renamed; then its folder is synced. The other name
is always the same. So the next write overwrites what a kill left behind, and it can be found.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress

from watchdog_app.base import paths

_TEMPORARY_SUFFIX = ".watchdog-new"
_PATIENCE_S = 5.0  # another of ours writes the same file right now
_POLL_S = 0.02


def write_atomic(
    path: str,
    content: bytes,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
    *,
    durable: bool = True,
) -> None:
    """
    All of it or nothing, and durable when this returns.

    Args:
        path: a link is replaced, not followed.
        content: what is to stand there.
        mode: of the file.
        owner: user and group that it is to belong to; None: who writes.
        durable: False where it is of no use after a loss of power: no disk is waited for.

    Raises:
        OSError: it could not be written; what was there is untouched.
    """
    temporary = temporary_path(path)
    fd = _open_locked(temporary)
    try:
        try:
            os.ftruncate(fd, 0)
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(content)
            if hasattr(os, "fchmod"):
                os.fchmod(fd, mode)
            if owner is not None:
                found = os.fstat(fd)
                if (found.st_uid, found.st_gid) != owner:
                    os.fchown(fd, *owner)
                    os.fchmod(fd, mode)  # a change of owner takes bits away
            if durable:
                os.fsync(fd)
            if os.name == "nt":
                os.close(fd)  # an open file is not renamed there
                fd = -1
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    finally:
        if fd >= 0:
            os.close(fd)
    if durable:
        sync_folder(os.path.dirname(path) or ".")


def temporary_path(path: str) -> str:
    """Where `write_atomic` writes before it renames; there only while it does, or after a kill."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{_TEMPORARY_SUFFIX}")


def make_folders(path: str, mode: int = 0o755, mode_above: int = 0o755) -> list[str]:
    """
    Make `path` and what is missing above it, durably; those that were made, outermost first.

    Args:
        path: the folder.
        mode: of `path`, where it is made.
        mode_above: of the folders above it that are made.

    Raises:
        OSError: one could not be made.
    """
    missing = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        above = os.path.dirname(at)
        if above == at:
            break
        at = above
    made = []
    for each in reversed(missing):
        try:
            os.mkdir(each, mode if each == missing[0] else mode_above)
            made.append(each)
        except FileExistsError:
            if not os.path.isdir(each):  # a file, or a link to nowhere; else somebody was faster
                raise
    for each in made:
        sync_folder(os.path.dirname(each))
    return made


def open_private(path: str, flags: int) -> int:
    """
    An `opener` for `open`: the file is for its owner alone, and no link is followed.

    Args:
        path: of the file.
        flags: of open(2), as `open` gives them.
    """
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if hasattr(os, "fchmod"):
        with suppress(OSError):  # a file system without modes
            os.fchmod(fd, 0o600)  # it may have been there
    return fd


def open_nonblocking(path: str, flags: int) -> int:
    """
    An `opener` for `open`: no link is followed, no pipe is waited for.

    Args:
        path: of the file.
        flags: of open(2), as `open` gives them.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def sync_folder(folder: str) -> None:
    """
    Make the names in `folder` durable.

    Raises:
        OSError: the disk failed.
    """
    if os.name == "nt":
        return  # no handle of a folder can be synced there
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Folders cannot be synced on some network file systems; there nothing better exists.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _open_locked(temporary: str) -> int:
    """Open and lock the temporary file, whatever is in it."""
    end_mono_s = time.monotonic() + _PATIENCE_S
    while True:
        # Read and write: also what somebody else's kill has left is to be written over.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_BINARY", 0)
        fd = os.open(temporary, flags, 0o600)
        try:
            found = _check_owner(fd, temporary)
            if _try_lock(fd) and _is_same_file(temporary, found):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > end_mono_s:
            raise BlockingIOError(errno.EAGAIN, "another watchdog is writing it", temporary)
        time.sleep(_POLL_S)


def _check_owner(fd: int, path: str) -> os.stat_result:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or paths.is_foreign(found):
        raise FileExistsError(errno.EEXIST, "it is no file of ours", path)
    return found


def _try_lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: an open file is not replaced there
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # A network file system without locks: then whoever renames last wins, as a whole.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
            raise
    return True


def _is_same_file(path: str, found: os.stat_result) -> bool:
    """Whether the lock file still has its name after the wait."""
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)
