"""
Pause and resume on Linux: open a pidfd, compare the start time, then send the signal.

If a task is alone in its cgroup, watchdog first freezes the cgroup. All processes then stop at one
instant, so no process can escape by forking between two signals. The freeze is only a barrier.
While it lasts, every process gets SIGSTOP; then watchdog lifts it.

Hence a pause always shows as state T, `kill -CONT` always undoes it, and it outlives the daemon. No
frozen cgroup v1 task is left behind, which not even SIGKILL could end.

Watchdog does not touch a cgroup that another program has frozen, nor the cgroup of a guard. The
guard's supervisor freezes its cgroup at the limit. Thawing it would let the training run on until
the kernel kills it. In both cases watchdog only sends SIGSTOP, which takes effect after the thaw.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Sequence
from enum import Enum

from watchdog_app.base.errors import ActionError, SensorError, TargetDenied, TargetGone
from watchdog_app.base.linux.cgroups import Group, group_folder, memberships, parse_mountinfo
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import (
    Stat,
    ancestors,
    descendants,
    is_interactive_shell,
    pending_signals,
    read_stat,
    read_uids,
)
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.readings import is_guard

# Each parent stops before its children are listed, so a round finds only children that were forked
# earlier. Two rounds are usual. A tree that still grows after this many rounds forks faster than
# watchdog can stop it.
_ROUNDS = 20
_STOP_WAIT_S = (
    0.25  # a process in a system call stops when the call returns; a disk write may take longer
)
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Paused:
    """
    What a pause did, and everything that undoing it needs; kept across a restart of the daemon.

    `keys` holds the processes that this pause stopped, in the order of stopping. It leaves out
    processes that were stopped before. Their user paused them, so no resume of watchdog may
    continue them.
    """

    keys: tuple[ProcessKey, ...]
    method: str  # "freezer" (all at one instant), "sigstop" or "psutil"
    at_unix_s: float


class _SendResult(Enum):
    DONE = "done"
    NOT_NEEDED = "not needed"  # already stopped, or already running
    GONE = "gone"
    DENIED = "denied"


def pause(
    members: Sequence[ProcessKey],
    *,
    own_uid: int | None = None,
    others: Collection[ProcessKey] = (),
) -> Paused:
    """
    Stop a task and all its descendants.

    Args:
        members: the task's processes, root first.
        own_uid: only this user's processes are stopped; None: the user of this process.
        others: roots of other tasks; these and their descendants keep running.

    Returns:
        The processes that were stopped. `keys` is empty if all of them were stopped before.

    Raises:
        ActionError: `members` is empty.
        TargetGone: the root has ended, or its pid now belongs to another process.
        TargetDenied: watchdog may not stop the root. Every process that it stopped runs again.
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
        for key in reversed(pauser.stopped):  # do not leave the task half stopped
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
    List the processes that `pause` would consider, root first, each with whether it is stopped.

    Args:
        members: the task's processes, root first.
        others: roots of other tasks; these and their descendants are left out.
    """
    if not members:
        return []
    # The caller waits for this list before its first signal. So read only the family, not all of
    # /proc.
    found = descendants(
        _key_pairs(_own_members(members, others)), others=_key_pairs(others), quick=True
    )
    return [(ProcessKey(*each.key), each.state in "Tt") for each in found if not each.has_ended]


def is_stopping(key: ProcessKey) -> bool:
    """
    Return whether a stop signal is pending for the process.

    The process waits in the kernel, or its cgroup is frozen. In cgroup v2 a frozen process shows as
    sleeping.
    """
    return _stop_pending(key.pid)


def resume(paused: Paused) -> tuple[ProcessKey, ...]:
    """
    Continue the processes that `pause` stopped, last stopped first.

    Children continue before their parents, so that no parent finds its workers missing. A process
    that has ended or that another program has continued is left out of the result. It is not an
    error.

    Args:
        paused: what `pause` returned, in this daemon or an earlier one.

    Returns:
        The processes that run again, in the order in which they were resumed.

    Raises:
        TargetDenied: the system refused to resume some processes; all others run again.
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
        self.stopped: list[ProcessKey] = []  # in the order of stopping
        self.found_stopped = False  # whether some process was stopped before this pause
        self._seen: set[ProcessKey] = set()

    def check_root(self) -> None:
        """Raise TargetGone or TargetDenied if the task as a whole may not be stopped."""
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
        """List the living members and stopped processes, and the living descendants of both."""
        # A stopped worker counts as a root. It stays in the tree when its parent ends and the
        # kernel gives it another parent.
        roots = _key_pairs((*self._members, *self.stopped))
        found = descendants(roots, others=_key_pairs(self._others))
        return [each for each in found if not each.has_ended]

    def stop_members(self) -> None:
        """
        Stop the processes that the caller named, without a walk of /proc.

        Reading all of /proc takes some milliseconds, in which a fast leak takes megabytes.
        """
        for key in self._members:
            now = _read_alive(key)
            if now is not None:
                self._stop_process(now)

    def stop_tree(self) -> None:
        """Stop parents before children, and list the tree again until no new process appears."""
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
    """Read this process again; None: it has ended."""
    stat = read_stat(key.pid)
    return None if stat is None or stat.start_ticks != key.start_time or stat.has_ended else stat


