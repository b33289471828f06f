"""
How much a guard may use: valid sizes, the reserve, and shares of the free memory.

A guard without a limit from the user may use its current usage plus its share of the free memory.
The free memory counts minus a margin for everything else and minus the reserves of all such guards.
No guard can starve another one, because growth takes only free memory. The guard that would lose
least by a stop gets a smaller share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from watchdog_app.base.errors import UsageError
from watchdog_app.base.linux.cgroups import AvailableMemory, available_memory
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.guard.cgroup import LEAST_LIMIT_BYTES
from watchdog_app.guard.record import GuardRecord

_MIB = 1 << 20
LEAST_DEFAULT_BYTES = 256 * _MIB  # on a full machine, to try at least something
LEAST_RESERVE_BYTES = 256 * _MIB
_MOST_RESERVE_BYTES = 2048 * _MIB
_RESERVE_SHARE = 4  # of the state that has to be saved
_MARGIN_SHARE = 16  # of the machine or the enclosing group: for desktop, page cache, kernel
_LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 24 * _MIB, 2048 * _MIB
_PROTECTED, _UNPROTECTED = 3, 1  # shares of the free memory
_MOST_BYTES = 1 << 53  # limit of the protocol; more than any machine


def room_around(group: str | None) -> AvailableMemory:
    """The memory left on the machine, or in the tightest limited group around a guard's group."""
    return available_memory(os.path.dirname(group) if group else None)


def margin_bytes(free: AvailableMemory) -> int:
    """Bytes that a guard leaves to other programs and the kernel."""
    share = free.total_bytes // _MARGIN_SHARE
    return min(max(share, _LEAST_MARGIN_BYTES), _MOST_MARGIN_BYTES)


def reserve_for(state_bytes: int) -> int:
    """The reserve of a guard whose agents must save `state_bytes`."""
    return min(max(LEAST_RESERVE_BYTES, state_bytes // _RESERVE_SHARE), _MOST_RESERVE_BYTES)


def default_limit(reserve_bytes: int, free: AvailableMemory) -> int:
    """The initial limit if the user gave none."""
    return max(free.free_bytes - margin_bytes(free) - reserve_bytes, LEAST_DEFAULT_BYTES)


def share_of(own: GuardRecord, others: Sequence[GuardRecord], free: AvailableMemory) -> int:
    """
    The limit of one of the guards that share the free memory: at least its usage.

    Args:
        own: the guard.
        others: all other guards whose limit follows the machine.
        free: current memory.
    """
    if others and all(each.stopped for each in others):
        # If this guard is stopped too, no guard will free memory. Then the guard that would lose
        # most runs. It may use half of the margin, because otherwise all guards would wait. It
        # keeps that memory while it runs. If the memory was taken back, the guard would stop again,
        # and then each in turn until nothing is left.
        kept = max(margin_bytes(free) // 2, own.reserve_bytes if own.agents else 0)
        runs = not own.stopped or max([own, *others], key=_priority) is own
        return own.used_bytes + (max(0, free.free_bytes - kept) if runs else 0)
    # A stopped guard needs no reserve any more, and leaves the free memory to running guards.
    spare = free.free_bytes - margin_bytes(free)
    spare -= sum(each.reserve_bytes for each in (own, *others) if not each.stopped)
    sharing = [own, *(each for each in others if not each.stopped)]
    # The smaller share goes to a guard without an agent, else to the one with the oldest rescue or
    # none, else to the largest.
    first = min(sharing, key=_priority) if len(sharing) > 1 else None
    weights = [_UNPROTECTED if each is first else _PROTECTED for each in sharing]
    return own.used_bytes + max(0, spare) * weights[0] // sum(weights)


def _priority(guard: GuardRecord) -> tuple[bool, float, int, int]:
    return guard.agents > 0, guard.saved_unix_s or 0.0, -guard.used_bytes, guard.pid


def check_sizes(limit: int | None, reserve: int | None, swap: int, free: AvailableMemory) -> None:
    """
    Refuse sizes that fit no program, or that the machine does not have.

    Args:
        limit, reserve, swap: bytes that the user asked for; None: not given.
        free: current memory of the machine, or of the enclosing container.

    Raises:
        UsageError: which size, why, and what to give instead.
    """
    for option, size in (("--limit", limit), ("--reserve", reserve), ("--swap", swap)):
        if size is not None and size > _MOST_BYTES:
            raise UsageError(f"{option} is more than any machine has.")
    if limit is not None and limit < LEAST_LIMIT_BYTES:
        raise UsageError(
            f"--limit {format_bytes(limit)} is too little for any program; "
            f"give {format_bytes(LEAST_LIMIT_BYTES)} at least."
        )
    if reserve is None:
        return
    what = f"--reserve {format_bytes(reserve)}"
    advice = "It is what a save may take besides: a quarter of the training's state is plenty."
    if reserve > free.total_bytes:
        raise UsageError(
            f"{what} is more than there is: {format_bytes(free.total_bytes)} in all. {advice}"
        )
    if limit is not None and reserve > max(limit, LEAST_RESERVE_BYTES):
        raise UsageError(f"{what} is more than --limit {format_bytes(limit)} itself. {advice}")
    left = free.free_bytes - margin_bytes(free) - reserve
    if limit is None and left < LEAST_DEFAULT_BYTES:
        raise UsageError(
            f"{what} leaves nothing for the program: {format_bytes(free.free_bytes)} are free. "
            f"{advice}"
        )


def warning(limit: int, reserve: int, free_bytes: int) -> str:
    """A line for a user whose limit exceeds the free memory; else empty."""
    if limit > free_bytes:
        return (
            f"only {format_bytes(free_bytes)} are free: if it needs more, the machine's own limit "
            "is met first, and that one kills. Without --limit it is stopped before"
        )
    if limit + reserve > free_bytes:
        return (
            f"only {format_bytes(free_bytes)} are free: at its limit the reserve of "
            f"{format_bytes(reserve)} may not be there any more, and nothing could be saved with it"
        )
    return ""
