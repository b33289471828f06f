"""
Pausing and resuming a whole task, the same on every system.

A pause stops the processes that the caller names and everything that descends
from them, and nothing else: never watchdog itself or what it runs under (so
never the shell of a task: that is its parent), never another user's process,
never a thread of the kernel, never another task or a shell that somebody types
in. Every process is identified anew, by pid and start time, in the moment it is
signalled.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence

from watchdog_app.base.errors import ActionError
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.process_control.paused import Paused, Resumed

__all__ = ["Paused", "Resumed", "family", "pause", "resume", "stopping"]

_LINUX: bool = sys.platform.startswith("linux")
if _LINUX:  # here, not at the first pause: memory is short by then, and the disk busy
    from watchdog_app.base.linux.process import stop_pending
    from watchdog_app.machine.process_control import linux


def pause(
    members: Sequence[ProcessKey],
    *,
    own_pids: Collection[int] | None = None,
    own_uid: int | None = None,
    others: Collection[ProcessKey] = (),
    proc: str = "/proc",
) -> Paused:
    """
    Stop a task and everything that descends from it.

    Args:
        members: the task's processes, root first.
        own_pids: never to be stopped besides this process and all it runs under.
        own_uid: whose processes may be stopped; None: this process' user.
        others: roots of other tasks; they and what descends from them go on.
        proc: where proc is mounted (Linux).

    Returns:
        What was stopped. Empty `keys` when all of it was stopped already.

    Raises:
        ActionError: there are no members.
        TargetGone: the root has ended, or its pid is another process by now.
        TargetDenied: the root is not ours to stop. Nothing is left half stopped.
    """
    if not members:
        raise ActionError("There is nothing to pause: the task has no processes.")
    now = time.time()
    protected = frozenset(own_pids or ())
    uid = _uid() if own_uid is None else own_uid
    if _LINUX:
        return linux.pause(members, protected, uid, now, proc, others=others)
    from watchdog_app.machine.process_control import psutil

    return psutil.pause(members, protected, uid, now, others)


def family(
    members: Sequence[ProcessKey],
    *,
    others: Collection[ProcessKey] = (),
    proc: str = "/proc",
) -> list[tuple[ProcessKey, bool]]:
    """
    Whom `pause` would look at, root first, each with whether it is stopped already.

    Args:
        members: the task's processes, root first.
        others: roots of other tasks; they and what descends from them are left out.
        proc: where proc is mounted (Linux).
    """
    if not members:
        return []
    if _LINUX:
        return linux.family(members, others, proc)
    from watchdog_app.machine.process_control import psutil

    return psutil.family(members, others)


def stopping(key: ProcessKey, *, proc: str = "/proc") -> bool:
    """
    Whether it was sent a stop that it has not come to yet (Linux).

    It waits in the kernel, or its group is frozen: in cgroup v2 that looks like sleep.

    Args:
        key: the process.
        proc: where proc is mounted.
    """
    return _LINUX and stop_pending(key.pid, proc)


def resume(paused: Paused, *, proc: str = "/proc") -> Resumed:
    """
    Let a paused task run again: the very processes that were stopped, last stopped first.

    Children run before their parents, so that no parent finds its workers missing. Processes
    that have ended since, or that somebody else resumed, are told and are no error.

    Args:
        paused: what `pause` returned, in this daemon or an earlier one.
        proc: where proc is mounted (Linux).

    Raises:
        TargetDenied: the system refused to resume some; all others run again.
    """
    if _LINUX and paused.method != "psutil":
        return linux.resume(paused, proc)
    from watchdog_app.machine.process_control import psutil

    return psutil.resume(paused)


def _uid() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows knows no such number
