"""
The reader of control groups: where they are mounted, which group charges a process, its figures.

It also freezes them. Three layouts are in use: cgroup v1 with a hierarchy for each controller,
cgroup v2 (one tree), and both at once. Then a controller is in one of them. In a container the
paths of /proc/PID/cgroup can be relative to another root than that of the mount.

A read of /proc/PID/cgroup can wait for the cgroup_mutex, for minutes while memory is short: the
daemon asks by `machine.sensors.groups` alone.

Sources: cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5); kernel,
Documentation/admin-guide/cgroup-v2.rst (memory interface files, cgroup.freeze, cgroup.events),
cgroup-v1/memory.rst and cgroup-v1/freezer-subsystem.rst.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from watchdog_app.base.errors import Gone, SensorError, Unsupported
from watchdog_app.base.linux.files import (
    KeptFile,
    parse_mounts,
    read_bytes,
    read_or_empty,
    write_bytes,
)
from watchdog_app.base.linux.process import parse_number, status_bytes, status_words

# The guard of a limit imports this: `typing` and `dataclasses` would cost it 1 MB each.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_USUAL_ROOT = "/sys/fs/cgroup"
# v1 has no word for "no limit": PAGE_COUNTER_MAX, the largest signed number cut to a whole page
# (4, 16 or 64 KiB). Older kernels (before 3.19) had the largest signed number itself.
_NO_LIMIT_V1 = (1 << 63) - (1 << 16)
_POLL_S = 0.002
# By version: usage, events and the freezer, with what stops everyone and what lets them run.
_FILES = {
    1: ("memory.usage_in_bytes", "memory.oom_control", "freezer.state", b"FROZEN", b"THAWED"),
    2: ("memory.current", "memory.events", "cgroup.freeze", b"1", b"0"),
}


class Hierarchy:
    """
    One mounted tree of groups.

    Attributes:
        root: the group that is mounted there, as /proc/PID/cgroup names it.
    """

    __slots__ = ("mount_point", "root", "version")

    def __init__(self, version: int, mount_point: str, root: str = "/") -> None:
        self.version = version
        self.mount_point = mount_point
        self.root = root


def parse_mountinfo(data: bytes, controller: str = "memory") -> list[Hierarchy]:
    """
    Mounted trees that may hold a controller, in the order of /proc/PID/mountinfo.

    Args:
        data: content of that file.
        controller: as cgroup v1 names it.
    """
    found = []
    for mount in parse_mounts(data):
        of_v1 = mount.kind == "cgroup" and controller in mount.options
        if of_v1 or mount.kind == "cgroup2":
            found.append(Hierarchy(1 if of_v1 else 2, mount.point, mount.root))
    return found


def parse_membership(data: bytes) -> dict[str, str]:
    """Path of a process's group by controller, of /proc/PID/cgroup; under "" that of cgroup v2."""
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
    The same of a process now; empty when it is gone. It can wait for a lock.

    Args:
        pid: of the process; "self": of this one.
        proc: where the proc file system is mounted.
    """
    return parse_membership(read_or_empty(f"{proc}/{pid}/cgroup"))


def group_folder(hierarchy: Hierarchy, path: str) -> str | None:
    """
    Folder of a group in the file system; None when the mount does not show that group.

    A group beyond what the mount shows is answered by the nearest ancestor that
    it does show: the limits there hold for the process just as well.

    Args:
        hierarchy: that the group is in.
        path: of the group, as /proc/PID/cgroup names it.
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


