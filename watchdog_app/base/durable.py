"""
Write files that are complete after a kill or a power failure at any moment.

A file is written under a temporary name, synced and renamed; then its folder is synced. Each write
has a name of its own: of two writers the last rename wins, with a complete file. The name contains
the writer's pid, so that the next write removes the remains of a kill.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

_TEMPORARY_SUFFIX = ".watchdog-new"


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
    remove_temporary_files(path)
    folder, name = os.path.split(path)
    unique = f".{name}.{os.getpid()}.{os.urandom(6).hex()}{_TEMPORARY_SUFFIX}"
    temporary = os.path.join(folder, unique)
    try:
        with open(temporary, "xb", opener=open_private) as file:
            file.write(content)
            file.flush()
            found = os.fstat(file.fileno())
            if owner is not None and owner != (found.st_uid, found.st_gid):
                os.fchown(file.fileno(), *owner)
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)  # after fchown, which clears some mode bits
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(folder or ".")


def remove_temporary_files(path: str) -> None:
    """
    Remove what killed writers of a file have left in its folder.

    Without /proc nothing is removed, because a writer may be alive.

    Args:
        path: path of the file.
    """
    folder, name = os.path.split(path)
    begin = f".{name}."
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for each in entries:
            if each.name.startswith(begin) and each.name.endswith(_TEMPORARY_SUFFIX):
                unique = each.name.removeprefix(begin).removesuffix(_TEMPORARY_SUFFIX)
                writer, _, rest = unique.partition(".")
                if not writer.isdigit() or "." in rest:
                    continue  # of a file with a longer name: `config.toml.rejected`
                if os.path.exists("/proc/self") and not os.path.exists(f"/proc/{writer}"):
                    os.unlink(each.path)


def make_folders(path: str, mode: int = 0o755) -> None:
    """
    Create `path` and its missing parents durably.

    Args:
        path: the folder.
        mode: permissions of the created folders.

    Raises:
        OSError: a folder could not be created.
    """
    path = os.path.abspath(path)
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above != path:  # it is the missing root of a drive
        make_folders(above, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):  # a file or a broken link; else another process was faster
            raise
    sync_folder(above)


def open_private(path: str, flags: int) -> int:
    """
    An `opener` for `open`: only the owner may read the file; symbolic links are refused.

    Args:
        path: path of the file.
        flags: flags of open(2), from `open`.
    """
    fd = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with suppress(AttributeError, OSError):  # Windows, or a file system without modes
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
