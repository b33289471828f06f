"""
Read and freeze control groups: their mounts, the group of a process, limits and usage.

Three layouts are in use: cgroup v1 with a hierarchy per controller, cgroup v2 (one tree), and
both, with each controller in one of them. In a container, paths in /proc/PID/cgroup can be
relative to a different root than the mount.

A read of /proc/PID/cgroup can wait for the cgroup_mutex, for minutes while memory is short. The
daemon therefore only reads it through `machine.sensors.groups`.

Sources: cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5); kernel,
Documentation/admin-guide/cgroup-v2.rst (memory interface files, cgroup.freeze, cgroup.events),
cgroup-v1/memory.rst and cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from watchdog_app.base.errors import Gone, SensorError, Unsupported
from watchdog_app.base.linux.files import (
    KeptFile,
    parse_mounts,
    parse_number,
    read_bytes,
    read_or_empty,
    write_bytes,
)
from watchdog_app.base.linux.process import status_bytes, status_words
from watchdog_app.base.records import dataclass

_USUAL_ROOT = "/sys/fs/cgroup"
# v1 writes "no limit" as PAGE_COUNTER_MAX: the largest signed number, rounded down to a page
# (4, 16 or 64 KiB). Kernels before 3.19 write the largest signed number itself.
_NO_LIMIT_V1 = (1 << 63) - (1 << 16)
_POLL_S = 0.002
# By version: files of usage, events and freezer, and the texts that freeze and thaw a group.
_FILES = {
    1: ("memory.usage_in_bytes", "memory.oom_control", "freezer.state", b"FROZEN", b"THAWED"),
    2: ("memory.current", "memory.events", "cgroup.freeze", b"1", b"0"),
}
_LIMITS = {
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    2: ("memory.max", "memory.high", "memory.swap.max"),
}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups."""

    version: int
    mount_point: str
    root: str = "/"  # path of the mounted group in /proc/PID/cgroup


def parse_mountinfo(data: bytes, controller: str = "memory") -> list[Hierarchy]:
    """
    Mounted trees that may contain a controller, in the order of /proc/PID/mountinfo.

    Args:
        data: content of that file.
        controller: cgroup v1 name of the controller.
    """
    found = []
    for mount in parse_mounts(data):
        of_v1 = mount.kind == "cgroup" and controller in mount.options
        if of_v1 or mount.kind == "cgroup2":
            found.append(Hierarchy(1 if of_v1 else 2, mount.point, mount.root))
    return found


def parse_membership(data: bytes) -> dict[str, str]:
    """Parse /proc/PID/cgroup: group path by controller; key "" is the cgroup v2 path."""
    found = {}
    for line in data.splitlines():
        number, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if colon and (controllers or number == b"0"):
            for name in controllers.split(b","):
                found[os.fsdecode(name)] = os.fsdecode(path)
    return found


def memberships(pid: int | str = "self", proc: str = "/proc") -> dict[str, str]:
    """
    The group paths of a process by controller; empty: no such process. It can wait for a lock.

    Args:
        pid: pid of the process; "self": this process.
        proc: mount point of the proc file system.
    """
    return parse_membership(read_or_empty(f"{proc}/{pid}/cgroup"))


def group_folder(hierarchy: Hierarchy, path: str) -> str | None:
    """
    Folder of a group in the file system; None: the mount does not contain the group.

    If the mount only contains an ancestor of the group, the nearest ancestor is returned, because
    its limits apply to the process as well.

    Args:
        hierarchy: hierarchy of the group.
        path: path of the group in /proc/PID/cgroup.
    """
    # The kernel appends this to the path of a removed group.
    path = path.removesuffix(" (deleted)")
    root = [part for part in hierarchy.root.split("/") if part]
    parts = [part for part in path.split("/") if part]
    if ".." in root:
        # The mount shows an ancestor of the namespace's root; the names between are unknown.
        shown = sum(part == ".." for part in root)
        hidden = sum(part == ".." for part in parts)
        return hierarchy.mount_point if hidden <= shown else None
    if ".." in parts:  # outside of this namespace, and so outside of this mount
        return None
    if parts[: len(root)] != root:
        # Docker without a cgroup namespace: the mount has the container's group as its root, but
        # its path in mountinfo and /proc/PID/cgroup can differ. Only a path below it is certain.
        return None
    return "/".join((hierarchy.mount_point.rstrip("/"), *parts[len(root) :])) or "/"


