"""
The threads of processes, from /proc: their states and where in the kernel they wait.

Nothing is stopped or attached to. What this user may not read is left out. That is often the system
call of a process that is not our child (kernel.yama.ptrace_scope) and the kernel stack (root only).

Source: proc(5); the system calls' numbers: kernel, arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (arm64).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from watchdog_app.base.linux.files import parse_number, read_or_empty
from watchdog_app.base.linux.process import Stat, read_stat
from watchdog_app.core.model.agent import ProcessThreads, ThreadState
from watchdog_app.core.model.machine import ProcessKey

_MAX_PROCESSES = 64
_MAX_THREADS = 128  # of one process
_MAX_THREADS_TOTAL = 400
_KERNEL_FRAMES = 8

# System calls in which a thread can block.
_SYSTEM_CALLS: Mapping[str, Mapping[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 18: "pwrite64", 20: "writev", 40: "sendfile", 44: "sendto",
        46: "sendmsg", 275: "splice",
        7: "poll", 17: "pread64", 16: "ioctl", 19: "readv", 23: "select",
        35: "nanosleep", 42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg", 61: "wait4",
        72: "fcntl", 73: "flock", 74: "fsync", 26: "msync", 202: "futex", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll",
        281: "epoll_pwait", 288: "accept4", 2: "open", 65: "semop", 220: "semtimedop",
    },
    "aarch64": {
        63: "read", 64: "write", 66: "writev", 68: "pwrite64", 71: "sendfile", 206: "sendto",
        211: "sendmsg", 76: "splice", 73: "ppoll", 67: "pread64", 29: "ioctl", 65: "readv",
        72: "pselect6", 101: "nanosleep", 203: "connect", 202: "accept", 207: "recvfrom",
        212: "recvmsg", 260: "wait4", 25: "fcntl", 32: "flock", 82: "fsync", 227: "msync",
        98: "futex", 115: "clock_nanosleep", 22: "epoll_pwait", 95: "waitid", 56: "openat",
        242: "accept4", 193: "semop", 192: "semtimedop",
    },
}  # fmt: skip


def dump(
    members: Iterable[ProcessKey], proc: str = "/proc", machine: str | None = None
) -> tuple[ProcessThreads, ...]:
    """
    Dump the members that still run, in this order, and their zombie children.

    Args:
        members: of a task, root first; only the first 64 are read.
        proc: where /proc is mounted.
        machine: as in `os.uname`, for the numbers of system calls; None: this one.
    """
    calls = _SYSTEM_CALLS.get(machine or (os.uname().machine if hasattr(os, "uname") else ""), {})
    found: list[ProcessThreads] = []
    left = _MAX_THREADS_TOTAL
    children: list[int] = []
    for _, key in zip(range(_MAX_PROCESSES), members, strict=False):
        stat = read_stat(key.pid, proc)
        if stat is not None and stat.start_ticks == key.start_time:
            process = _read_process(proc, stat, min(left, _MAX_THREADS), calls, children)
            left -= len(process.threads)
            found.append(process)
    known = {process.pid for process in found}
    for pid in children[: 4 * _MAX_PROCESSES]:
        stat = None if pid in known else read_stat(pid, proc)
        if stat is not None and stat.state == "Z" and stat.ppid in known:
            known.add(pid)
            found.append(ProcessThreads(pid, stat.ppid, _decode(stat.comm), stat.state))
    return tuple(found)


def _read_process(
    proc: str, stat: Stat, most: int, calls: Mapping[int, str], children: list[int]
) -> ProcessThreads:
    threads: list[ThreadState] = []
    for tid in _list_tids(proc, stat.pid)[:most]:
        folder = f"{proc}/{stat.pid}/task/{tid}"
        thread = read_stat(tid, f"{proc}/{stat.pid}/task")
        if thread is not None:
            threads.append(_read_thread(folder, thread, calls))
        # Kernels without CONFIG_PROC_CHILDREN lack this file.
        children += [int(word) for word in read_or_empty(f"{folder}/children").split()]
    comm = _decode(stat.comm)
    return ProcessThreads(stat.pid, stat.ppid, comm, stat.state, tuple(threads), stat.threads)


def _list_tids(proc: str, pid: int) -> list[int]:
    try:
        found = sorted(int(name) for name in os.listdir(f"{proc}/{pid}/task") if name.isdigit())
    except OSError:
        return []
    return [pid] * (pid in found) + [tid for tid in found if tid != pid]


def _read_thread(folder: str, stat: Stat, calls: Mapping[int, str]) -> ThreadState:
    number = parse_syscall(read_or_empty(f"{folder}/syscall", 512))
    return ThreadState(
        stat.pid,
        _decode(stat.comm),
        stat.state,
        parse_wchan(read_or_empty(f"{folder}/wchan", 256)),
        None if number is None else calls.get(number),
        parse_stack(read_or_empty(f"{folder}/stack", 4096)),
    )


def parse_wchan(data: bytes) -> str | None:
    """Parse the kernel function in which a thread sleeps; None: not sleeping, or hidden."""
    # `poll_schedule_timeout.constprop.0`: suffixes from the compiler carry no information.
    name = _decode(data.strip()).partition(".")[0]
    return None if name in ("", "0") else name[:80]


def parse_syscall(data: bytes) -> int | None:
    """Parse the number in /proc/PID/syscall; None: not in a system call (`running`, -1)."""
    words = data.split()
    return parse_number(words[0]) if words else None


def parse_stack(data: bytes) -> tuple[str, ...]:
    """Parse the functions in /proc/PID/stack, innermost first."""
    found = []
    for line in data.splitlines()[:_KERNEL_FRAMES]:
        _, _, name = line.partition(b"] ")
        name = name.partition(b"+")[0].partition(b".")[0].strip()
        if name:
            found.append(_decode(name)[:80])
    return tuple(found)


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
