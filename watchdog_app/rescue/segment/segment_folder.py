"""The folder with the segments of this user's trainings, and how a segment gets there."""

from __future__ import annotations

import errno
import os
import stat
import sys
import zlib
from contextlib import suppress

from watchdog_app.base import paths
from watchdog_app.base.linux.files import is_in_memory
from watchdog_app.rescue.segment.segment import (
    ASK,
    MAGIC,
    READER,
    SEGMENT_BYTES,
    SPARE,
    STRIDE,
    VERSION,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = "segments"
_SHARED = "/dev/shm"  # noqa: S108


def folder(env: Mapping[str, str] = os.environ) -> str:
    """
    The folder of this user's segments: next to the daemon's socket, if that is in memory.

    A segment on a disk would be written to the disk all the time, and read from it when memory is
    short.
    """
    runtime = paths.runtime_dir(env)
    if not sys.platform.startswith("linux") or is_in_memory(
        _nearest_existing(os.path.abspath(runtime))
    ):
        return os.path.join(runtime, _FOLDER)
    # One for each runtime folder: a user may run one daemon per folder.
    shared = f"{_SHARED}/watchdog-{os.getuid()}-{zlib.crc32(runtime.encode()):08x}"
    return os.path.join(shared if os.path.isdir(_SHARED) else runtime, _FOLDER)


def remove_ended(where: str) -> None:
    """Remove the segments of processes that have ended."""
    for name in os.listdir(where):
        pid, _, start_time = name.partition(".")
        if pid.isdigit() and start_time.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                os.unlink(os.path.join(where, name))


def remove_unused(where: str) -> None:
    """Remove segments of ended processes, and the folder if it is empty then."""
    with suppress(OSError):  # a later daemon uses segments that trainings still publish in
        remove_ended(where)
        os.rmdir(where)
        if os.path.dirname(os.path.dirname(where)) == _SHARED:
            os.rmdir(os.path.dirname(where))


def make_folder(where: str) -> None:
    """
    Make the folder for segments.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    for each in (os.path.dirname(where), where):
        os.makedirs(each, mode=0o700, exist_ok=True)
        found = os.lstat(each)
        if not stat.S_ISDIR(found.st_mode) or paths.is_foreign(found):
            raise PermissionError(errno.EACCES, "it is no folder of this user's", each)


def segment_path(where: str, pid: int, start_time: int) -> str:
    """The segment of one process in a folder of segments."""
    return os.path.join(where, f"{pid}.{start_time}")


def make_segment(path: str, size_bytes: int = SEGMENT_BYTES) -> None:
    """
    Make a new segment at `path` with every page allocated, charged to this process's group.

    Raises:
        OSError: one exists already, or memory is short.
    """
    new = f"{path}.new-{os.getpid()}"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            for at in range(0, size_bytes, STRIDE):
                os.pwrite(fd, bytes(min(STRIDE, size_bytes - at)), at)
            head = (MAGIC, VERSION, size_bytes)
            os.pwrite(fd, b"".join(each.to_bytes(8, "little") for each in head), 0)
        finally:
            os.close(fd)
        os.link(new, path)  # the segment appears complete or not at all
    finally:
        os.unlink(new)


def ask(path: str, on: bool) -> None:
    """`Segment.ask_every_batch` for a process that does not map the segment. Raises OSError."""
    _write_slot(path, ASK, int(on))


def permit(path: str, pid: int) -> None:
    """`Segment.permit` for a process that does not map the segment. Raises OSError."""
    _write_slot(path, READER, pid)


def _write_slot(path: str, slot: int, value: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, value.to_bytes(8, "little"), 8 * slot)
    finally:
        os.close(fd)


def make_spare(where: str, size_bytes: int = SEGMENT_BYTES) -> bool:
    """
    Make a spare segment for the next process that begins to publish; return whether one was made.

    Raises:
        OSError: memory is short.
    """
    path = os.path.join(where, SPARE)
    if os.path.lexists(path):
        return False
    make_segment(path, size_bytes)
    return True


def claim(where: str, pid: int, start_time: int) -> str:
    """
    The segment of this process: its own if it exists, else the spare one, else a new one.

    Raises:
        OSError: none is available.
    """
    path = segment_path(where, pid, start_time)
    if os.path.exists(path):
        return path
    try:
        os.rename(os.path.join(where, SPARE), path)
    except FileNotFoundError:
        make_segment(path)
    return path


def _nearest_existing(path: str) -> str:
    """The folder, or its nearest existing parent."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path
