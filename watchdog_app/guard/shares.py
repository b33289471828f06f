"""
How much a guard may hold that was given no limit: a share of what the machine has left.

A guard without a limit of its own follows the machine: it may hold what it holds and its share of
what is still free, less a margin for everything else and the reserves of all such guards. Nobody
can starve another: whoever grows takes from the free memory alone, and every guard has a share of
what is left. Who has least to lose by being held gets the smaller share and is held first.
"""

from __future__ import annotations

import os

from watchdog_app.base.linux.cgroups import room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final

_MIB = 1 << 20
LEAST_RESERVE_BYTES: Final = 256 * _MIB
_MOST_RESERVE_BYTES = 2048 * _MIB
_RESERVE_SHARE = 4  # of the state that has to be saved
_MARGIN_SHARE = 16  # of the machine or the group around: for desktop, page cache, the kernel
_LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 24 * _MIB, 2048 * _MIB
_PROTECTED, _UNPROTECTED = 3, 1  # shares of what is free


class Free:
    """What can be had, of how much: by the machine or by the tightest group around."""

    __slots__ = ("free_bytes", "total_bytes")

    def __init__(self, free_bytes: int, total_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes

    @property
    def margin_bytes(self) -> int:
        """What is left to everybody else."""
        share = self.total_bytes // _MARGIN_SHARE
        return min(max(share, _LEAST_MARGIN_BYTES), _MOST_MARGIN_BYTES)


class Holder:
    """
    A guard that follows the machine.

    `saved_unix_s`: of its newest rescue; None: it has none. `held`: it stands still, and its rescue
    is saved or cannot be.
    """

    __slots__ = ("agents", "held", "held_bytes", "key", "reserve_bytes", "saved_unix_s")

    def __init__(  # noqa: PLR0917 - a row of figures
        self,
        key: str,
        held_bytes: int,
        reserve_bytes: int,
        saved_unix_s: float | None,
        agents: int = 0,
        held: bool = False,
    ) -> None:
        self.key = key
        self.held_bytes = held_bytes
        self.reserve_bytes = reserve_bytes
        self.saved_unix_s = saved_unix_s
        self.agents = agents
        self.held = held


def limit_of(key: str, guards: Sequence[Holder], free: Free) -> int:
    """
    The limit of one of `guards` that share what is free: at least what it holds.

    Args:
        key: whose.
        guards: all that follow the machine, this one among them.
        free: now.
    """
    own = next(guard for guard in guards if guard.key == key)
    others = [guard for guard in guards if guard.key != key]
    if others and all(guard.held for guard in others):
        # If this one is held too nothing will be given back: the one that would lose most goes on,
        # and may use of the margin what would otherwise keep everybody waiting. It keeps that as
        # it runs: taken back, it would be held again, and so each in turn until nothing is left.
        kept = max(free.margin_bytes // 2, own.reserve_bytes if own.agents else 0)
        goes_on = not own.held or max(guards, key=_protection).key == key
        return own.held_bytes + (max(0, free.free_bytes - kept) if goes_on else 0)
    # Who stands still needs no reserve any more, and leaves what is free to those who run.
    spare = free.free_bytes - free.margin_bytes
    spare -= sum(guard.reserve_bytes for guard in guards if not guard.held)
    sharing = [guard for guard in guards if guard.key == key or not guard.held]
    first = least_protected(sharing).key if len(sharing) > 1 else None
    weights = {guard.key: _UNPROTECTED if guard.key == first else _PROTECTED for guard in sharing}
    return own.held_bytes + max(0, spare) * weights[key] // sum(weights.values())


def least_protected(guards: Sequence[Holder]) -> Holder:
    """Without an agent before with; then the oldest rescue, or none; then the largest."""
    return min(guards, key=_protection)


def _protection(guard: Holder) -> tuple[bool, float, int, str]:
    return guard.agents > 0, guard.saved_unix_s or 0.0, -guard.held_bytes, guard.key


def reserve_for(state_bytes: int) -> int:
    """The reserve of a guard whose agents have so much to save."""
    return min(max(LEAST_RESERVE_BYTES, state_bytes // _RESERVE_SHARE), _MOST_RESERVE_BYTES)


def free_now(group: str | None, proc: str = "/proc") -> Free:
    """
    What the machine has left, or the tightest limited group around the guard.

    Args:
        group: folder of the guard itself, whose limit does not count; None: the machine alone.
        proc: where proc is mounted.
    """
    found = room(os.path.dirname(group) if group else None, proc)
    return Free(found.free_bytes, found.total_bytes)
