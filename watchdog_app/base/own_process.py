"""
What the daemon and a guard's supervisor do for themselves: survive a memory shortage, stay small.

The daemon also runs first and has room for every agent. Sources: mlockall(2), setrlimit(2),
setpriority(2), mallopt(3), proc(5) for oom_score_adj and pagemap.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import sys
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from watchdog_app.base.linux.files import read_or_empty, sysfs_int, write_bytes
from watchdog_app.base.linux.process import read_statm, status_words
from watchdog_app.base.text.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator
    from typing import Any

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_MLOCK_ONFAULT = 1
# The daemon maps 170 MB, mostly untouched (thread stacks and heaps), and all of it counts.
_AMPLE_BYTES = 512 * 2**20
_OOM_SCORE_ADJ = (-900, -500, 0)  # first allowed value wins; -1000 would hide a leak in the daemon
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


def lock_memory() -> str | None:
    """
    Lock the daemon's pages in memory.

    All pages are locked only if RLIMIT_MEMLOCK is far above the mapped size. At the limit,
    MCL_FUTURE makes allocations fail, which is worse than swapping. Otherwise as many pages as fit
    are locked.

    Returns:
        None: all memory is locked; else the reason and what to do.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
            soft = hard
    statm = read_statm()
    mapped_bytes = 0 if statm is None else statm.size_bytes  # includes untouched pages
    ample = soft == resource.RLIM_INFINITY or soft >= max(_AMPLE_BYTES, 3 * mapped_bytes)
    limited = not ample and not _may_lock_without_limit()
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if limited:
            return lock_limit_warning(soft, _lock_within_limit(libc, soft))
        everything = _MCL_CURRENT | _MCL_FUTURE
        # ONFAULT leaves untouched pages out; kernels before 4.4 do not have it.
        for flags in (everything | _MCL_ONFAULT, everything):
            if libc.mlockall(flags) == 0:
                return None
        reason = os.strerror(ctypes.get_errno())
    except (ImportError, OSError, AttributeError) as error:
        reason = str(error)
    return f"The daemon's memory could not be locked: {reason}. It may be swapped out."


def lock_limit_warning(limit_bytes: int, locked_bytes: int) -> str:
    """
    A warning that RLIMIT_MEMLOCK is too low, with the way to raise it.

    Args:
        limit_bytes: RLIMIT_MEMLOCK.
        locked_bytes: amount that is locked.
    """
    return (
        f"{format_bytes(locked_bytes)} of the daemon, its code first, stay in memory, as no more "
        f"than {format_bytes(limit_bytes)} may be locked. The rest, and what it takes later, may "
        "be swapped out, and the daemon is slower while this machine thrashes. For all of it: in "
        "a service of systemd, sudo systemctl edit user@.service with the lines [Service] and "
        "LimitMEMLOCK=infinity; elsewhere a line `* - memlock unlimited` in "
        "/etc/security/limits.conf. Then log in again."
    )


def _lock_within_limit(libc: ctypes.CDLL, limit_bytes: int) -> int:
    """
    Lock resident pages up to the limit; return the number of locked bytes.

    Code comes first: the kernel drops it under pressure even without swap, and then every step of
    the daemon waits for a busy disk. Untouched pages are left out, because they would use up the
    limit for nothing.
    """
    import ctypes

    locked = 0
    for begin, size in _mappings():
        for at, run in _resident_pages(begin, size):
            length = min(run, limit_bytes - locked)
            if length <= 0:
                return locked
            # ctypes truncates a plain int to 32 bits.
            if libc.mlock2(ctypes.c_void_p(at), ctypes.c_size_t(length), _MLOCK_ONFAULT) == 0:
                locked += length
    return locked


def _mappings() -> list[tuple[int, int]]:
    """The daemon's mappings as (begin, bytes), code first."""
    found: list[tuple[bool, int, int]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split()
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            if fields[1].startswith("---") or "[v" in line:  # [vdso], [vvar] and [vsyscall]
                continue
            found.append((fields[1][2] != "x", begin, end - begin))
    return [(begin, size) for _, begin, size in sorted(found)]


def _resident_pages(begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Runs of resident pages as (begin, bytes). Source: proc(5), pagemap, bit 63."""
    page = resource.getpagesize()
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(begin // page * 8)
        entries = file.read(size // page * 8)
    start = None
    for index in range(len(entries) // 8 + 1):
        resident = index < len(entries) // 8 and entries[index * 8 + 7] & 0x80
        if resident and start is None:
            start = index
        elif not resident and start is not None:
            yield begin + start * page, (index - start) * page
            start = None


def _may_lock_without_limit() -> bool:
    """Whether CAP_IPC_LOCK (bit 14) is effective. Source: capabilities(7)."""
    words = status_words(read_or_empty("/proc/self/status"), b"CapEff")
    return bool(words) and bool(int(words[0], 16) >> 14 & 1)


def lower_oom_score() -> int | None:
    """Lower the daemon's oom_score_adj as far as allowed; return it, None if unknown."""
    path = "/proc/self/oom_score_adj"
    for value in _OOM_SCORE_ADJ:
        now = sysfs_int(path)
        if now is None or now <= value:
            return now
        with suppress(OSError):
            write_bytes(path, b"%d" % value)
    return sysfs_int(path)


class _LazyModule(ModuleType):
    """A placeholder that imports its module at first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def load_lazily(*names: str) -> None:
    """
    Load modules of the standard library at first use, not when other modules import them.

    `dataclasses` imports `inspect`, which it only needs for records without a docstring (up to
    Python 3.12). `subprocess` imports `locale` for text output. Call this before importing those
    two: it saves the daemon 1.2 MB. importlib.util.LazyLoader does not help, because the import
    statement reads the module's `__spec__` and so loads the module.
    """
    for name in names:
        sys.modules.setdefault(name, _LazyModule(name))


def freeze_garbage() -> None:
    """
    Exclude the objects of the startup from garbage collection, because they live to the end.

    This also frees memory that only the startup needed: 0.5 MB of the C library's heap, and 0.15 MB
    of importer caches, which a later import reads again. Call it before `lock_memory`, which would
    keep that memory.
    """
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    call_libc("malloc_trim", 0)


def call_libc(name: str, *arguments: int) -> bool:
    """Call a function of the C library; False if it is missing (musl, macOS) or fails with -1."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        return bool(getattr(ctypes.CDLL(None), name)(*arguments) != -1)
    return False


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
