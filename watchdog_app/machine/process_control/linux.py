"""
Pause and resume on Linux: pidfd first, then start time, then the signal.

Where a task sits alone in a group of its own, all of it is stopped at one instant first: no process
can fork its way out between two signals. The freeze is a barrier, not the pause: while it holds,
every process is sent SIGSTOP, and then it is lifted. So a pause always shows as state T, `kill
-CONT` always undoes it, it outlives the daemon, and no frozen cgroup v1 task, which not even
SIGKILL can end, is left behind.

A group that somebody else has frozen is left to them, and so is every guard's: its supervisor
freezes it at its limit, and lifting that would let it run on to where the kernel kills. There
SIGSTOP has to do; it takes effect after the thaw.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from watchdog_app.base.errors import ActionError, SensorError, TargetDenied, TargetGone
from watchdog_app.base.linux.cgroups import Group, group_folder, memberships, parse_mountinfo
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import (
    Stat,
    ancestors,
    descendants,
    is_below_shell,
    read_stat,
    read_uids,
    stop_pending,
)
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.readings import is_guard

# A parent stops before its children are looked up, so each round can only find what was forked
# before: two rounds are the rule. A tree that still grows after this many forks faster than that.
_ROUNDS = 20
_STOP_WAIT_S = (
    0.25  # a process in a system call stops when that returns; a disk write may take longer
)
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Paused:
    """
    What a pause did, and all that undoing it needs; kept over a restart of the daemon.

    `keys` holds the processes that this pause stopped, in that order. Those that were stopped
    before are not among them: they are their user's pause, and no resume of ours ends it.
    """

    keys: tuple[ProcessKey, ...]
    method: str  # "freezer" (all at one instant), "sigstop" or "psutil"
    at_unix_s: float


class _SendResult(Enum):
    DONE = "done"
    NOT_NEEDED = "not needed"  # stopped already, or running already
    GONE = "gone"
    DENIED = "denied"


def pause(
    members: Sequence[ProcessKey],
    *,
    own_uid: int | None = None,
    others: Collection[ProcessKey] = (),
) -> Paused:
    """
    Stop a task and everything that descends from it.

    Args:
        members: the task's processes, root first.
        own_uid: whose processes may be stopped; None: this process' user.
        others: roots of other tasks; they and what descends from them go on.

    Returns:
        What was stopped. Empty `keys` when all of it was stopped already.

    Raises:
        ActionError: there are no members.
        TargetGone: the root has ended, or its pid is another process by now.
        TargetDenied: the root is not ours to stop. Nothing is left half stopped.
    """
    if not members:
        raise ActionError("There is nothing to pause: the task has no processes.")
    at_unix_s = time.time()
    members = _own_members(members, others)
    pauser = _Pauser(members, os.getuid() if own_uid is None else own_uid, others)
    pauser.check_root()
    freezer, frozen = None, False
    try:
        pauser.stop_members()
        freezer = find_freezer(members[0].pid, {each.pid for each in pauser.tree()})
        frozen = freezer is not None and freeze(freezer)
        pauser.stop_tree()
    except BaseException:
        for key in reversed(pauser.stopped):  # nothing is left half done
            _send_signal(key, signal.SIGCONT)
        raise
    finally:
        if frozen and freezer is not None:
            freezer.thaw()
    if not pauser.stopped and not pauser.found_stopped:
        raise _ended_error(members[0])
    _wait_until_stopped(pauser.stopped)
    return Paused(
        keys=tuple(pauser.stopped), method="freezer" if frozen else "sigstop", at_unix_s=at_unix_s
    )


def process_tree(
    members: Sequence[ProcessKey], *, others: Collection[ProcessKey] = ()
) -> list[tuple[ProcessKey, bool]]:
    """
    Whom `pause` would look at, root first, each with whether it is stopped already.

    Args:
        members: the task's processes, root first.
        others: roots of other tasks; they and what descends from them are left out.
    """
    if not members:
        return []
    # It is read before the first signal, so nothing else is read.
    found = descendants(
        _key_pairs(_own_members(members, others)), others=_key_pairs(others), quick=True
    )
    return [(ProcessKey(*each.key), each.state in "Tt") for each in found if not each.has_ended]


def is_stopping(key: ProcessKey) -> bool:
    """
    Whether it was sent a stop that it has not come to yet.

    It waits in the kernel, or its group is frozen: in cgroup v2 that looks like sleep.
    """
    return stop_pending(key.pid)


def resume(paused: Paused) -> tuple[ProcessKey, ...]:
    """
    Let a paused task run again: the very processes that were stopped, last stopped first.

    Children run before their parents, so that no parent finds its workers missing. Processes
    that have ended since, or that somebody else resumed, are told and are no error.

    Args:
        paused: what `pause` returned, in this daemon or an earlier one.

    Returns:
        Who runs again, in the order in which they were resumed.

    Raises:
        TargetDenied: the system refused to resume some; all others run again.
    """
    resumed: list[ProcessKey] = []
    denied: list[ProcessKey] = []
    for key in reversed(paused.keys):
        sent = _send_signal(key, signal.SIGCONT)
        if sent is _SendResult.DONE:
            resumed.append(key)
        elif sent is _SendResult.DENIED:
            denied.append(key)
    if denied:
        pids = " ".join(str(key.pid) for key in denied)
        raise TargetDenied(
            f"The system refused to resume process {pids}: it runs under another user by now. "
            f"It stays paused. Resume it as that user with: kill -CONT {pids}"
        )
    return tuple(resumed)


class _Pauser:
    """Stops the processes of one task and records which ones."""

    def __init__(
        self, members: Sequence[ProcessKey], own_uid: int, others: Collection[ProcessKey]
    ) -> None:
        self._members = members
        self._untouchable = {0, 1, *ancestors(os.getpid())}
        self._own_uid = own_uid
        self._others = others
        self.stopped: list[ProcessKey] = []  # in this order
        self.found_stopped = False  # somebody was stopped before
        self._seen: set[ProcessKey] = set()

    def check_root(self) -> None:
        """Raises TargetGone or TargetDenied where the task as a whole is not to be stopped."""
        key = self._members[0]
        root = _read_alive(key)
        if root is None:
            raise _ended_error(key)
        if key.pid in self._untouchable:
            raise TargetDenied(
                f"Process {key.pid} was not paused: watchdog runs in it or under it, and would "
                "stop itself. Start watchdog outside of it, for example in a terminal of its own."
            )
        if root.is_kernel_thread:
            raise TargetDenied(f"Process {key.pid} was not paused: it is a thread of the kernel.")
        if read_uids(key.pid) != {self._own_uid}:
            raise TargetDenied(
                f"Process {key.pid} was not paused: it belongs to another user. "
                "Ask that user, or the administrator."
            )

    def tree(self) -> list[Stat]:
        """Everyone alive who is named, descends from the named, or from who was stopped so far."""
        # A stopped worker counts as a root: it stays in the tree when its parent ends and the
        # kernel gives it another one.
        roots = _key_pairs((*self._members, *self.stopped))
        found = descendants(roots, others=_key_pairs(self._others))
        return [each for each in found if not each.has_ended]

    def stop_members(self) -> None:
        """
        Stop those that the caller knows, at once.

        Reading all of /proc takes some milliseconds, in which a fast leak takes megabytes.
        """
        for key in self._members:
            now = _read_alive(key)
            if now is not None:
                self._stop_process(now)

    def stop_tree(self) -> None:
        """Stop parents before children, and look again until nobody new has appeared."""
        for _ in range(_ROUNDS):
            fresh = [each for each in self.tree() if ProcessKey(*each.key) not in self._seen]
            if not fresh:
                return
            for each in fresh:
                self._stop_process(each)

    def _stop_process(self, each: Stat) -> None:
        key = ProcessKey(*each.key)
        self._seen.add(key)
        if (
            key.pid in self._untouchable
            or each.is_kernel_thread
            or read_uids(key.pid) != {self._own_uid}
        ):
            return
        sent = _send_signal(key, signal.SIGSTOP)
        if sent is _SendResult.DONE:
            self.stopped.append(key)
        elif sent is _SendResult.NOT_NEEDED:
            self.found_stopped = True
        elif sent is _SendResult.DENIED and key == self._members[0]:
            raise TargetDenied(
                f"The system refused to pause process {key.pid}. "
                "A security module or a container keeps watchdog from signalling it."
            )


def _key_pairs(keys: Collection[ProcessKey]) -> list[tuple[int, int]]:
    return [(key.pid, key.start_time) for key in keys]


def _read_alive(key: ProcessKey) -> Stat | None:
    """That very process as it is now; None: it has ended."""
    stat = read_stat(key.pid)
    return None if stat is None or stat.start_ticks != key.start_time or stat.has_ended else stat


def _own_members(
    members: Sequence[ProcessKey], others: Collection[ProcessKey]
) -> Sequence[ProcessKey]:
    """Those that are not another task's root, nor what somebody typed in a shell of its own."""
    root = members[0]
    return [
        root,
        *(
            key
            for key in members[1:]
            if key not in others and not is_below_shell(key.pid, root.pid)
        ),
    ]


