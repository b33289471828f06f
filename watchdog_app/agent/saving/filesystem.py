"""The file system of a rescue folder: free space, memory or disk."""

from __future__ import annotations

import os


def free_bytes(directory: str) -> int | None:
    """What this user may still write to the disk of `directory`; None where it is not told."""
    try:
        disk = os.statvfs(directory)
    except (OSError, AttributeError):
        return None
    if disk.f_blocks == 0:  # some network and FUSE file systems count nothing
        return None
    return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize


def in_memory(directory: str, mountinfo: str = "/proc/self/mountinfo") -> bool:
    """
    Whether `directory` lies in a file system that is memory itself, such as tmpfs.

    Source: proc(5), /proc/PID/mountinfo: third field major:minor, type after the dash.
    """
    try:
        device = os.stat(directory).st_dev
        mark = f"{os.major(device)}:{os.minor(device)}"
        with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                left, _, right = line.partition(" - ")
                if left.split()[2:3] == [mark]:
                    return right.split()[:1] in (["tmpfs"], ["ramfs"])
    except OSError:
        pass
    return False