def _own_members(
    members: Sequence[ProcessKey], others: Collection[ProcessKey]
) -> Sequence[ProcessKey]:
    """Drop other tasks' roots and processes that a user started in a shell of the task."""
    root = members[0]
    return [
        root,
        *(
            key
            for key in members[1:]
            if key not in others and not _is_below_shell(key.pid, root.pid)
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
        # Compare the start time only now: the descriptor keeps naming this process, even if its pid
        # is given to another process.
        now = _read_alive(key)
        if now is None:
            return _SendResult.GONE
        # State t: a debugger has stopped the process. The signal takes effect when the debugger
        # releases it, so send it.
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
    Return whether a process runs and has no stop signal pending.

    A process that waits in the kernel (state D) may have a stop pending. A process that was stopped
    before its cgroup v1 group was frozen also shows state D.
    """
    return now.state in "RSI" and not _stop_pending(now.pid)


def _wait_until_stopped(keys: Sequence[ProcessKey]) -> None:
    """
    Wait until all processes show as stopped, 0.25 s at most; one in disk sleep stops on waking.
    """
    deadline = time.monotonic() + _STOP_WAIT_S
    for key in keys:
        while (now := _read_alive(key)) is not None and now.state not in "Tt":
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)


def _ended_error(key: ProcessKey) -> TargetGone:
    return TargetGone(f"Process {key.pid} has ended; there is nothing to pause.")


# A cgroup that memory.high throttles took 0.8 s to freeze on a 6.18 kernel. Waiting longer does not
# pay: a process in the middle of a disk write may take any time, and SIGSTOP works without the
# freeze.
_FREEZE_DEADLINE_S = 1.0


def freeze(group: Group) -> bool:
    """
    Freeze all processes of a cgroup.

    Returns:
        False if the kernel refuses or the freeze takes too long; it is then undone. Also False if
            another program has frozen the cgroup: watchdog must not thaw that.
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
    Find the cgroup that holds only this task and that this user may freeze; never a guard's.

    Args:
        pid: root of the task.
        tree: every pid of the task; a cgroup with any other process in it is refused.
    """
    paths = memberships(pid)
    mounts = read_or_empty(f"/proc/{pid}/mountinfo", 1 << 20)
    for hierarchy in parse_mountinfo(mounts, "freezer"):
        path = paths.get("freezer" if hierarchy.version == 1 else "")
        where = None if path is None else group_folder(hierarchy, path)
        if path is None or where is None or any(map(is_guard, path.split("/"))):
            continue
        group = Group(where, hierarchy.version)
        # The root of the hierarchy holds more than one task.
        if where == hierarchy.mount_point.rstrip("/") or not group.can_freeze():
            continue
        try:
            inside = set(group.pids())
        except SensorError:
            continue  # an unreadable cgroup may hold other processes
        if pid in inside and not any(_is_outsider(each, tree) for each in inside):
            return group
    return None


def _is_outsider(pid: int, tree: Collection[int]) -> bool:
    """Return whether a living process is outside the task; a fork younger than `tree` is inside."""
    if pid in tree:
        return False
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z" and ancestors(pid).isdisjoint(tree)


def _stop_pending(pid: int) -> bool:
    """Whether a SIGSTOP is pending for a process."""
    return bool(pending_signals(pid) >> (signal.SIGSTOP - 1) & 1)


def _is_below_shell(pid: int, root: int) -> bool:
    """
    Whether an interactive shell is between a process and its ancestor `root`.

    Args:
        pid: pid of the process.
        root: root pid of the process's task.
    """
    seen = {0, 1, root}
    while pid not in seen:
        seen.add(pid)
        stat = read_stat(pid)
        if stat is None:
            return False
        if is_interactive_shell(stat):
            return root in ancestors(pid)
        pid = stat.ppid
    return False
