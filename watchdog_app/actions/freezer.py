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

Source: kernel, Documentation/admin-guide/cgroup-v2.rst (cgroup.freeze,
cgroup.events) and cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from watchdog_app.base.linux.process import ancestors, read_stat
from watchdog_app.core.model.readings import in_airbag

# A group that memory.high throttles took 0.8 s to freeze on a 6.18 kernel. Longer is not worth
# waiting for: a process in the middle of a disk write may take any time, SIGSTOP works without.
_FREEZE_DEADLINE_S = 1.0
_POLL_S = 0.005


class Freezer(NamedTuple):
    """A group that can be frozen: its folder and which kind of file does it."""

    folder: str
    version: int

    def freeze(self, clock: Callable[[], float] = time.monotonic) -> bool:
        """
        Stop everyone in it; False when that is refused or takes too long, and is undone.

        False as well where somebody else has frozen it, which is not ours to end.
        """
        try:
            if not self._thawed():
                return False
        except OSError:
            return False
        try:
            self._write(frozen=True)
            deadline = clock() + _FREEZE_DEADLINE_S
            while not self._frozen():
                if clock() > deadline:
                    self.thaw()
                    return False
                time.sleep(_POLL_S)
        except OSError:
            self.thaw()
            return False
        return True

    def thaw(self) -> None:
        """Let everyone in it run; a group that is gone needs none of it."""
        try:
            self._write(frozen=False)
        except OSError:
            pass  # removed with its last process, or the write that froze it was refused as well

    def _write(self, frozen: bool) -> None:
        if self.version == 2:
            _put(f"{self.folder}/cgroup.freeze", b"1" if frozen else b"0")
        else:
            _put(f"{self.folder}/freezer.state", b"FROZEN" if frozen else b"THAWED")

    def _thawed(self) -> bool:
        """Nobody has frozen it, nor a group above it, nor is about to."""
        if self.version == 2:
            return _get(f"{self.folder}/cgroup.freeze").strip() == b"0" and not self._frozen()
        return _get(f"{self.folder}/freezer.state").strip() == b"THAWED"

    def _frozen(self) -> bool:
        if self.version == 2:
            return b"frozen 1" in _get(f"{self.folder}/cgroup.events")
        return _get(f"{self.folder}/freezer.state").strip() == b"FROZEN"


def freezer_of(pid: int, tree: Collection[int], proc: str = "/proc") -> Freezer | None:
    """
    The group that holds the task and nobody else, where this user may freeze it; no airbag's.

    Args:
        pid: root of the task.
        tree: every pid of the task; a group with anyone else in it is refused.
        proc: where proc is mounted.
    """
    try:
        memberships = _get(f"{proc}/{pid}/cgroup").decode(errors="surrogateescape").splitlines()
        mounts = _get(f"{proc}/{pid}/mountinfo").decode(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for version, mount_root, mount_point in _hierarchies(mounts):
        path = _path_in(memberships, version)
        if path is None or path == "/" or ".." in path.split("/"):
            continue
        if any(map(in_airbag, path.split("/"))):
            continue
        if mount_root not in ("/", "") and path.startswith(mount_root):
            path = path[len(mount_root) :]  # a container sees a part of the tree as the whole
        folder = mount_point + path.rstrip("/")
        control = "cgroup.freeze" if version == 2 else "freezer.state"
        if not path.strip("/") or not os.access(f"{folder}/{control}", os.W_OK):
            continue
        inside = _pids_below(folder)
        if pid in inside and not any(_stranger(each, tree, proc) for each in inside):
            return Freezer(folder, version)
    return None


def _stranger(pid: int, tree: Collection[int], proc: str) -> bool:
    """Whether it is none of the task; who was forked since `tree` was read, or is gone, is not."""
    if pid in tree:
        return False
    stat = read_stat(pid, proc)
    return stat is not None and stat.state != "Z" and ancestors(pid, proc).isdisjoint(tree)


def _hierarchies(mountinfo: list[str]) -> list[tuple[int, str, str]]:
    """(version, root, mount point) of cgroup v2 and of the v1 freezer; proc(5), mountinfo."""
    found = []
    for line in mountinfo:
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            found.append((2, fields[3], _unescape(fields[4])))
        elif kind[0] == "cgroup" and "freezer" in kind[2].split(","):
            found.append((1, fields[3], _unescape(fields[4])))
    return found


def _path_in(memberships: list[str], version: int) -> str | None:
    """Path of the group within its hierarchy; /proc/PID/cgroup, cgroups(7)."""
    for line in memberships:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version == 2 and number == "0" and not controllers:
            return path
        if version == 1 and "freezer" in controllers.split(","):
            return path
    return None


def _pids_below(folder: str) -> set[int]:
    found: set[int] = set()
    for where, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                found.update(int(word) for word in _get(f"{where}/cgroup.procs").split())
            except OSError:
                # Unreadable is not empty: the first process is in nobody's task, so the group
                # is refused.
                found.add(1)
    return found


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _get(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _put(path: str, data: bytes) -> None:
    # One write(2): a buffered file would report a refusal only when it is closed, or not at all.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
