"""Turn one sample and its tasks into readings of every resource. Pure functions."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.devices import hardware_readings
from watchdog_app.core.model.machine import (
    CgroupMemory,
    Gauge,
    HostMemory,
    ProcessKey,
    Snapshot,
    Task,
)
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind

_CONTAINER_ID = re.compile(r"(?:[a-z]+-)*([0-9a-f]{12})[0-9a-f]{20,52}(?:\.scope)?")
_POD = re.compile(r"(?:kubepods.*-)?pod[0-9a-f_-]{36}(?:\.slice)?")
_RATIO_KNOWN_BYTES = 64 << 20  # in zram: fewer pages are too few to estimate the compression ratio
_NOTHING_LEFT = 0.01  # of RAM: below, a machine can hang for minutes without an OOM kill
_STALLED_PERCENT = 40.0  # time in which all tasks of a group stall; systemd-oomd kills at 50
_GUARD = "watchdog-guard-"  # prefix of the cgroups of `guard.cgroup`


# Folders of whole mounts: inside a container its group is the root of the mount.
_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified")


def readings(
    snapshot: Snapshot,
    tasks: Sequence[Task],
    agents: Iterable[AgentState] = (),
    guarded: Mapping[str, int] | None = None,
) -> tuple[Reading, ...]:
    """
    The readings of every resource in one sample.

    RAM, RAM with swap, cgroups, RLIMIT_AS, /dev/shm, disks and GPU memory are in bytes.
    Temperatures, batteries and wall times have their own units.

    Args:
        snapshot: one sample of the machine.
        tasks: tasks of the same sample.
        agents: agent reports, with the figures of the frameworks' allocators.
        guarded: limits of guards without their reserve, by cgroup folder.
    """
    everyone = tuple(task.key for task in tasks)
    return (
        *_host_readings(snapshot.host, everyone),
        *_cgroup_readings(snapshot, tasks, guarded or {}),
        *_address_space_readings(snapshot, tasks),
        *_shm_reading(snapshot.host, everyone),
        *_gauge_readings(snapshot.gauges),
        *_wall_time_readings(snapshot.unix_s, tasks),
        *hardware_readings(snapshot.hardware, tasks, agents),
    )


def _ram_and_swap(host: HostMemory) -> tuple[int, int]:
    """
    Used bytes and limit of RAM together with swap.

    Swap on zram is in RAM. Its content counts once, at its size before compression. Its free part
    counts for the memory that compression will save at the ratio so far.
    """
    used = max(0, host.total_bytes - host.available_bytes)
    used += max(0, host.swap_total_bytes - host.swap_free_bytes)
    if not host.zram_total_bytes:
        return used, host.total_bytes + host.swap_total_bytes
    saved = max(0, host.zram_used_bytes - host.zram_ram_bytes)
    known = host.zram_used_bytes >= _RATIO_KNOWN_BYTES
    free = max(0, host.zram_total_bytes - host.zram_used_bytes)
    gain = int(free * saved / host.zram_used_bytes) if known else 0
    elsewhere = max(0, host.swap_total_bytes - host.zram_total_bytes)
    twice = host.zram_used_bytes - saved
    return max(0, used - twice), host.total_bytes + elsewhere + saved + gain


def _host_readings(host: HostMemory, everyone: tuple[ProcessKey, ...]) -> Iterator[Reading]:
    used = max(0, host.total_bytes - host.available_bytes)
    has_swap = host.swap_total_bytes > 0
    yield Reading(
        key=ResourceKey(ResourceKind.RAM),
        label="RAM",
        used=used,
        limit=host.total_bytes,
        fatal=not has_swap,
        tasks=everyone,
        note="beyond it the machine swaps" if has_swap else None,
        stalled=host.available_bytes <= _NOTHING_LEFT * host.total_bytes,
    )
    if has_swap:
        used, limit = _ram_and_swap(host)
        yield Reading(
            key=ResourceKey(ResourceKind.RAM_SWAP),
            label="RAM and swap",
            used=used,
            limit=limit,
            fatal=True,
            tasks=everyone,
            note="counts swap, as far as compression gains (zram)"
            if host.zram_total_bytes
            else "counts swap",
            stalled=limit - used <= _NOTHING_LEFT * host.total_bytes,
        )


def _cgroup_readings(
    snapshot: Snapshot, tasks: Sequence[Task], guarded: Mapping[str, int]
) -> Iterator[Reading]:
    """
    One reading for each limited cgroup above a task: by the nearer of killing and throttling limit.

    Which group is tightest depends on other processes in the outer group. A forecast of only the
    tightest would restart at each change. So all groups have readings; the tightest comes last.
    """
    affected: dict[str, list[ProcessKey]] = {}
    by_path = {group.path: group for group in snapshot.cgroups}
    leaves = {info.cgroup for info in snapshot.infos.values() if info.cgroup is not None}
    for task in tasks:
        infos = (snapshot.infos.get(member.key) for member in task.members)
        folders = {info.cgroup for info in infos if info is not None and info.cgroup is not None}
        for path in by_path:
            if any(cgroup_contains(path, leaf) for leaf in folders):
                affected.setdefault(path, []).append(task.key)
    found = []
    for path, keys in affected.items():
        found.append(_cgroup_reading(by_path[path], snapshot, leaves, tuple(keys), guarded))
    limited = [each for each in found if each is not None]
    yield from sorted(limited, key=lambda each: (each.fatal, each.used - each.limit))


def cgroup_contains(path: str, leaf: str) -> bool:
    """
    Whether the group `path` is `leaf` or one of its ancestors.

    Args:
        path: folder of a group.
        leaf: folder of the same or another group.
    """
    return leaf == path or leaf.startswith(f"{path.rstrip('/')}/")


def _cgroup_reading(
    group: CgroupMemory,
    snapshot: Snapshot,
    leaves: Collection[str],
    affected: tuple[ProcessKey, ...],
    guarded: Mapping[str, int],
) -> Reading | None:
    """
    The reading of a group; None: no limit, or more than the machine's RAM.

    Above memory.high the kernel swaps out what it can. Once it cannot, each allocation in the group
    makes its process sleep for seconds: the group stalls below memory.max.

    Args:
        group: a group of the snapshot.
        snapshot: one sample, with all known groups.
        leaves: cgroup folders of watched processes.
        affected: tasks in the group.
        guarded: limits of guards without their reserve, by cgroup folder.
    """
    hard, high = group.limit_bytes, group.high_bytes
    if hard is not None and hard >= snapshot.host.total_bytes:
        hard = None
    if high is not None and high >= (snapshot.host.total_bytes if hard is None else hard):
        high = None
    limit = hard if high is None else high
    if limit is None:
        return None
    in_swap = _swap_bytes(group, snapshot, leaves)
    guard = is_guard(group.path)
    throttles = high is not None and not guard
    notes = ["counts swap"] if in_swap > 0 else []
    if guard:
        notes.append("stopped there, not killed")
    elif throttles:
        notes.append("stalls above it (memory.high)")
        if hard is not None:
            notes.append(f"killed at {format_bytes(hard + in_swap)}")
    what = "slow-down limit" if hard is None else "memory limit"
    label = f"{what} of {group_name(group.path)}"
    if guard:  # the pid of the first program distinguishes several guards
        pid = os.path.basename(group.path.rstrip("/")).removeprefix(_GUARD).partition("-")[0]
        label = f"guard limit of pid {pid}" if pid.isdigit() else "guard limit"
    return Reading(
        key=ResourceKey(ResourceKind.GUARD if guard else ResourceKind.CGROUP, group.path),
        label=label,
        used=group.unreclaimable_bytes + (group.swap_usage_bytes or 0),
        # The reserve that a guard adds for a save does not count as part of its limit.
        limit=guarded.get(group.path, limit) + in_swap,
        # The guard stops the program at this limit; a pause would come earlier.
        fatal=not guard and hard is not None,
        tasks=affected,
        note=", ".join(notes) or None,
        swapped=group.swap_usage_bytes or 0,
        unwatched=group.unwatched_bytes,
        throttles=throttles,
        stalled=throttles and (group.stalled_percent or 0.0) >= _STALLED_PERCENT,
    )


def _swap_bytes(group: CgroupMemory, snapshot: Snapshot, leaves: Collection[str]) -> int:
    """
    Swap that a group uses and can still use, in bytes.

    The limits of all groups above apply too. If every watched process is in a limited group below,
    those limits apply as well: outside of them only memory that is in RAM now can be swapped out.
    """
    swapped = group.swap_usage_bytes or 0
    machine = max(0, snapshot.host.swap_free_bytes)
    if group.version == 1:
        # memory.memsw.limit_in_bytes limits the sum of memory and swap.
        most, limit = swapped + machine, group.swap_limit_bytes
        return most if limit is None else min(most, max(limit, 0))

    def left(each: CgroupMemory) -> int:
        limit = each.swap_limit_bytes
        return machine if limit is None else max(0, limit - (each.swap_usage_bytes or 0))

    known = [each for each in snapshot.cgroups if each.version != 1]
    most = min([machine, *(left(each) for each in known if cgroup_contains(each.path, group.path))])
    below = [each for each in known if each is not group and cgroup_contains(group.path, each.path)]
    limited: dict[str, tuple[int, CgroupMemory]] = {}
    for leaf in leaves:
        if cgroup_contains(group.path, leaf):
            chain = [each for each in below if cgroup_contains(each.path, leaf)]
            tightest = min(chain, key=left, default=group)
            if tightest is group or left(tightest) >= machine:
                return swapped + most
            limited[tightest.path] = (left(tightest), tightest)
    if not limited:
        return swapped + most
    inside = sum(each.unreclaimable_bytes for _, each in limited.values())
    others = max(0, group.unreclaimable_bytes - inside)
    return swapped + min(most, others + sum(room for room, _ in limited.values()))


def is_guard(path: str) -> bool:
    """Whether `watchdog exec` created the group. The limit of such a group does not kill."""
    return os.path.basename(path.rstrip("/")).startswith(_GUARD)


def group_name(path: str) -> str:
    """The name of a group for the user, from its folder."""
    if path.rstrip("/") in _MOUNTS:
        return "this container"
    base = os.path.basename(path.rstrip("/"))
    container = _CONTAINER_ID.fullmatch(base)
    if container:
        return f"the container {container[1]}"
    if _POD.fullmatch(base):
        return "the pod"
    return f"the group {base}"


def _address_space_readings(snapshot: Snapshot, tasks: Sequence[Task]) -> Iterator[Reading]:
    for task in tasks:
        for member in task.members:
            info = snapshot.infos.get(member.key)
            if info is None or not info.rlimit_as_bytes or member.vsize_bytes is None:
                continue
            of_worker = "" if member.key == task.key else f" (worker {member.key.pid})"
            yield Reading(
                key=ResourceKey(ResourceKind.RLIMIT_AS, str(member.key.pid)),
                label=f"address space of {task.name}{of_worker}",
                used=member.vsize_bytes,
                limit=info.rlimit_as_bytes,
                fatal=True,
                tasks=(task.key,),
                note="ulimit -v, RLIMIT_AS",
            )


def _shm_reading(host: HostMemory, everyone: tuple[ProcessKey, ...]) -> Iterator[Reading]:
    if host.shm_limit_bytes and host.shm_used_bytes is not None:
        yield Reading(
            key=ResourceKey(ResourceKind.SHM),
            label="shared memory (/dev/shm)",
            used=host.shm_used_bytes,
            limit=host.shm_limit_bytes,
            fatal=True,  # a write to a full /dev/shm raises SIGBUS
            tasks=everyone,
        )


def _wall_time_readings(now_unix_s: float, tasks: Sequence[Task]) -> Iterator[Reading]:
    for task in tasks:
        began, ends = task.info.started_unix_s, task.info.ends_unix_s
        if began is None or ends is None or began >= ends:
            continue  # a shell may keep the variables of a job that has ended
        yield Reading(
            key=ResourceKey(ResourceKind.WALLTIME, str(task.key.pid)),
            label=f"time of {task.name}",
            used=max(0.0, now_unix_s - began),
            limit=ends - began,
            fatal=True,
            tasks=(task.key,),
        )


def _gauge_readings(gauges: Iterable[Gauge]) -> Iterator[Reading]:
    for gauge in gauges:
        if gauge.limit > 0:
            key = ResourceKey(ResourceKind(gauge.kind), gauge.subject)
            yield Reading(key, gauge.label, gauge.used, gauge.limit, fatal=False, tasks=())
