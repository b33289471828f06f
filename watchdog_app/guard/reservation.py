"""
Refuse memory before it is touched: set RLIMIT_DATA of every process under a guard, from outside.

A program reserves an array of three times the limit in an instant and fills it for seconds. While
it fills the array, the kernel cannot refuse memory any more. While it reserves the array, the
kernel can, and the program gets a MemoryError that it can handle. So each process may reserve its
current size, the guard's room, and some slack. The slack is for memory that is reserved but never
touched (stacks of threads).

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

_MOST_PROCESSES = 500  # at a time; a fork storm is stopped at the limit, not refused
_LEAST_SLACK_BYTES = 64 << 20
_MOST_SLACK_BYTES = 1 << 30
_SLACK_SHARE = 16
# Libraries make a thread per processor when they start. Each thread of OpenBLAS reserves 40 MiB
# when NumPy is imported; any other thread reserves its stack of 8 MiB.
_PROCESSOR_BYTES = 48 << 20
_MOST_LIMIT_SHARE = 2  # three times the limit is refused on any machine
_FROZEN_SLACK_BYTES = 4 << 20  # while everything further is refused: small objects still fit
_UNLIMITED_BYTES = 1 << 46


class ReservationLimit:
    """
    The limits on what the processes of one guard may reserve.

    It never widens limits that a program inherited or set itself, and it restores what it changed.
    """

    def __init__(self) -> None:
        # pid -> start time, our limit, soft limit before
        self._applied: dict[int, tuple[int, int, int]] = {}
        self._frozen = False

    def update(
        self, pids: Iterable[int], room_bytes: int, limit_bytes: int, reserve_bytes: int
    ) -> None:
        """
        Limit the reservations of each process to the guard's room plus slack.

        The slack includes the part of the reserve that may be given to end a step. If a request
        fits into that, stopping and saving the program is better than refusing.

        Args:
            pids: all processes in the guard.
            room_bytes: memory that the guard can still take.
            limit_bytes: of the guard.
            reserve_bytes: above the limit.
        """
        if not self._frozen:
            self._apply(pids, max(0, room_bytes) + slack_bytes(limit_bytes, reserve_bytes))

    def freeze(self, pids: Iterable[int]) -> None:
        """Refuse any growth of these processes, until `update` after `unfreeze`."""
        self._frozen = True
        self._apply(pids, _FROZEN_SLACK_BYTES)

    def unfreeze(self) -> None:
        """Let the next `update` widen the limits again."""
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
    """Bytes that may be reserved beyond the room; if they are used, the reserve covers them."""
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
            return known  # the program has set its own limit since: keep it
        else:
            # A child has inherited the limit that we set for its parent. The parent began with the
            # limit of `watchdog exec`.
            own = resource.getrlimit(resource.RLIMIT_DATA)[0]
            before = own if own == resource.RLIM_INFINITY else min(own, soft)
        wanted = statm.data_bytes + more_bytes
        for most in (before, hard):
            if most != resource.RLIM_INFINITY:
                wanted = min(wanted, most)
        resource.prlimit(pid, resource.RLIMIT_DATA, (wanted, hard))
    except (OSError, ValueError):
        return None  # it has ended, or belongs to another user by set-uid
    return began, wanted, before
