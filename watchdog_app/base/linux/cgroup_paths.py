"""
Which memory groups stand above a process: mounts and paths, pure but for one existence check.

Three layouts are in use: cgroup v1 with a memory hierarchy of its own, cgroup v2 (one tree), and
both at once. Then the memory controller is in one of them. In a container the paths of
/proc/PID/cgroup can be relative to another root than that of the mount.

Sources: cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_USUAL_ROOT = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups that can limit memory."""

    version: int
    mount_point: str
    root: str = "/"  # the group that is mounted there, as /proc/PID/cgroup names it


def _unescape(field: bytes) -> str:
    """A field of mountinfo: blanks, tabs, newlines and backslashes stand as octal."""
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)


def parse_mountinfo(data: bytes) -> list[Hierarchy]:
    """Mounted trees that may hold the memory controller, in the order of /proc/self/mountinfo."""
    found = []
    for line in data.splitlines():
        left, separator, right = line.partition(b" - ")
        mount, filesystem = left.split(), right.split()
        if not separator or len(mount) < 5 or len(filesystem) < 3:
            continue
        if filesystem[0] == b"cgroup2":
            found.append(Hierarchy(2, _unescape(mount[4]), _unescape(mount[3])))
        elif filesystem[0] == b"cgroup" and b"memory" in filesystem[2].split(b","):
            found.append(Hierarchy(1, _unescape(mount[4]), _unescape(mount[3])))
    return found


def parse_membership(data: bytes) -> dict[int, str]:
    """Path of the process's group by version (1: of the memory controller), of /proc/PID/cgroup."""
    found = {}
    for line in data.splitlines():
        fields = line.split(b":", 2)
        if len(fields) < 3:
            continue
        if fields[0] == b"0" and not fields[1]:
            found[2] = os.fsdecode(fields[2])
        elif b"memory" in fields[1].split(b","):
            found[1] = os.fsdecode(fields[2])
    return found


def folder(hierarchy: Hierarchy, path: str) -> str | None:
    """
    Folder of a group in the file system; None when the mount does not show that group.

    A group beyond what the mount shows is answered by the nearest ancestor that
    it does show: the limits there hold for the process just as well.
    """
    # The kernel adds this to the path of a group whose folder was removed.
    path = path.removesuffix(" (deleted)")
    root = [part for part in hierarchy.root.split("/") if part]
    parts = [part for part in path.split("/") if part]
    if ".." in root:
        # The mount shows an ancestor of our namespace's root; the names between are not known.
        shown = sum(part == ".." for part in root)
        hidden = sum(part == ".." for part in parts)
        return hierarchy.mount_point if hidden <= shown else None
    if ".." in parts:  # outside of our namespace, and of this mount with it
        return None
    if parts[: len(root)] != root:
        # Docker without a namespace: the mount shows the container's group as its root, but the
        # mount's name of it and the process's can differ. Only a path below it is certain.
        return None
    return "/".join((hierarchy.mount_point.rstrip("/"), *parts[len(root) :])) or "/"


def discover(mountinfo: bytes, cgroup_root: str) -> tuple[Hierarchy, ...]:
    """
    The mounted trees with the memory controller, v1 first.

    Args:
        mountinfo: /proc/self/mountinfo; without a cgroup in it the layout tells.
        cgroup_root: where the trees really are: a mount below /sys/fs/cgroup is looked for
            at the same place below this folder.
    """
    mounted = parse_mountinfo(mountinfo)
    if not mounted:
        mounted = [Hierarchy(1, f"{_USUAL_ROOT}/memory"), Hierarchy(2, _USUAL_ROOT)]
    found = []
    for hierarchy in mounted:
        point = hierarchy.mount_point
        if point == _USUAL_ROOT or point.startswith(f"{_USUAL_ROOT}/"):
            point = cgroup_root.rstrip("/") + point[len(_USUAL_ROOT) :]
        if _has_memory(hierarchy.version, point):
            found.append(Hierarchy(hierarchy.version, point, hierarchy.root))
    return tuple(sorted(found, key=lambda hierarchy: hierarchy.version))


def _has_memory(version: int, mount_point: str) -> bool:
    if version == 1:
        return os.path.exists(f"{mount_point}/memory.usage_in_bytes")
    # The root of the v2 tree has no memory.current; the controllers it can hand out tell.
    try:
        with open(f"{mount_point}/cgroup.controllers") as file:
            return "memory" in file.read().split()
    except OSError:
        return False


class GroupLocator:
    """Finds the folder of a process's memory group."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies

    def locate(self, membership: bytes) -> str | None:
        """Folder of the group that charges a process, of its /proc/PID/cgroup; None: no group."""
        paths = parse_membership(membership)
        for hierarchy in self.hierarchies:
            path = paths.get(hierarchy.version)
            found = folder(hierarchy, path) if path is not None else None
            if found is not None and os.path.isdir(found):
                return found
        return None

    def ancestors(self, group: str) -> list[tuple[str, int]]:
        """The group and all above it that we can see, with their version, nearest first."""
        for hierarchy in self.hierarchies:
            top = hierarchy.mount_point.rstrip("/")
            if group == top or group.startswith(f"{top}/"):
                chain = []
                while len(group) >= len(top):
                    chain.append((group, hierarchy.version))
                    group = os.path.dirname(group)
                return chain
        return []
