"""
Settings of the daemon's process: run first, stay small, and have room for every agent.

`base.own_process` has what a guard's supervisor does, too. Sources: setpriority(2), mallopt(3),
setrlimit(2).
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import sys
from contextlib import suppress

from watchdog_app.base.linux.files import write_bytes
from watchdog_app.base.own_process import call_libc

_MAX_FILES = 4096
_INITIAL_FILES = 512
# With 8 busy loops per core in the same session, a 3 ms sample took 113 ms; with this 18 ms.
_NICE = -10
# Python's default is 5 ms.
_SWITCH_INTERVAL_S = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_THRESHOLD_BYTES = 128 * 1024
# Buffers for replies and file contents. With a threshold of 128 KiB they left 1.4 MB of holes in
# the heap after nine minutes of heavy use. With 16 KiB it was 0.9 MB, constant from minute six.
_MMAP_THRESHOLD_BYTES = 16 * 1024
_GARBAGE_OBJECTS = 1000


def raise_priority() -> int:
    """
    Lower the daemon's nice value if that is allowed, and return the value.

    Call it before starting threads, which inherit the value. A nice value that the user set stays.
    If the kernel refuses, the daemon relies on its own session, which gets its own share of CPU
    time. Source: sched(7), autogroups.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    now = os.getpriority(os.PRIO_PROCESS, 0)
    # The scheduler divides CPU time among sessions first; nice values only count within a session.
    if now < 0 and os.getsid(0) == os.getpid():
        with suppress(OSError):
            write_bytes("/proc/self/autogroup", b"%d" % now)
    return now


def shorten_switch_interval() -> None:
    """
    Set a short switch interval, so that a computing thread does not delay the main loop.

    The interpreter runs one thread at a time. A waiting thread requests the GIL only after the
    switch interval, and a sample releases the GIL at each file that it reads. Next to a thread
    that parses large replies, a sample of 0.7 ms took 136 ms; with this interval it took 11 ms.
    The interval costs nothing while only one thread computes.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def raise_file_limit() -> None:
    """
    Raise the soft limit of open files, because every agent has a connection.

    This also enlarges the kernel's table of descriptors. The kernel doubles a full table, which
    takes tens of milliseconds in a process with threads (expand_files). Call it before starting
    threads.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with suppress(OSError), open(os.devnull) as file:  # fails if the limit is lower
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _INITIAL_FILES - 1))


def limit_heap() -> None:
    """
    Make malloc return freed memory at once. Call it before starting threads.

    By default malloc raises its thresholds when large blocks are freed, and then keeps more free
    memory. It also gives each thread an arena, which uses little of its memory. Source: mallopt(3).
    """
    for option, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES),
    ):
        call_libc("mallopt", option, value)


def collect_garbage() -> None:
    """
    Free garbage that Python would keep for half an hour, and return the memory; takes 3 ms.

    Without this, trainings that start and end grew the daemon by 16 MB an hour, partly garbage.
    Locked memory between blocks in use cannot be returned (madvise(2)): growth of 0.9 MB an hour
    remains.
    """
    young, middle, old = gc.get_count()
    if young >= _GARBAGE_OBJECTS or middle or old:  # false while the daemon is idle
        gc.collect()
        call_libc("malloc_trim", 0)


def oom_score_warning(score: int | None) -> str | None:
    """A warning if the daemon's oom_score_adj is not below the default of programs; else None."""
    if score is None or score < 0:
        return None
    return (
        f"The daemon may not ask to be killed last (oom_score_adj {score}; less takes root). When "
        "memory runs out the kernel kills by size, and the daemon is small: it is at risk only "
        "where nothing larger is left."
    )
