"""The tightest ceiling over a process that would start here now."""

from __future__ import annotations

import sys
from typing import NamedTuple

from watchdog_app.base.text.quantities import MIB, format_bytes


class Limit(NamedTuple):
    """Bytes that a new training may take, and of what."""

    bytes: int
    text: str


def tightest_limit(
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
    free = _free(proc, cgroup_root)
    found = [] if free is None else [free._replace(bytes=free.bytes + own_bytes)]
    return min([*found, *filter(None, (_address_space(),))], default=None)


def _free(proc: str, cgroup_root: str) -> Limit | None:
    if not sys.platform.startswith("linux"):
        import psutil

        return Limit(int(psutil.virtual_memory().available), "memory available now")
    from watchdog_app.base.linux.cgroups import Layout, available_memory
    from watchdog_app.base.linux.files import read_or_empty

    layout = Layout.discover(read_or_empty(f"{proc}/self/mountinfo", 1 << 20), cgroup_root)
    least = available_memory(layout.group_of("self", proc), proc)
    if least.group is not None:
        text = f"left of the memory group's {format_bytes(least.total_bytes)}"
        return Limit(least.free_bytes, text)
    return Limit(least.free_bytes, "memory available now") if least.total_bytes else None


def _address_space() -> Limit | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    return Limit(soft, "address space under ulimit -v, of which much is never used")


def gpu_limit() -> Limit | None:
    """The memory of the first card that is free now, as its driver says; None without one."""
    import subprocess

    words = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
        return Limit(int(told.stdout.split()[0]) * MIB, "free on the card now")
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
