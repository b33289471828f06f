"""
How many files may be open at once, and how they are shared out: looking never goes short of any.

Without shares a crowd of clients or of processes takes the last one, and then the machine itself
cannot be read.
"""

from __future__ import annotations

import sys

_OWN = 48  # the journal, the lock, /proc of the machine, groups, triggers, one file at a time
_UNLIMITED = 1 << 20


def limit() -> int:
    """How many this process may have open; bounded also where the system sets no bound."""
    if sys.platform == "win32":
        return _UNLIMITED
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if 0 < soft < _UNLIMITED else _UNLIMITED


def handles(most: int) -> int:
    """How many ends of processes may be waited for by a handle each, at most `most`; at least 1."""
    return max(1, min(most, (limit() - _OWN) // 8))


def connections(most: int) -> int:
    """Clients that may be connected, two each for agents, at most `most`; at least 4."""
    return max(4, min(most, (limit() - _OWN) // 4))
