"""
What this process still shares with processes that were forked from it: pages copied on a write.

To look at an object of Python's is to write to it: its count of references goes up and down again.
Where data workers were forked, a look at all live objects therefore copies the pages of all of
them, tens of MiB within the second, and never gives them back.
"""

from __future__ import annotations

from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import status_bytes

_OWN = "/proc/self/smaps_rollup"


def shared_bytes(path: str = _OWN) -> int | None:
    """
    Memory of this process that a write would copy, at most; walks the page tables (6 us a MiB).

    Args:
        path: /proc/PID/smaps_rollup.

    Returns:
        Bytes; None where the system does not say (not Linux, before 4.14).
    """
    data = read_or_empty(path)
    anonymous = status_bytes(data, b"Anonymous")
    dirty = status_bytes(data, b"Shared_Dirty")
    if anonymous is None or dirty is None:
        return None
    # What was written since the fork is this process's own; the rest of its anonymous pages were
    # written before. Pages of shared memory can be dirty as well: they make this an upper bound.
    return min(anonymous, dirty)