def _send_signal(key: ProcessKey, number: signal.Signals) -> _SendResult:
    try:
        descriptor = os.pidfd_open(key.pid)
    except ProcessLookupError:
        return _SendResult.GONE
    except OSError:
        return _SendResult.DENIED
    try:
        # Only now: the descriptor holds this very process, whatever its pid becomes later.
        now = _read_alive(key)
        if now is None:
            return _SendResult.GONE
        # A debugger may hold it (t): the signal counts when it lets go.
        if now.state == "T" if number == signal.SIGSTOP else _is_running(now):
            return _SendResult.NOT_NEEDED
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return _SendResult.GONE
    except PermissionError:
        return _SendResult.DENIED
    finally:
        os.close(descriptor)
    return _SendResult.DONE


def _is_running(now: Stat) -> bool:
    """
    Whether it runs, and is not about to stop.

    One that waits in the kernel (D) may be on its way to stop; and so shows who had stopped before
    his group was frozen (cgroup v1).
    """
    return now.state in "RSI" and not stop_pending(now.pid)


def _wait_until_stopped(keys: Sequence[ProcessKey]) -> None:
    """Wait until all are seen to be stopped; one that sleeps in the disk stops when it wakes."""
    deadline = time.monotonic() + _STOP_WAIT_S
    for key in keys:
        while (now := _read_alive(key)) is not None and now.state not in "Tt":
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)