class Layout:
    """
    The mounted trees with the memory controller, v1 first.

    Args:
        hierarchies: the mounted trees.
    """

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies

    @classmethod
    def discover(cls, mountinfo: bytes, cgroup_root: str = _USUAL_ROOT) -> Layout:
        """
        Find the trees of this machine or container.

        Args:
            mountinfo: content of /proc/self/mountinfo; without cgroup mounts, the usual folders
                are tried.
            cgroup_root: folder that replaces /sys/fs/cgroup in mount points.
        """
        mounted = parse_mountinfo(mountinfo)
        if not mounted:
            mounted = [Hierarchy(1, f"{_USUAL_ROOT}/memory"), Hierarchy(2, _USUAL_ROOT)]
        found = []
        for each in mounted:
            point = each.mount_point
            if point == _USUAL_ROOT or point.startswith(f"{_USUAL_ROOT}/"):
                point = cgroup_root.rstrip("/") + point[len(_USUAL_ROOT) :]
            if _has_memory(each.version, point):
                found.append(Hierarchy(each.version, point, each.root))
        return cls(tuple(sorted(found, key=lambda hierarchy: hierarchy.version)))

    def locate(self, membership: bytes) -> str | None:
        """Folder of a process's memory group, from its /proc/PID/cgroup; None: no group."""
        paths = parse_membership(membership)
        for hierarchy in self.hierarchies:
            path = paths.get("memory" if hierarchy.version == 1 else "")
            found = group_folder(hierarchy, path) if path is not None else None
            if found is not None and os.path.isdir(found):
                return found
        return None

    def ancestors(self, group: str) -> list[tuple[str, int]]:
        """The group and its visible ancestors with their cgroup version, nearest first."""
        for hierarchy in self.hierarchies:
            top = hierarchy.mount_point.rstrip("/")
            if group == top or group.startswith(f"{top}/"):
                chain = []
                while len(group) >= len(top):
                    chain.append((group, hierarchy.version))
                    group = os.path.dirname(group)
                return chain
        return []


def _has_memory(version: int, mount_point: str) -> bool:
    if version == 1:
        return os.path.exists(f"{mount_point}/memory.usage_in_bytes")
    # The root of the v2 tree has no memory.current, so check its list of controllers.
    return b"memory" in read_or_empty(f"{mount_point}/cgroup.controllers").split()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a group. None: no limit of that kind."""

    memory_bytes: int | None = None
    high_bytes: int | None = None
    swap_bytes: int | None = None

    @property
    def any(self) -> bool:
        """Whether any limit is set. A mere swap limit matters for groups below."""
        return self != Limits()


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a group and all groups below it."""

    used_bytes: int
    inactive_file_bytes: int = 0
    active_file_bytes: int = 0
    swap_bytes: int | None = None  # None: no swap accounting
    oom_kills: int | None = None  # None: the kernel does not count them

    @property
    def held_bytes(self) -> int:
        """Used memory less the page cache, which the kernel can drop."""
        return max(0, self.used_bytes - self.inactive_file_bytes - self.active_file_bytes)


class Group:
    """
    One group. `read` keeps its files open until `close`.

    Args:
        path: folder of the group.
        version: cgroup version; None: found from the files.
    """

    def __init__(self, path: str, version: int | None = None) -> None:
        if version is None:
            version = 1 if os.path.exists(f"{path}/memory.usage_in_bytes") else 2
        self.path = path
        self.version = version
        usage, events, freezer, self._freeze_text, self._thaw_text = _FILES[version]
        self._usage = KeptFile(f"{path}/{usage}")
        self._stat = KeptFile(f"{path}/memory.stat")
        self._events = f"{path}/{events}"
        self._freezer = f"{path}/{freezer}"

    def limits(self) -> Limits:
        """The current limits; a missing file (as in the root group) means no limit."""
        names = _LIMITS[self.version]
        found = [parse_limit(read_or_empty(f"{self.path}/{name}", 64)) for name in names]
        if self.version == 2:
            return Limits(*found)
        memory, both = found
        swap = max(0, both - memory) if both is not None and memory is not None else None
        return Limits(memory, None, swap)

    def read(self) -> Usage:
        """
        The current memory use.

        Raises:
            Gone: the group was removed.
            Denied, Unsupported: the memory files are not readable or do not exist.
        """
        used = parse_number(self._usage.read(64).strip()) or 0
        kills = flat_value(read_or_empty(self._events, 512), b"oom_kill")
        stat = self._stat.read()
        # v1's usage_in_bytes includes the groups below, so use the total_ lines, which do too.
        prefix = b"total_" if self.version == 1 else b""
        inactive = flat_value(stat, prefix + b"inactive_file")
        active = flat_value(stat, prefix + b"active_file")
        swap = flat_value(stat, b"total_swap")
        if self.version == 2:
            swap = parse_number(read_or_empty(f"{self.path}/memory.swap.current", 64).strip())
        return Usage(used, inactive or 0, active or 0, swap, kills)

    def close(self) -> None:
        """Close the files."""
        self._usage.close()
        self._stat.close()

    def pids(self, most_groups: int = 1 << 16, *, strict: bool = True) -> Iterator[int]:
        """
        The pids in the group and all groups below; 0: a process of another pid namespace.

        Args:
            most_groups: maximum number of groups to read.
            strict: raise if a group is unreadable; False: leave it out.

        Raises:
            Unsupported: a group is unreadable, or there are too many groups.
        """
        folders = [self.path]
        for path in folders:  # grows meanwhile
            if len(folders) > most_groups:
                raise Unsupported(f"{self.path} has too many groups below it to look at all.")
            try:
                listed = read_bytes(f"{path}/cgroup.procs", 1 << 18)
                with os.scandir(path) as entries:
                    folders += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
            except (SensorError, OSError) as error:
                if strict and not isinstance(error, Gone | FileNotFoundError):
                    raise Unsupported(f"{path} cannot be read: {error}") from error
                continue  # the group was removed
            yield from (int(word) for word in listed.split() if word.isdigit())

    def can_freeze(self) -> bool:
        """Whether this user may freeze the group."""
        return os.access(self._freezer, os.W_OK)

    def freeze(self, deadline_s: float, halted: Callable[[], bool] = lambda: False) -> bool:
        """
        Freeze all processes of the group.

        Args:
            deadline_s: longest wait.
            halted: returns whether the processes are stopped well enough, before the kernel
                reports the group as frozen.

        Returns:
            False: not all processes are frozen yet; `thaw` reverts the request.

        Raises:
            OSError: the kernel refused.
        """
        write_bytes(self._freezer, self._freeze_text)
        end_mono_s = time.monotonic() + deadline_s
        while not (self.is_frozen() or halted()):
            if time.monotonic() > end_mono_s:
                return False
            time.sleep(_POLL_S)
        return True

    def thaw(self) -> None:
        """Let all processes of the group run; a removed group is ignored."""
        with suppress(OSError):  # removed with its last process, or not frozen by this user
            write_bytes(self._freezer, self._thaw_text)

    def is_frozen(self) -> bool:
        """Whether all processes of the group are frozen."""
        if self.version == 1:
            return read_or_empty(self._freezer).strip() == self._freeze_text
        return flat_value(read_or_empty(f"{self.path}/cgroup.events"), b"frozen") == 1

    def is_thawed(self) -> bool:
        """Whether neither the group nor an ancestor is frozen or about to be frozen."""
        return read_or_empty(self._freezer).strip() == self._thaw_text and not self.is_frozen()


