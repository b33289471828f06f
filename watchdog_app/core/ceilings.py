"""
What can run out: pure, one snapshot and its tasks to ceilings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from watchdog_app.core.hardware_ceilings import hardware_readings
from watchdog_app.core.outlook import CeilingKey, CeilingKind, CeilingReading
from watchdog_app.core.records import (
    AgentView,
    CgroupMemory,
    HostMemory,
    ProcessKey,
    Snapshot,
    Task,
)
from watchdog_app.units import format_bytes

_CONTAINER_ID = re.compile(r"(?:[a-z]+-)*([0-9a-f]{12})[0-9a-f]{20,52}(?:\.scope)?")
_POD = re.compile(r"(?:kubepods.*-)?pod[0-9a-f_-]{36}(?:\.slice)?")
AIRBAG_LIMIT = "airbag limit"  # what labels of such limits begin with
_AIRBAG = "watchdog-bag-"  # as `airbag.groups` names them
# The folder of a whole mount: what we see of the tree is a container's.
_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified")


def readings(
    snapshot: Snapshot, tasks: Sequence[Task], agents: Iterable[AgentView] = ()
) -> tuple[CeilingReading, ...]:
    """
    Every ceiling of this tick: RAM, RAM with swap, groups, RLIMIT_AS, /dev/shm, disks, in bytes;
    memory of graphics cards, heat and battery, each in its own unit.

    Args:
        snapshot: one look at the machine.
        tasks: those of the same snapshot.
        agents: with what their frameworks say of the cards.
    """
    everyone = tuple(task.key for task in tasks)
    return (
        *_host(snapshot.host, everyone),
        *_groups(snapshot, tasks),
        *_address_spaces(snapshot, tasks),
        *_shm(snapshot.host, everyone),
        *_disks(snapshot),
        *hardware_readings(snapshot.hardware, tasks, agents),
    )


def _host(host: HostMemory, everyone: tuple[ProcessKey, ...]) -> Iterator[CeilingReading]:
    used = max(0, host.total_bytes - host.available_bytes)
    has_swap = host.swap_total_bytes > 0
    yield CeilingReading(
        key=CeilingKey(CeilingKind.RAM),
        label="RAM",
        used=used,
        limit=host.total_bytes,
        unit="bytes",
        lethal=not has_swap,
        tasks=everyone,
        note="beyond it the machine swaps" if has_swap else None,
    )
    if has_swap:
        yield CeilingReading(
            key=CeilingKey(CeilingKind.RAM_SWAP),
            label="RAM and swap",
            used=used + max(0, host.swap_total_bytes - host.swap_free_bytes),
            limit=host.total_bytes + host.swap_total_bytes,
            unit="bytes",
            lethal=True,
            tasks=everyone,
            note="counts swap",
        )


def _groups(snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[CeilingReading]:
    """
    Every limited group above a task, once: what kills, or where there is none what slows down.

    Not the tightest alone: which one that is changes with what others in the outer group use, and
    a forecast that begins anew with each change never sees the end coming. The tightest comes
    last: who keeps one for each task keeps that one.
    """
    host = snapshot.host
    hit: dict[str, list[ProcessKey]] = {}
    levels: dict[str, int] = {}
    by_path = {group.path: group for group in snapshot.cgroups}
    bounds = {
        group.path: _bound(group, host.total_bytes, host.swap_free_bytes)
        for group in snapshot.cgroups
    }
    for task in tasks:
        folders = {_folder(snapshot, member.key) for member in task.members} - {None}
        above = [path for path in by_path if any(_holds(path, leaf) for leaf in folders)]
        for path in above:
            nearest = min(_distance(path, leaf) for leaf in folders if _holds(path, leaf))
            levels[path] = min(levels.get(path, nearest), nearest)
            hit.setdefault(path, []).append(task.key)
    found = []
    for path, keys in hit.items():
        group, bound = by_path[path], bounds[path]
        if bound is not None:
            found.append(_hard_limit(group, bound, tuple(keys), levels[path]))
        elif group.high_bytes is not None:
            found.append(_soft_limit(group, tuple(keys), levels[path]))
    yield from sorted(found, key=lambda each: (each.lethal, each.used - each.limit))


def _folder(snapshot: Snapshot, key: ProcessKey) -> str | None:
    info = snapshot.infos.get(key)
    return info.cgroup if info is not None else None


def _holds(path: str, leaf: str | None) -> bool:
    return leaf is not None and (leaf == path or leaf.startswith(f"{path.rstrip('/')}/"))


def _distance(path: str, leaf: str | None) -> int:
    return (leaf or "").count("/") - path.rstrip("/").count("/")


def _bound(group: CgroupMemory, total_bytes: int, swap_free_bytes: int) -> tuple[int, int] | None:
    """
    Used and limit of a group, swap included; None when the group cannot be what kills.

    A group may be given more than the machine has: then the machine's own RAM ends first.
    """
    if group.limit_bytes is None or group.limit_bytes >= total_bytes:
        return None
    swapped = group.swap_usage_bytes or 0
    # Without a limit of its own the group can take what the machine has left in swap.
    room = swapped + swap_free_bytes
    if group.swap_limit_bytes is not None:
        room = min(room, max(group.swap_limit_bytes, 0))
    if room == 0 and group.high_bytes is not None:
        # With nothing to swap to, a group is held back above memory.high until it stands still.
        return group.unreclaimable_bytes, min(group.limit_bytes, group.high_bytes)
    return group.unreclaimable_bytes + swapped, group.limit_bytes + room


def group_level(
    group: CgroupMemory, total_bytes: int, swap_free_bytes: int
) -> tuple[float, float] | None:
    """
    Used and limit of a group's ceiling: of what kills, or else slows down; None: it has none.

    Args:
        group: as it is now.
        total_bytes: RAM of the machine.
        swap_free_bytes: of the machine.
    """
    bound = _bound(group, total_bytes, swap_free_bytes)
    if bound is not None:
        return bound
    if group.high_bytes is not None:
        return group.unreclaimable_bytes, float(group.high_bytes)
    return None


def _hard_limit(
    group: CgroupMemory, bound: tuple[int, int], hit: tuple[ProcessKey, ...], level: int
) -> CeilingReading:
    used, limit = bound
    notes = _levels(level)
    if limit > (group.limit_bytes or limit) or group.swap_usage_bytes:
        notes.append("counts swap")
    if group.high_bytes == limit and group.limit_bytes != limit:
        killed = format_bytes(group.limit_bytes or limit)
        notes.append(f"stands still above it (memory.high), killed at {killed}")
    elif group.high_bytes is not None and group.high_bytes < (group.limit_bytes or limit):
        notes.append(f"slowed down above {format_bytes(group.high_bytes)} (memory.high)")
    bag = in_airbag(group.path)
    if bag:
        notes.append("held there, not killed")
    return CeilingReading(
        key=CeilingKey(CeilingKind.CGROUP, group.path),
        label=_airbag_label(group.path) if bag else f"memory limit of {group_name(group.path)}",
        used=used,
        limit=limit,
        unit="bytes",
        # Its keeper holds it there; a pause would only come before that.
        lethal=not bag,
        tasks=hit,
        note=", ".join(notes) or None,
        swapped=group.swap_usage_bytes or 0,
        strangers=group.strangers_bytes,
    )


def _soft_limit(group: CgroupMemory, hit: tuple[ProcessKey, ...], level: int) -> CeilingReading:
    return CeilingReading(
        key=CeilingKey(CeilingKind.CGROUP, group.path),
        label=f"slow-down limit of {group_name(group.path)}",
        used=group.unreclaimable_bytes,
        limit=float(group.high_bytes or 0),
        unit="bytes",
        lethal=False,
        tasks=hit,
        note=", ".join([*_levels(level), "memory.high slows down and does not kill"]),
        strangers=group.strangers_bytes,
    )


def _levels(level: int) -> list[str]:
    if level <= 0:
        return []
    return [f"{level} group up" if level == 1 else f"{level} groups up"]


def in_airbag(path: str) -> bool:
    """Whether a group is one that `watchdog exec` made, in which the limit does not kill."""
    return os.path.basename(path.rstrip("/")).startswith(_AIRBAG)


def _airbag_label(path: str) -> str:
    """By the program that was started in it: several airbags are told apart."""
    pid = os.path.basename(path.rstrip("/")).removeprefix(_AIRBAG).partition("-")[0]
    return f"{AIRBAG_LIMIT} of pid {pid}" if pid.isdigit() else AIRBAG_LIMIT


def group_name(path: str) -> str:
    """A group as a person knows it, by its folder."""
    if path.rstrip("/") in _MOUNTS:
        return "this container"
    base = os.path.basename(path.rstrip("/"))
    container = _CONTAINER_ID.fullmatch(base)
    if container:
        return f"the container {container[1]}"
    if _POD.fullmatch(base):
        return "the pod"
    return f"the group {base}"


def _address_spaces(snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[CeilingReading]:
    for task in tasks:
        for member in task.members:
            info = snapshot.infos.get(member.key)
            if info is None or not info.rlimit_as_bytes or member.vsize_bytes is None:
                continue
            of_worker = "" if member.key == task.key else f" (worker {member.key.pid})"
            yield CeilingReading(
                key=CeilingKey(CeilingKind.RLIMIT_AS, str(member.key.pid)),
                label=f"address space of {task.name}{of_worker}",
                used=member.vsize_bytes,
                limit=info.rlimit_as_bytes,
                unit="bytes",
                lethal=True,
                tasks=(task.key,),
                note="ulimit -v, RLIMIT_AS",
            )


def _shm(host: HostMemory, everyone: tuple[ProcessKey, ...]) -> Iterator[CeilingReading]:
    if host.shm_limit_bytes and host.shm_used_bytes is not None:
        yield CeilingReading(
            key=CeilingKey(CeilingKind.SHM),
            label="shared memory (/dev/shm)",
            used=host.shm_used_bytes,
            limit=host.shm_limit_bytes,
            unit="bytes",
            lethal=True,  # a write to a full one is a bus error
            tasks=everyone,
        )


def _disks(snapshot: Snapshot) -> Iterator[CeilingReading]:
    for disk in snapshot.disks:
        if disk.total_bytes <= 0:
            continue
        yield CeilingReading(
            key=CeilingKey(CeilingKind.DISK, disk.path),
            label=f"disk for rescues in {disk.path}",
            used=max(0, disk.total_bytes - disk.free_bytes),
            limit=disk.total_bytes,
            unit="bytes",
            lethal=False,
            tasks=(),
        )
