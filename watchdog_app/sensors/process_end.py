"""
How a process ended, and whether the kernel killed it for memory.

A process that is not our child leaves its exit status nowhere, except in its
entry of /proc until its parent has reaped it, and since Linux 6.15 behind a
pidfd that was opened before. Sources: proc(5) field 52 of stat; kernel,
include/uapi/linux/pidfd.h (PIDFD_GET_INFO, PIDFD_INFO_EXIT); /proc/vmstat oom_kill.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress

from watchdog_app.base.linux.procfs import read_stat

# _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info): version 0 of the struct has 64 bytes.
_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3

_OOM_DAEMONS = ("earlyoom", "nohang", "systemd-oomd", "oomd", "bustd")


def open_handle(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends; None where there are none."""
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        return os.pidfd_open(pid)
    return None


def own_pid_of(pid: int, proc: str = "/proc") -> int | None:
    """
    What a process takes for its own pid: another one than ours in a container; None: unknown.

    Source: proc(5), NSpid of status: one for each namespace, the innermost last.
    """
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return None


def wait_status(pid: int, start_time: int, handle: int | None, proc: str = "/proc") -> int | None:
    """
    Status of an ended process as wait(2) gives it; None when nobody knows any more.

    Args:
        pid: of the process.
        start_time: field 22 of its stat: the pid may be another's by now.
        handle: from `open_handle`, opened while it lived.
        proc: where proc is mounted.
    """
    status = _kept(handle)
    if status is not None:
        return status
    stat = read_stat(pid, proc)
    if stat is not None and stat.has_ended and stat.start_ticks == start_time:
        status = stat.wait_status
        if status is not None:
            return status
    # The descriptor knows it from the moment on at which the parent reaps it, /proc up to then:
    # that moment may have been between the two.
    return _kept(handle)


def is_ending(pid: int, start_time: int, proc: str = "/proc") -> bool:
    """
    Whether a process is on its way out, and how it ended cannot be asked yet.

    Its memory goes first: from then on it has neither a size nor a command line. A large program
    stays so for as long as that takes, some 0.2 s for each GB, and seconds on a busy machine.
    Source: proc(5) field 9 of stat; kernel, include/linux/sched.h (PF_EXITING).

    Args:
        pid: of the process.
        start_time: field 22 of its stat: the pid may be another's by now.
        proc: where proc is mounted.
    """
    stat = read_stat(pid, proc)
    return stat is not None and stat.start_ticks == start_time and stat.is_exiting


def _kept(handle: int | None) -> int | None:
    """What the kernel keeps behind a pidfd once the process is reaped; None: not yet, or never."""
    if handle is None or sys.platform != "linux":
        return None
    import fcntl

    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info, True)
        if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
            return int(struct.unpack_from("=i", info, 60)[0])
    return None


def host_oom_kills(proc: str = "/proc") -> int | None:
    """Processes that the kernel has killed for memory since boot, in every group; None: unknown."""
    with suppress(OSError, ValueError, IndexError), open(f"{proc}/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return None


def group_oom_kills(folder: str) -> int | None:
    """
    The same of one memory group, its children left out; None when it is gone or does not count.

    Source: kernel, cgroup-v2.rst: memory.events counts all groups below as well, and
    memory.events.local (since 5.2) the group alone.
    """
    for name in ("memory.events.local", "memory.events", "memory.oom_control"):  # v2, v2, v1
        with suppress(OSError, ValueError, IndexError), open(f"{folder}/{name}", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    return None


def cpu_limit_s(pid: int) -> float | None:
    """Seconds of processor time that a process may use (RLIMIT_CPU); None: no limit, or unknown."""
    if sys.platform != "linux":
        return None
    import resource

    with suppress(OSError, ValueError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
        limits = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
        return float(min(limits)) if limits else None
    return None


def name_of(pid: int, proc: str = "/proc") -> str | None:
    """What a process calls itself, 15 characters at most; None: there is none."""
    with suppress(OSError), open(f"{proc}/{pid}/comm", "rb") as file:
        return file.read(64).decode("utf-8", "replace").strip() or None
    return None


def oom_daemons(proc: str = "/proc") -> tuple[str, ...]:
    """Those that end programs when memory is short and run here now, by name."""
    found = set()
    with suppress(OSError):
        for entry in os.listdir(proc):
            name = name_of(int(entry), proc) if entry.isdigit() else None
            if name in _OOM_DAEMONS:
                found.add(name)
    return tuple(sorted(found))


def oomd_kills(group: str) -> int | None:
    """
    Processes that systemd-oomd has noted to have killed in a group; None: none, or the group is
    gone. Source: systemd, src/oom/oomd-util.c, the extended attribute user.oomd_kill.
    """
    if sys.platform != "linux":
        return None
    with suppress(OSError, ValueError):
        return int(os.getxattr(group, "user.oomd_kill")) or None
    return None
