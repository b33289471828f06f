"""
Whether the sizes on a command line make sense together, and on this machine. Pure.
"""

from __future__ import annotations

from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.guard import cgroup, shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.guard.shares import Free

_MOST_BYTES = 1 << 53  # as the protocol has it; more than any machine
LEAST_DEFAULT_BYTES = 256 << 20  # where the machine is full: something has to be tried


def check(limit: int | None, reserve: int | None, swap: int, free: Free) -> None:
    """
    Refuse what holds no program, or promises what is not there.

    Args:
        limit, reserve, swap: bytes as somebody asked for; None: not asked for.
        free: what the machine, or the container around, has now.

    Raises:
        UsageError: which of them, why, and what to give instead.
    """
    for option, size in (("--limit", limit), ("--reserve", reserve), ("--swap", swap)):
        if size is not None and size > _MOST_BYTES:
            raise UsageError(f"{option} is more than any machine has.")
    if limit is not None and limit < cgroup.LEAST_LIMIT_BYTES:
        raise UsageError(
            f"--limit {format_bytes(limit)} is too little for any program; "
            f"give {format_bytes(cgroup.LEAST_LIMIT_BYTES)} at least."
        )
    if reserve is None:
        return
    what = f"--reserve {format_bytes(reserve)}"
    advice = "It is what a save may take besides: a quarter of the training's state is plenty."
    if reserve > free.total_bytes:
        raise UsageError(
            f"{what} is more than there is: {format_bytes(free.total_bytes)} in all. {advice}"
        )
    if limit is not None and reserve > max(limit, shares.LEAST_RESERVE_BYTES):
        raise UsageError(f"{what} is more than --limit {format_bytes(limit)} itself. {advice}")
    left = free.free_bytes - free.margin_bytes - reserve
    if limit is None and left < LEAST_DEFAULT_BYTES:
        raise UsageError(
            f"{what} leaves nothing for the program: {format_bytes(free.free_bytes)} are free. "
            f"{advice}"
        )


def warning(limit: int, reserve: int, free_bytes: int) -> str:
    """A line for people where a limit that they gave is beyond what is free now; else empty."""
    if limit > free_bytes:
        return (
            f"only {format_bytes(free_bytes)} are free: if it needs more, the machine's own limit "
            "is met first, and that one kills. Without --limit it is held before"
        )
    if limit + reserve > free_bytes:
        return (
            f"only {format_bytes(free_bytes)} are free: at its limit the reserve of "
            f"{format_bytes(reserve)} may not be there any more, and nothing could be saved with it"
        )
    return ""
