"""
Pause and resume where there is neither /proc nor pidfd: macOS, Windows, the BSDs.

psutil compares creation times before it signals. There the start time of a
`ProcessKey` is microseconds of the epoch, as the sensors read it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from watchdog_app.base.errors import ActionError, TargetDenied, TargetGone
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.process_control.paused import Paused, Resumed

if TYPE_CHECKING:
    import psutil

_ROUNDS = 20  # see stop_linux


def pause(
    members: Sequence[ProcessKey],
    protected: Collection[int],
    own_uid: int,
    at_unix_s: float,
    others: Collection[ProcessKey] = (),
) -> Paused:
    """See `processes.pause`."""
    import psutil

    if not members:
        raise ActionError("There is nothing to pause: the task has no processes.")
    me = psutil.Process()
    untouchable = {0, 1, os.getpid(), *protected, *(parent.pid for parent in me.parents())}
    gone = TargetGone(f"Process {members[0].pid} has ended; there is nothing to pause.")
    root = _find(members[0])
    if root is None:
        raise gone
    try:
        allowed = _allowed(root, untouchable, own_uid)
    except psutil.NoSuchProcess:
        raise gone from None
    if not allowed:
        raise TargetDenied(
            f"Process {root.pid} was not paused: it belongs to another user, "
            "or watchdog runs in it or under it."
        )
    found = _Found({}, {}, {})
    try:
        for _ in range(_ROUNDS):
            if not _round(members, untouchable, own_uid, found, others):
                break
    except psutil.AccessDenied as error:
        for process in reversed(found.stopped.values()):
            _quietly_resume(process)
        raise TargetDenied(f"The system refused to pause process {root.pid}.") from error
    if not found.stopped and not found.already:
        raise gone
    return Paused(
        tuple(found.stopped), "psutil", at_unix_s, tuple(found.already), tuple(found.skipped)
    )


def resume(paused: Paused) -> Resumed:
    """See `processes.resume`."""
    import psutil

    resumed, gone, running, denied = [], [], [], []
    for key in reversed(paused.keys):
        process = _find(key)
        try:
            if process is None:
                gone.append(key)
            elif process.status() != psutil.STATUS_STOPPED:
                running.append(key)
            else:
                process.resume()
                resumed.append(key)
        except psutil.NoSuchProcess:
            gone.append(key)
        except psutil.AccessDenied:
            denied.append(key)
    if denied:
        pids = " ".join(str(key.pid) for key in denied)
        raise TargetDenied(f"The system refused to resume process {pids}. It stays paused.")
    return Resumed(tuple(resumed), tuple(gone), tuple(running))


class _Found(NamedTuple):
    stopped: dict[ProcessKey, psutil.Process]  # in this order
    already: dict[ProcessKey, None]
    skipped: dict[ProcessKey, None]


def _round(
    members: Sequence[ProcessKey],
    untouchable: Collection[int],
    own_uid: int,
    found: _Found,
    others: Collection[ProcessKey],
) -> bool:
    """Stop who is not stopped yet; False when nobody new was found."""
    import psutil

    fresh = False
    for member in members:
        for process in _family(member, others):
            try:
                key = _key(process)
                if any(key in known for known in found):
                    continue
                fresh = True
                if not _allowed(process, untouchable, own_uid):
                    found.skipped[key] = None
                elif process.status() == psutil.STATUS_STOPPED:
                    found.already[key] = None
                else:
                    process.suspend()
                    found.stopped[key] = process
            except psutil.NoSuchProcess:
                continue
    return fresh


def family(
    members: Sequence[ProcessKey], others: Collection[ProcessKey] = ()
) -> list[tuple[ProcessKey, bool]]:
    """See `processes.family`."""
    import psutil

    found: dict[ProcessKey, bool] = {}
    for member in members:
        for process in _family(member, others):
            try:
                found[_key(process)] = process.status() == psutil.STATUS_STOPPED
            except psutil.Error:
                continue
    return list(found.items())


def _family(key: ProcessKey, others: Collection[ProcessKey]) -> list[psutil.Process]:
    import psutil

    root = _find(key)
    if root is None or key in others:
        return []
    found, left_out = [root], set()
    try:
        for child in root.children(recursive=True):  # parents before their children
            try:
                if child.ppid() in left_out or _key(child) in others:
                    left_out.add(child.pid)
                else:
                    found.append(child)
            except psutil.Error:
                continue
    except psutil.NoSuchProcess:
        return []
    return found


def _find(key: ProcessKey) -> psutil.Process | None:
    import psutil

    try:
        process = psutil.Process(key.pid)
        return process if _key(process) == key else None
    except psutil.NoSuchProcess:
        return None


def _key(process: psutil.Process) -> ProcessKey:
    return ProcessKey(process.pid, int(process.create_time() * 1e6))


def _allowed(process: psutil.Process, untouchable: Collection[int], own_uid: int) -> bool:
    if process.pid in untouchable:
        return False
    if not hasattr(process, "uids"):  # Windows: a process of another user refuses to be opened
        return True
    return set(process.uids()) == {own_uid}


def _quietly_resume(process: psutil.Process) -> None:
    import psutil

    try:
        process.resume()
    except psutil.Error:
        pass  # gone, or refused: it was just suspended by us, so there is nothing more to try
