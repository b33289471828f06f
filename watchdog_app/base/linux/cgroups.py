"""The kernel's counts of its kills for memory."""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import whole


def host_oom_kills(proc: str = "/proc") -> int | None:
    """Processes that the kernel has killed for memory since boot, in every group; None: unknown."""
    return flat_value(read_or_empty(f"{proc}/vmstat"), b"oom_kill")


def group_oom_kills(folder: str) -> int | None:
    """
    The same of one memory group, its children left out; None when it is gone or does not count.

    Source: kernel, cgroup-v2.rst: memory.events counts all groups below as well, and
    memory.events.local (since 5.2) the group alone.
    """
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):  # v2, v2, v1
        kills = flat_value(read_or_empty(f"{folder}/{name}"), b"oom_kill")
        if kills is not None:
            return kills
    return None


def oomd_kills(group: str) -> int | None:
    """
    Processes that systemd-oomd has noted to have killed in a group; None: none, or the group is
    gone. Source: systemd, src/oom/oomd-util.c, the extended attribute user.oomd_kill.
    """
    with suppress(AttributeError, OSError, ValueError):  # Linux alone
        return int(os.getxattr(group, "user.oomd_kill")) or None
    return None


def flat_value(data: bytes, name: bytes) -> int | None:
    """
    A number of a file of names and numbers, such as memory.stat; None: it is not in it.

    Args:
        data: content of the file.
        name: of the line.
    """
    lines = b"\n" + data
    at = lines.find(b"\n%b " % name)
    if at < 0:
        return None
    start = at + len(name) + 2
    end = lines.find(b"\n", start)
    return whole(lines[start : end if end >= 0 else len(lines)].strip())
