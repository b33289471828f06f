"""The tightest ceiling over a process that would start here now."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from watchdog_app.base.text.quantities import MIB, format_bytes


class Limit(NamedTuple):
    """Bytes that a new training may take, and of what."""

    bytes: int
    text: str


def tightest(
    own_bytes: int = 0, proc: str = "/proc", cgroup_root: str = "/sys/fs/cgroup"
) -> Limit | None:
    """
    What a training that starts now could take at most; None where nothing tells.

    Free memory of the machine, the memory groups above this process with what they already hold,
    and the address space that `ulimit -v` leaves.

    Args:
        own_bytes: what the training holds already, being this very process.
        proc: where the kernel's files are.
        cgroup_root: the same of its memory groups.
    """
    free = [each for each in (_ram(proc), *_groups(proc, cgroup_root)) if each]
    found = [each._replace(bytes=each.bytes + own_bytes) for each in free]
    return min([*found, *filter(None, (_address_space(),))], default=None)


def _ram(proc: str) -> Limit | None:
    if not sys.platform.startswith("linux"):
        import psutil

        return Limit(int(psutil.virtual_memory().available), "memory available now")
    from watchdog_app.sensors.host import parse_meminfo

    try:
        with open(os.path.join(proc, "meminfo"), "rb") as file:
            fields = parse_meminfo(file.read())
    except OSError:
        return None
    available = fields.get(b"MemAvailable")
    return None if available is None else Limit(available, "memory available now")


def _groups(proc: str, cgroup_root: str) -> list[Limit]:
    from watchdog_app.base.linux.cgroup_paths import GroupLocator, discover
    from watchdog_app.sensors.cgroups import GroupReader

    try:
        with open(os.path.join(proc, "self", "mountinfo"), "rb") as file:
            locator = GroupLocator(discover(file.read(), cgroup_root))
        with open(os.path.join(proc, "self", "cgroup"), "rb") as file:
            folder = locator.locate(file.read())
    except OSError:
        return []
    if folder is None:
        return []
    reader = GroupReader(locator)
    try:
        groups = reader.read([folder], 0.0)
    finally:
        reader.close()
    return [
        Limit(
            max(0, each.limit_bytes - each.unreclaimable_bytes),
            f"left of the memory group's {format_bytes(each.limit_bytes)}",
        )
        for each in groups
        if each.limit_bytes is not None
    ]


def _address_space() -> Limit | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    return Limit(soft, "address space under ulimit -v, of which much is never used")


def of_card() -> Limit | None:
    """The memory of the first card that is free now, as its driver says; None without one."""
    import subprocess

    words = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
        return Limit(int(told.stdout.split()[0]) * MIB, "free on the card now")
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