def _ended_error(key: ProcessKey) -> TargetGone:
    return TargetGone(f"Process {key.pid} has ended; there is nothing to pause.")


# A group that memory.high throttles took 0.8 s to freeze on a 6.18 kernel. Longer is not worth
# waiting for: a process in the middle of a disk write may take any time, SIGSTOP works without.
_FREEZE_DEADLINE_S = 1.0


def freeze(group: Group) -> bool:
    """
    Stop everyone in it; False when that is refused or takes too long, and is undone.

    False as well where somebody else has frozen it, which is not ours to end.
    """
    if not group.is_thawed():
        return False
    try:
        if group.freeze(_FREEZE_DEADLINE_S):
            return True
    except OSError:
        pass
    group.thaw()
    return False


def find_freezer(pid: int, tree: Collection[int]) -> Group | None:
    """
    The group that holds the task and nobody else, where this user may freeze it; no guard's.

    Args:
        pid: root of the task.
        tree: every pid of the task; a group with anyone else in it is refused.
    """
    paths = memberships(pid)
    mounts = read_or_empty(f"/proc/{pid}/mountinfo", 1 << 20)
    for hierarchy in parse_mountinfo(mounts, "freezer"):
        path = paths.get("freezer" if hierarchy.version == 1 else "")
        where = None if path is None else group_folder(hierarchy, path)
        if path is None or where is None or any(map(is_guard, path.split("/"))):
            continue
        group = Group(where, hierarchy.version)
        # The whole tree is nobody's own.
        if where == hierarchy.mount_point.rstrip("/") or not group.can_freeze():
            continue
        try:
            inside = set(group.pids())
        except SensorError:
            continue  # unreadable is not empty
        if pid in inside and not any(_is_outsider(each, tree) for each in inside):
            return group
    return None


def _is_outsider(pid: int, tree: Collection[int]) -> bool:
    """Whether it is none of the task; who was forked since `tree` was read, or is gone, is not."""
    if pid in tree:
        return False
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z" and ancestors(pid).isdisjoint(tree)
