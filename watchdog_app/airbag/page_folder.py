"""Where the pages of this user's trainings are."""

from __future__ import annotations

import errno
import os
import stat
import sys
import zlib
from contextlib import suppress

from watchdog_app import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = "pages"


def folder(env: Mapping[str, str] = os.environ) -> str:
    """
    Where this user's pages are: beside the daemon's socket, if that is in memory.

    A page on a disk would be written to it all the time, and read from it when memory is short.
    """
    runtime = paths.runtime_dir(env)
    if not sys.platform.startswith("linux") or _in_memory(runtime):
        return os.path.join(runtime, _FOLDER)
    # One for each runtime folder: so many daemons a user may have.
    shared = f"/dev/shm/watchdog-{os.getuid()}-{zlib.crc32(runtime.encode()):08x}"  # noqa: S108
    return os.path.join(shared if os.path.isdir("/dev/shm") else runtime, _FOLDER)  # noqa: S108


def clear(where: str) -> None:
    """Remove the pages of processes that have ended."""
    for name in os.listdir(where):
        pid, _, start_time = name.partition(".")
        if pid.isdigit() and start_time.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):
                os.unlink(os.path.join(where, name))


def prepare(where: str) -> None:
    """
    Make the folder for pages.

    Raises:
        OSError: it cannot be made, or is somebody else's.
    """
    for each in (os.path.dirname(where), where):
        os.makedirs(each, mode=0o700, exist_ok=True)
        found = os.lstat(each)
        if not stat.S_ISDIR(found.st_mode) or paths.foreign(found):
            raise PermissionError(errno.EACCES, "it is no folder of this user's", each)


def path_for(where: str, pid: int, start_time: int) -> str:
    """The page of one process in a folder of pages."""
    return os.path.join(where, f"{pid}.{start_time}")


def _in_memory(path: str) -> bool:
    """Whether a folder, which may not be there yet, lies in a tmpfs; proc(5), /proc/mounts."""
    best, kind = "", ""
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _device, place, type_ = line.split(" ")[:3]
                inside = real == place or real.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, kind = place, type_
    except (OSError, ValueError):
        return False
    return kind in ("tmpfs", "ramfs")
