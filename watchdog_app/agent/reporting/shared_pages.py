"""
What this process still shares with processes that were forked from it: pages copied on a write.

To look at an object of Python's is to write to it: its count of references goes up and down again.
Where data workers were forked, a look at all live objects therefore copies the pages of all of
them, tens of MiB within the second, and never gives them back.
"""

from __future__ import annotations

import os

_OWN = "/proc/self/smaps_rollup"


def shared_bytes(path: str = _OWN) -> int | None:
    """
    Memory of this process that a write would copy, at most; walks the page tables (6 us a MiB).

    Args:
        path: /proc/PID/smaps_rollup.

    Returns:
        Bytes; None where the system does not say (not Linux, before 4.14).
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return None
    sizes = {}
    for line in data.splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if words and words[0].isdigit():
            sizes[name] = int(words[0]) * 1024
    if b"Anonymous" not in sizes or b"Shared_Dirty" not in sizes:
        return None
    # What was written since the fork is this process's own; the rest of its anonymous pages were
    # written before. Pages of shared memory can be dirty as well: they make this an upper bound.
    return min(sizes[b"Anonymous"], sizes[b"Shared_Dirty"])
