"""
Refusing memory before it is touched: RLIMIT_DATA of every process under a guard, set from outside.

An array of three times the limit is reserved in an instant and filled for seconds. While it is
being filled nobody can refuse it any more; while it is being reserved the kernel can, and the
program gets a MemoryError that it can live with. So each process may reserve what it has, what
its guard has left, and some slack for what is reserved and never touched (stacks of threads).

Sources: getrlimit(2) RLIMIT_DATA (since Linux 4.7 private writable mappings too), prlimit(2),
proc(5) statm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress

from watchdog_app.base.linux.process import read_statm, start_time
from watchdog_app.guard.policy import MOST_OF_RESERVE

_MOST_PROCESSES = 500  # at a time; a storm of forks is held, not refused
_LEAST_SLACK_BYTES = 64 << 20
_MOST_SLACK_BYTES = 1 << 30
_SLACK_SHARE = 16
# Libraries make a thread for each processor in their first instant: one of OpenBLAS reserves
# 40 MiB as NumPy is imported, any other its stack of 8 MiB.
_PROCESSOR_BYTES = 48 << 20
_MOST_LIMIT_SHARE = 2  # three times the limit is refused on any machine
_FROZEN_SLACK_BYTES = 4 << 20  # when everything further is refused: small objects still fit
_UNLIMITED_BYTES = 1 << 46


class ReservationLimit:
    """
    The limits on what the processes of one guard may reserve.

    Limits that a program had, or gives itself, are never widened; what we set is taken back.
    """

    def __init__(self) -> None:
        self._applied: dict[int, tuple[int, int, int]] = {}  # by pid: start time, ours, soft before
        self._frozen = False

    def update(
        self, pids: Iterable[int], room_bytes: int, limit_bytes: int, reserve_bytes: int
    ) -> None:
        """
        Let each of them reserve what the guard has left, and what of the reserve it could be given
        to end a step, or else some slack. What fits so is better held and saved than refused.

        Args:
            pids: everyone in the guard.
            room_bytes: what the guard can still hold.
            limit_bytes: of the guard.
            reserve_bytes: above it.
        """
        if not self._frozen:
            self._apply(pids, max(0, room_bytes) + slack_bytes(limit_bytes, reserve_bytes))

    def freeze(self, pids: Iterable[int]) -> None:
        """Refuse whatever is more than they have now, until `update` after `unfreeze`."""
        self._frozen = True
        self._apply(pids, _FROZEN_SLACK_BYTES)

    def unfreeze(self) -> None:
        """The next `update` widens the limits again."""
        self._frozen = False

    def lift(self, pids: Iterable[int]) -> None:
        """Remove the limits of these processes; children have inherited the earlier ones."""
        self._apply(pids, _UNLIMITED_BYTES)
        self.restore()

    def restore(self) -> None:
        """Restore the limits that the processes had before."""
        import resource

        for pid, (began, ours, before) in self._applied.items():
            with suppress(OSError, ValueError):
                soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
                if soft == ours and start_time(pid) == began:
                    resource.prlimit(pid, resource.RLIMIT_DATA, (before, hard))
        self._applied.clear()

    def _apply(self, pids: Iterable[int], more_bytes: int) -> None:
        limited = list(pids)[:_MOST_PROCESSES]
        found = {pid: _limit_process(pid, more_bytes, self._applied.get(pid)) for pid in limited}
        self._applied = {pid: each for pid, each in found.items() if each is not None}


def slack_bytes(limit_bytes: int, reserve_bytes: int) -> int:
    """What may be reserved beyond the room that is left: the reserve carries it, if it is used."""
    slack = min(max(limit_bytes // _SLACK_SHARE, _LEAST_SLACK_BYTES), _MOST_SLACK_BYTES)
    threads = min((os.cpu_count() or 1) * _PROCESSOR_BYTES, limit_bytes * _MOST_LIMIT_SHARE)
    return max(slack, threads, int(reserve_bytes * MOST_OF_RESERVE))


def limit_this_process(limit_bytes: int, reserve_bytes: int) -> None:
    """Limit this process, before it becomes the program and before a supervisor sees it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = limit_bytes + slack_bytes(limit_bytes, reserve_bytes)
    for most in (soft, hard):
        if most != resource.RLIM_INFINITY:
            wanted = min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _limit_process(
    pid: int, more_bytes: int, known: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    if sys.platform != "linux":
        return None
    import resource

    began = start_time(pid)
    statm = read_statm(pid)
    if began is None or statm is None:
        return None
    try:
        soft, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        if known is not None and known[0] == began and known[1] == soft:
            before = known[2]
        elif known is not None and known[0] == began:
            return known  # the program has set one of its own since: that one stands
        else:
            # A child has inherited what we had set its parent, which began with our exec's own.
            own = resource.getrlimit(resource.RLIMIT_DATA)[0]
            before = own if own == resource.RLIM_INFINITY else min(own, soft)
        wanted = statm.data_bytes + more_bytes
        for most in (before, hard):
            if most != resource.RLIM_INFINITY:
                wanted = min(wanted, most)
        resource.prlimit(pid, resource.RLIMIT_DATA, (wanted, hard))
    except (OSError, ValueError):
        return None  # gone, or another user's by set-uid
    return began, wanted, before
