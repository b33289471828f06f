"""
Write files that are complete after a kill or a power failure at any moment.

A file is written under a temporary name, synced and renamed; then its folder is synced. The
temporary name is always the same, so that the next write overwrites the remains of a kill.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress

from watchdog_app.base import paths

_TEMPORARY_SUFFIX = ".watchdog-new"
_PATIENCE_S = 5.0  # longest wait while another watchdog process writes the same file
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
    Write a file atomically; it is on disk when this returns.

    Args:
        path: path of the file; a symbolic link is replaced, not followed.
        content: new content.
        mode: permissions of the file.
        owner: (user id, group id) of the file; None: those of this process.
        durable: False: do not wait for the disk, for files that a power failure makes useless.

    Raises:
        OSError: the write failed; the old file is unchanged.
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
                    os.fchmod(fd, mode)  # chown clears some mode bits
            if durable:
                os.fsync(fd)
            if os.name == "nt":
                os.close(fd)  # Windows cannot rename an open file
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
    """The temporary file of `write_atomic`; it exists only during a write, or after a kill."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}{_TEMPORARY_SUFFIX}")


def make_folders(path: str, mode: int = 0o755, mode_above: int = 0o755) -> list[str]:
    """
    Create `path` and its missing parents durably.

    Args:
        path: the folder.
        mode: permissions of `path`, if it is created.
        mode_above: permissions of created parents.

    Returns:
        The created folders, outermost first.

    Raises:
        OSError: a folder could not be created.
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
            if not os.path.isdir(each):  # a file or a broken link; else another process was faster
                raise
    for each in made:
        sync_folder(os.path.dirname(each))
    return made


def open_private(path: str, flags: int) -> int:
    """
    An `opener` for `open`: only the owner may read the file; symbolic links are refused.

    Args:
        path: path of the file.
        flags: flags of open(2), from `open`.
    """
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
    if hasattr(os, "fchmod"):
        with suppress(OSError):  # a file system without modes
            os.fchmod(fd, 0o600)  # an existing file may have another mode
    return fd


def open_nonblocking(path: str, flags: int) -> int:
    """
    An `opener` for `open`: symbolic links are refused, and opening a pipe does not block.

    Args:
        path: path of the file.
        flags: flags of open(2), from `open`.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def sync_folder(folder: str) -> None:
    """
    Sync a folder, so that the names in it are on disk.

    Raises:
        OSError: the disk failed.
    """
    if os.name == "nt":
        return  # Windows cannot sync folders
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync folders and have no alternative.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def _open_locked(temporary: str) -> int:
    """Open and lock the temporary file; its content does not matter."""
    end_mono_s = time.monotonic() + _PATIENCE_S
    while True:
        # Read and write, so that the remains of a killed process can be overwritten.
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
    except ImportError:  # Windows does not replace open files
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # A network file system without locks: the last rename wins, with a complete file.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
            raise
    return True


def _is_same_file(path: str, found: os.stat_result) -> bool:
    """Whether `path` is still the file that was opened and locked."""
    try:
        current = os.lstat(path)
    except FileNotFoundError:
        return False
    return (current.st_dev, current.st_ino) == (found.st_dev, found.st_ino)