def read_usage(path: str, version: int | None = None) -> Usage:
    """
    Read the memory use of a group once; all zero if unreadable.

    Args:
        path: folder of the group.
        version: cgroup version; None: found from the files.
    """
    group = Group(path, version)
    try:
        return group.read()
    except SensorError:
        return Usage(0)
    finally:
        group.close()


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Free and total memory under the tightest limit."""

    free_bytes: int
    total_bytes: int
    group: str | None = None  # folder of the group with that limit; None: the machine's memory


def available_memory(group: str | None, proc: str = "/proc") -> AvailableMemory:
    """
    The memory that a process can still get: the least of the machine, a group and its ancestors.

    Args:
        group: folder of the process's group; None: only the machine.
        proc: mount point of the proc file system.
    """
    meminfo = b"\n" + read_or_empty(f"{proc}/meminfo")
    available = status_bytes(meminfo, b"MemAvailable") or 0
    found = [AvailableMemory(available, status_bytes(meminfo, b"MemTotal") or 0)]
    while group and os.path.exists(f"{group}/cgroup.procs"):
        limits = Group(group).limits()
        for limit in (limits.memory_bytes, limits.high_bytes):
            if limit is not None:
                free = max(0, limit - read_usage(group).held_bytes)
                found.append(AvailableMemory(free, limit, group))
        group = os.path.dirname(group)
    return min(found, key=lambda each: each.free_bytes)


def host_oom_kills(proc: str = "/proc") -> int | None:
    """Number of OOM kills of the machine since boot, in all groups; None: unknown."""
    return flat_value(read_or_empty(f"{proc}/vmstat"), b"oom_kill")


def group_oom_kills(folder: str) -> int | None:
    """
    Number of OOM kills in one memory group, without its children; None: no group, or no counter.

    Source: kernel, cgroup-v2.rst: memory.events also counts the groups below; memory.events.local
    (since 5.2) counts only the group.
    """
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):  # v2, v2, v1
        kills = flat_value(read_or_empty(f"{folder}/{name}"), b"oom_kill")
        if kills is not None:
            return kills
    return None


def oomd_kills(group: str) -> int | None:
    """
    Number of kills that systemd-oomd recorded on a group; None: no kills, or no such group.

    Source: systemd, src/oom/oomd-util.c, the extended attribute user.oomd_kill.
    """
    with suppress(AttributeError, OSError, ValueError):  # getxattr exists on Linux only
        return int(os.getxattr(group, "user.oomd_kill")) or None
    return None


def parse_limit(data: bytes) -> int | None:
    """Bytes of a limit file; None for `max`, v1's huge number or an invalid number."""
    value = parse_number(data.strip())
    return None if value is None or value >= _NO_LIMIT_V1 else value


def flat_value(data: bytes, name: bytes) -> int | None:
    """
    The number in one line of a flat file such as memory.stat; None: no such line.

    Args:
        data: content of the file.
        name: name at the start of the line.
    """
    words = status_words(b"\n" + data, name, b" ")
    return parse_number(words[0]) if words else None
