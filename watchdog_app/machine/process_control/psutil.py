"""
Pause and resume on systems without /proc and pidfd: macOS, the BSDs.

psutil compares creation times before it sends a signal. On these systems the start time of a
`ProcessKey` is in microseconds since the epoch, as the sensors read it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import psutil

from watchdog_app.base.errors import ActionError, TargetDenied, TargetGone
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.process_control.linux import Paused


def pause(
    members: Sequence[ProcessKey],
    *,
    own_uid: int | None = None,
    others: Collection[ProcessKey] = (),
) -> Paused:
    """
    Stop a task as `linux.pause` does. A child that starts during the pause keeps running.

    Args:
        members: the task's processes, root first.
        own_uid: only this user's processes are stopped; None: the user of this process.
        others: roots of other tasks.
    """
    if not members:
        raise ActionError("There is nothing to pause: the task has no processes.")
    at_unix_s = time.time()
    own_uid = os.getuid() if own_uid is None else own_uid
    above = (parent.pid for parent in psutil.Process().parents())
    untouchable = {0, 1, os.getpid(), *above}
    found = dict(_process_tree(members, others))
    root = found.get(members[0])
    stopped: list[ProcessKey] = []
    found_stopped = False
    try:
        if root is not None and not _may_pause(root, untouchable, own_uid):
            raise TargetDenied(
                f"Process {root.pid} was not paused: it belongs to another user, "
                "or watchdog runs in it or under it."
            )
        for key, process in found.items() if root is not None else ():
            with suppress(psutil.NoSuchProcess):
                if not _may_pause(process, untouchable, own_uid):
                    continue
                if process.status() == psutil.STATUS_STOPPED:
                    found_stopped = True
                else:
                    process.suspend()
                    stopped.append(key)
    except psutil.AccessDenied as error:
        # the refused pause is reported below; there is nothing else to try
        with suppress(TargetDenied):
            resume(Paused(tuple(stopped), "psutil", at_unix_s))
        raise TargetDenied(f"The system refused to pause process {members[0].pid}.") from error
    except psutil.NoSuchProcess:
        stopped, found_stopped = [], False
    if not stopped and not found_stopped:
        raise TargetGone(f"Process {members[0].pid} has ended; there is nothing to pause.")
    return Paused(tuple(stopped), "psutil", at_unix_s)


def resume(paused: Paused) -> tuple[ProcessKey, ...]:
    """Continue the processes of a pause, as `linux.resume` does."""
    resumed, denied = [], []
    for key in reversed(paused.keys):
        try:
            process = _open_process(key)
            if process.status() == psutil.STATUS_STOPPED:
                process.resume()
                resumed.append(key)
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            denied.append(key)
    if denied:
        pids = " ".join(str(key.pid) for key in denied)
        raise TargetDenied(f"The system refused to resume process {pids}. It stays paused.")
    return tuple(resumed)


def is_stopping(key: ProcessKey) -> bool:  # noqa: ARG001 - as on Linux
    """Return False: psutil does not show pending stop signals."""
    return False


def process_tree(
    members: Sequence[ProcessKey], *, others: Collection[ProcessKey] = ()
) -> list[tuple[ProcessKey, bool]]:
    """
    List the processes that `pause` would consider, as `linux.process_tree` does.

    Args:
        members: the task's processes, root first.
        others: roots of other tasks.
    """
    found = []
    for key, process in _process_tree(members, others):
        with suppress(psutil.Error):
            found.append((key, process.status() == psutil.STATUS_STOPPED))
    return found


def _process_tree(
    members: Sequence[ProcessKey], others: Collection[ProcessKey]
) -> Iterator[tuple[ProcessKey, psutil.Process]]:
    """Yield living members and their descendants, each once, without other tasks."""
    seen: set[int] = set()
    for member in members:
        try:
            root = _open_process(member)
            children = root.children(recursive=True)  # parents before their children
        except psutil.NoSuchProcess:
            continue
        left_out: set[int] = set()
        for process in (root, *children):
            with suppress(psutil.Error):
                key = _key(process)
                if key in others or process.ppid() in left_out:
                    left_out.add(process.pid)
                elif process.pid not in seen:
                    seen.add(process.pid)
                    yield key, process


def _open_process(key: ProcessKey) -> psutil.Process:
    """
    Open the process that has this pid and start time.

    Raises:
        psutil.NoSuchProcess: it has ended.
    """
    process = psutil.Process(key.pid)
    if _key(process) != key:
        raise psutil.NoSuchProcess(key.pid)
    return process


def _key(process: psutil.Process) -> ProcessKey:
    return ProcessKey(process.pid, int(process.create_time() * 1e6))


def _may_pause(process: psutil.Process, untouchable: Collection[int], own_uid: int) -> bool:
    return process.pid not in untouchable and set(process.uids()) == {own_uid}