class Layout:
    """The mounted trees with the memory controller, v1 first."""

    def __init__(self, hierarchies: tuple[Hierarchy, ...]) -> None:
        self.hierarchies = hierarchies

    @classmethod
    def discover(cls, mountinfo: bytes, cgroup_root: str = _USUAL_ROOT) -> Layout:
        """
        The trees of this machine or container.

        Args:
            mountinfo: /proc/self/mountinfo; without a cgroup in it the layout tells.
            cgroup_root: where the trees really are: a mount below /sys/fs/cgroup is looked for
                at the same place below this folder.
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
        """Folder of the group that charges a process, of its /proc/PID/cgroup; None: no group."""
        paths = parse_membership(membership)
        for hierarchy in self.hierarchies:
            path = paths.get("memory" if hierarchy.version == 1 else "")
            found = group_folder(hierarchy, path) if path is not None else None
            if found is not None and os.path.isdir(found):
                return found
        return None

    def group_of(self, pid: int | str = "self", proc: str = "/proc") -> str | None:
        """
        As `locate`, of a process as it is now. It can wait for a lock.

        Args:
            pid: of the process; "self": of this one.
            proc: where the proc file system is mounted.
        """
        return self.locate(read_or_empty(f"{proc}/{pid}/cgroup"))

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


def _has_memory(version: int, mount_point: str) -> bool:
    if version == 1:
        return os.path.exists(f"{mount_point}/memory.usage_in_bytes")
    # The root of the v2 tree has no memory.current; the controllers it can hand out tell.
    return b"memory" in read_or_empty(f"{mount_point}/cgroup.controllers").split()


class Limits:
    """What a group may hold. None: no limit of that kind."""

    __slots__ = ("high_bytes", "memory_bytes", "swap_bytes", "swap_high_bytes")

    def __init__(
        self,
        memory_bytes: int | None = None,
        high_bytes: int | None = None,
        swap_bytes: int | None = None,
        swap_high_bytes: int | None = None,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.high_bytes = high_bytes
        self.swap_bytes = swap_bytes
        self.swap_high_bytes = swap_high_bytes

    @property
    def values(self) -> tuple[int | None, ...]:
        """All of them, to compare."""
        return self.memory_bytes, self.high_bytes, self.swap_bytes, self.swap_high_bytes

    @property
    def any(self) -> bool:
        """Whether the group is read. A limit of swap alone says what groups below can swap out."""
        return any(limit is not None for limit in self.values)


class Usage:
    """
    What a group and all below it hold.

    Attributes:
        swap_bytes: None without swap accounting.
        oom_kills: None where the kernel does not count them.
    """

    __slots__ = (
        *("active_file_bytes", "inactive_file_bytes", "oom_kills", "swap_bytes", "used_bytes"),
    )

    def __init__(
        self,
        used_bytes: int,
        inactive_file_bytes: int = 0,
        active_file_bytes: int = 0,
        swap_bytes: int | None = None,
        oom_kills: int | None = None,
    ) -> None:
        self.used_bytes = used_bytes
        self.inactive_file_bytes = inactive_file_bytes
        self.active_file_bytes = active_file_bytes
        self.swap_bytes = swap_bytes
        self.oom_kills = oom_kills

    @property
    def held_bytes(self) -> int:
        """Used, less the page cache: what cannot be given back by dropping that."""
        return max(0, self.used_bytes - self.inactive_file_bytes - self.active_file_bytes)


class Group:
    """
    One group; what `read` opens stays open until `close`.

    Args:
        path: its folder.
        version: of its hierarchy; None: its files tell.
    """

    def __init__(self, path: str, version: int | None = None) -> None:
        if version is None:
            version = 1 if os.path.exists(f"{path}/memory.usage_in_bytes") else 2
        self.path = path
        self.version = version
        usage, events, freezer, self._freeze_text, self._thaw_text = _FILES[version]
        self._usage = KeptFile(f"{path}/{usage}")
        self._stat = KeptFile(f"{path}/memory.stat")
        self._events = KeptFile(f"{path}/{events}")
        self._swap = KeptFile(f"{path}/memory.swap.current") if version == 2 else None
        self._freezer = f"{path}/{freezer}"

    @property
    def limit_names(self) -> tuple[str, ...]:
        """The files that hold its limits."""
        if self.version == 1:
            return "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
        return "memory.max", "memory.high", "memory.swap.max", "memory.swap.high"

    def limits(self) -> Limits:
        """The limits now; a file that is not there (the root has none) is no limit."""
        found = [parse_limit(read_or_empty(f"{self.path}/{name}", 64)) for name in self.limit_names]
        if self.version == 2:
            return Limits(*found)
        memory, both = found
        swap = max(0, both - memory) if both is not None and memory is not None else None
        return Limits(memory, None, swap)

    def read(self) -> Usage:
        """
        What it holds now.

        Raises:
            Gone: it has been removed.
            Denied, Unsupported: it has no memory files, or they may not be read.
        """
        used = parse_number(self._usage.read(64).strip()) or 0
        events = self._read_or_empty(self._events)
        kills = flat_value(events, b"oom_kill")
        stat = self._stat.read()
        # usage_in_bytes of v1 counts the groups below, so the parts must too: the total_ lines.
        prefix = b"total_" if self.version == 1 else b""
        inactive = flat_value(stat, prefix + b"inactive_file")
        active = flat_value(stat, prefix + b"active_file")
        swap = flat_value(stat, b"total_swap")
        if self._swap is not None:
            try:
                swap = parse_number(self._swap.read(64).strip())
            except SensorError:
                self._swap = None  # a kernel without swap accounting
        return Usage(used, inactive or 0, active or 0, swap, kills)

    @staticmethod
    def _read_or_empty(file: KeptFile) -> bytes:
        try:
            return file.read(512)
        except SensorError:  # some kernels do not have it
            return b""

    def close(self) -> None:
        """Give the descriptors back."""
        for file in (self._usage, self._stat, self._events, self._swap):
            if file is not None:
                file.close()

    def pids(self, most_groups: int = 1 << 16, *, strict: bool = True) -> Iterator[int]:
        """
        The processes in it and in all groups below; 0: one of another pid namespace.

        Args:
            most_groups: more of them are not looked at.
            strict: whether all of them are wanted; else what cannot be read is left out.

        Raises:
            Unsupported: not all of them can be read, or they are too many.
        """
        folders = [self.path]
        done = 0
        while folders:
            path = folders.pop()
            done += 1
            if done > most_groups:
                raise Unsupported(f"{self.path} has too many groups below it to look at all.")
            try:
                listed = read_bytes(f"{path}/cgroup.procs", 1 << 18)
                with os.scandir(path) as entries:
                    folders += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
            except (SensorError, OSError) as error:
                if strict and not isinstance(error, Gone | FileNotFoundError):
                    raise Unsupported(f"{path} cannot be read: {error}") from error
                continue  # it was removed meanwhile
            for word in listed.split():
                pid = parse_number(word)
                if pid is not None:
                    yield pid

    def can_freeze(self) -> bool:
        """Whether this user may stop everyone in it."""
        return os.access(self._freezer, os.W_OK)

    def freeze(self, deadline_s: float, halted: Callable[[], bool] = lambda: False) -> bool:
        """
        Stop everyone in it; False: not all of them are stopped yet, and `thaw` undoes it.

        Args:
            deadline_s: how long to wait.
            halted: whether it is enough, although the kernel does not call them frozen.

        Raises:
            OSError: it is refused.
        """
        write_bytes(self._freezer, self._freeze_text)
        end_mono_s = time.monotonic() + deadline_s
        while not (self.is_frozen() or halted()):
            if time.monotonic() > end_mono_s:
                return False
            time.sleep(_POLL_S)
        return True

    def thaw(self) -> None:
        """Let everyone in it run; a group that is gone needs none of it."""
        with suppress(OSError):  # removed with its last process, or never frozen by us
            write_bytes(self._freezer, self._thaw_text)

    def is_frozen(self) -> bool:
        """Whether everyone in it is stopped."""
        if self.version == 1:
            return read_or_empty(self._freezer).strip() == self._freeze_text
        return flat_value(read_or_empty(f"{self.path}/cgroup.events"), b"frozen") == 1

    def is_thawed(self) -> bool:
        """Whether it is not frozen, nor a group above it, nor about to be."""
        return read_or_empty(self._freezer).strip() == self._thaw_text and not self.is_frozen()


def read_usage(path: str, version: int | None = None) -> Usage:
    """
    As `Group.read`, once; nothing where it cannot be read.

    Args:
        path: folder of the group.
        version: of its hierarchy; None: its files tell.
    """
    group = Group(path, version)
    try:
        return group.read()
    except SensorError:
        return Usage(0)
    finally:
        group.close()


class AvailableMemory:
    """
    Memory that can still be had, of how much.

    Attributes:
        group: folder of the group whose limit it is; None: the machine's memory.
    """

    __slots__ = ("free_bytes", "group", "total_bytes")

    def __init__(self, free_bytes: int, total_bytes: int, group: str | None = None) -> None:
        self.free_bytes = free_bytes
        self.total_bytes = total_bytes
        self.group = group


def available_memory(group: str | None, proc: str = "/proc") -> AvailableMemory:
    """
    What the machine has left, or less: what a group and those above it leave.

    Args:
        group: folder of the group in which memory is wanted; None: the machine alone.
        proc: where proc is mounted.
    """
    meminfo = b"\n" + read_or_empty(f"{proc}/meminfo")
    available = status_bytes(meminfo, b"MemAvailable") or 0
    tightest = AvailableMemory(available, status_bytes(meminfo, b"MemTotal") or 0)
    while group and os.path.exists(f"{group}/cgroup.procs"):
        found = _group_available(group)
        if found is not None and found.free_bytes < tightest.free_bytes:
            tightest = found
        group = os.path.dirname(group)
    return tightest


def _group_available(path: str) -> AvailableMemory | None:
    group = Group(path)
    limits = group.limits()
    bounded = [each for each in (limits.memory_bytes, limits.high_bytes) if each is not None]
    if not bounded:
        return None
    try:
        used = group.read()
    except SensorError:
        return None
    finally:
        group.close()
    return AvailableMemory(max(0, min(bounded) - used.held_bytes), min(bounded), path)


def host_oom_kills(proc: str = "/proc") -> int | None:
    """Processes that the kernel has killed for memory since boot, in every group; None: unknown."""
    return flat_value(read_or_empty(f"{proc}/vmstat"), b"oom_kill")


def group_oom_kills(folder: str) -> int | None:
    """
    The same of one memory group, its children left out; None when it is gone or does not count.

    Source: kernel, cgroup-v2.rst: memory.events counts all groups below as well, and
    memory.events.local (since 5.2) the group alone.
    """
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):  # v2, v2, v1
        kills = flat_value(read_or_empty(f"{folder}/{name}"), b"oom_kill")
        if kills is not None:
            return kills
    return None


def oomd_kills(group: str) -> int | None:
    """
    Processes that systemd-oomd has noted to have killed in a group; None: none, or the group is
    gone. Source: systemd, src/oom/oomd-util.c, the extended attribute user.oomd_kill.
    """
    with suppress(AttributeError, OSError, ValueError):  # Linux alone
        return int(os.getxattr(group, "user.oomd_kill")) or None
    return None


def parse_limit(data: bytes) -> int | None:
    """Bytes of a limit file; None for `max`, v1's huge number and what is no number."""
    value = parse_number(data.strip())
    return None if value is None or value >= _NO_LIMIT_V1 else value


def flat_value(data: bytes, name: bytes) -> int | None:
    """
    A number of a file of names and numbers, such as memory.stat; None: it is not in it.

    Args:
        data: content of the file.
        name: of the line.
    """
    words = status_words(b"\n" + data, name, b" ")
    return parse_number(words[0]) if words else None
