"""
Stopping a whole memory-and-process group at one instant (Linux control groups).

Used only where a task sits alone in a group of its own: nobody else is
touched, and no process can fork its way out between two signals. The freeze
is a barrier, not the pause: while it holds, every process is sent SIGSTOP, and
then it is lifted. So a pause always shows as state T, `kill -CONT` always
undoes it, it outlives the daemon, and no frozen cgroup v1 task, which not even
SIGKILL can end, is left behind.

A group that somebody else has frozen is left to them, and so is every airbag's:
its keeper freezes it at its limit, and lifting that would let it run on to
where the kernel kills. There SIGSTOP has to do; it takes effect after the thaw.
"""

from __future__ import annotations

from collections.abc import Collection

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.cgroups import Group, folder, memberships, parse_mountinfo
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import ancestors, read_stat
from watchdog_app.core.model.readings import is_guard

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


def freezer_of(pid: int, tree: Collection[int], proc: str = "/proc") -> Group | None:
    """
    The group that holds the task and nobody else, where this user may freeze it; no airbag's.

    Args:
        pid: root of the task.
        tree: every pid of the task; a group with anyone else in it is refused.
        proc: where proc is mounted.
    """
    paths = memberships(pid, proc)
    mounts = read_or_empty(f"{proc}/{pid}/mountinfo", 1 << 20)
    for hierarchy in parse_mountinfo(mounts, "freezer"):
        path = paths.get("freezer" if hierarchy.version == 1 else "")
        where = None if path is None else folder(hierarchy, path)
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
        if pid in inside and not any(_stranger(each, tree, proc) for each in inside):
            return group
    return None


def _stranger(pid: int, tree: Collection[int], proc: str) -> bool:
    """Whether it is none of the task; who was forked since `tree` was read, or is gone, is not."""
    if pid in tree:
        return False
    stat = read_stat(pid, proc)
    return stat is not None and stat.state != "Z" and ancestors(pid, proc).isdisjoint(tree)
