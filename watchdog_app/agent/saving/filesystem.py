"""The file system of a rescue folder: free space, memory or disk."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from watchdog_app.base import paths


def free_bytes(directory: str) -> int | None:
    """What this user may still write to the disk of `directory`; None where it is not told."""
    try:
        disk = os.statvfs(directory)
    except (OSError, AttributeError):
        return None
    if disk.f_blocks == 0:  # some network and FUSE file systems count nothing
        return None
    return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize


def believed(found: os.stat_result, directory: str) -> bool:
    """
    Whether a file in `directory` is of this user or of root, and none that anybody may change.

    Where a disk of a network or container shows one owner and one mode for everything, a file
    that this user makes there is what others are compared with.
    """
    strange = paths.foreign(found)
    open_to_all = bool(found.st_mode & stat.S_IWOTH)
    if not strange and not open_to_all:
        return True
    try:
        owner, mode = _shown(directory, os.stat(directory).st_dev)
    except OSError:
        return False
    return (not strange or found.st_uid == owner) and (not open_to_all or bool(mode & stat.S_IWOTH))


@functools.lru_cache(maxsize=8)
def _shown(directory: str, _device: int) -> tuple[int, int]:
    """Owner and mode of a private file that this process makes in `directory`."""
    with tempfile.TemporaryFile(dir=directory) as file:
        found = os.fstat(file.fileno())
        return found.st_uid, found.st_mode


@contextmanager
def locked(directory: str, wait_s: float = 2.0) -> Iterator[None]:
    """Keep other processes of ours from changing notes in `directory`; no longer waited for."""
    try:
        import fcntl

        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (ImportError, OSError):
        yield
        return
    try:
        end_mono_s = time.monotonic() + wait_s
        while time.monotonic() < end_mono_s:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break  # no locks here
            else:
                break
        yield
    finally:
        os.close(fd)
