"""
What the daemon does for itself: survive what it guards against, and cost next to nothing.

Sources: mlockall(2), setrlimit(2), proc(5) for oom_score_adj and statm.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import sys
import time
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import KeptFile, read_or_empty, sysfs_int, write_bytes
from watchdog_app.base.linux.process import Statm, read_statm, status_words
from watchdog_app.base.text.quantities import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator
    from typing import Any

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_MLOCK_ONFAULT = 1
# Mapped are 170 MB, most of it untouched (stacks and heaps of threads), and it counts.
_AMPLE_BYTES = 512 * 2**20
_OOM_SCORE_ADJ = (-900, -500, 0)  # the lowest that we are allowed; -1000 would hide a leak of ours
_MAX_FILES = 4096
_INITIAL_FILES = 512
# 8 busy loops a core in the same session: a look of 3 ms took 113 ms, with this 18 ms.
_NICE = -10
# Python's own is 5 ms.
_SWITCH_INTERVAL_S = 0.0005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_THRESHOLD_BYTES = 128 * 1024
# Answers, and what files are read into: at 128 KiB they left holes between what stays, 1.4 MB after
# nine minutes of churn; like this 0.9 MB, and no more of them from the sixth minute on.
_MMAP_THRESHOLD_BYTES = 16 * 1024
_GARBAGE_OBJECTS = 1000


def lock_memory() -> str | None:
    """
    Keep our pages in memory; None when they are kept, else why not and what to do.

    All of it only where RLIMIT_MEMLOCK is far above all that we map: at the limit, locking the
    future makes allocations fail, which is worse than being swapped out. Else as much as fits.
    """
    if sys.platform != "linux":
        return "This system cannot keep the daemon's memory from being swapped out."
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
            soft = hard
    statm = read_statm()
    mapped_bytes = 0 if statm is None else statm.size_bytes  # touched or not
    ample = soft == resource.RLIM_INFINITY or soft >= max(_AMPLE_BYTES, 3 * mapped_bytes)
    limited = not ample and not _may_lock_without_limit()
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if limited:
            return lock_limit_warning(soft, _lock_within_limit(libc, soft))
        for flags in (
            _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT,  # ONFAULT: what is never touched stays out
            _MCL_CURRENT | _MCL_FUTURE,  # kernels before 4.4
        ):
            if libc.mlockall(flags) == 0:
                return None
        reason = os.strerror(ctypes.get_errno())
    except (ImportError, OSError, AttributeError) as error:
        reason = str(error)
    return f"The daemon's memory could not be locked: {reason}. It may be swapped out."


def lock_limit_warning(limit_bytes: int, locked_bytes: int) -> str:
    """
    What it means that no more than `limit_bytes` may be locked, and how to allow more.

    Args:
        limit_bytes: RLIMIT_MEMLOCK.
        locked_bytes: what is locked under it.
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
    Lock within the limit what is in memory now; bytes locked.

    Code first: it is dropped under pressure even without swap, and then every step of ours
    waits for a disk that is busy. Then what the interpreter and the C library hold besides,
    then the heap. Pages that were never touched are left out: each would cost a part of the
    limit, and give nothing.
    """
    import ctypes

    locked = 0
    for begin, size in _mappings_by_priority():
        for at, run in _resident_pages(begin, size):
            length = min(run, limit_bytes - locked)
            if length <= 0:
                return locked
            # ctypes would cut a bare number to 32 bits.
            if libc.mlock2(ctypes.c_void_p(at), ctypes.c_size_t(length), _MLOCK_ONFAULT) == 0:
                locked += length
    return locked


def _mappings_by_priority() -> list[tuple[int, int]]:
    """Our mappings, those first that hurt most when they are gone: (begin, bytes)."""
    found: list[tuple[int, int, int]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split()
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            name = os.path.basename(fields[5]) if len(fields) > 5 else ""
            if fields[1].startswith("---") or name.startswith(("[vvar", "[vsyscall", "[vdso")):
                continue
            needed = "python" in name or name.startswith(("libc.", "libc-", "ld-", "[stack"))
            heap = not name or name == "[heap]"
            rank = 0 if fields[1][2] == "x" else 1 if needed else 2 if heap else 3
            found.append((rank, begin, end - begin))
    return [(begin, size) for _, begin, size in sorted(found)]


def _resident_pages(begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Runs of pages that are in memory: (begin, bytes). Source: pagemap of proc(5), bit 63."""
    page = resource.getpagesize()
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(begin // page * 8)
        entries = file.read(size // page * 8)
    start = None
    for index in range(len(entries) // 8 + 1):
        here = index < len(entries) // 8 and entries[index * 8 + 7] & 0x80
        if here and start is None:
            start = index
        elif not here and start is not None:
            yield begin + start * page, (index - start) * page
            start = None


def _may_lock_without_limit() -> bool:
    """CAP_IPC_LOCK (bit 14) is in force: capabilities(7)."""
    words = status_words(read_or_empty("/proc/self/status"), b"CapEff")
    return bool(words) and bool(int(words[0], 16) >> 14 & 1)


def lower_oom_score() -> int | None:
    """Lower our own oom_score_adj as far as allowed; the value now in force, None if unknown."""
    path = "/proc/self/oom_score_adj"
    for value in _OOM_SCORE_ADJ:
        now = sysfs_int(path)
        if now is None or now <= value:
            return now
        with suppress(OSError):
            write_bytes(path, b"%d" % value)
    return sysfs_int(path)


def oom_score_warning(score: int | None) -> str | None:
    """What our oom_score_adj means for us, where it is not below that of other programs."""
    if score is None or score < 0:
        return None
    return (
        f"The daemon may not ask to be killed last (oom_score_adj {score}; less takes root). When "
        "memory runs out the kernel kills by size, and the daemon is small: it is at risk only "
        "where nothing larger is left."
    )


def raise_priority() -> int:
    """
    Lower our nice value as far as allowed; the value now in force.

    Call it before threads are started: they inherit it. Whoever started us with a nice value of
    their own keeps it. Where it is not allowed, a session of our own has to do (sched(7),
    autogroups): there we share with nobody.
    """
    for nice in (_NICE, _NICE // 2):
        if os.getpriority(os.PRIO_PROCESS, 0) != 0:
            break
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    now = os.getpriority(os.PRIO_PROCESS, 0)
    # Processors are shared out among sessions first, and nice values count within one alone.
    if now < 0 and os.getsid(0) == os.getpid():
        with suppress(OSError):
            write_bytes("/proc/self/autogroup", b"%d" % now)
    return now


def shorten_switch_interval() -> None:
    """
    Set a short switch interval, so that a computing thread does not delay the loop.

    One interpreter runs one thread at a time, and who waits for its turn asks for it after the
    switch interval alone. Each file that a look reads gives the turn away: beside a thread that
    takes large answers apart, a look of 0.7 ms took 136 ms, with this 11 ms. It costs nothing while
    no two threads want to compute: nobody asks then, and at rest the others wait in the kernel.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def raise_file_limit() -> None:
    """
    Raise the soft limit of open files: every agent holds a connection.

    The kernel's table of descriptors is enlarged, too. It doubles when it is full, and in a process
    with threads that takes tens of milliseconds (expand_files). Call it before threads are started.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with suppress(OSError), open(os.devnull) as file:  # a limit below
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _INITIAL_FILES - 1))


def limit_heap() -> None:
    """
    Make malloc return freed memory at once; call it before threads are started.

    The C library learns from large pieces that come and go, and keeps ever more of what is free;
    and each thread gets a heap of its own, of which it uses little. Source: mallopt(3).
    """
    for option, value in (
        (_M_ARENA_MAX, 1),
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES),
    ):
        _call_libc("mallopt", option, value)


class _LazyModule(ModuleType):
    """A placeholder that imports its module at the first use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def load_lazily(*names: str) -> None:
    """
    Load modules of the standard library when they are used, not when others import them.

    `dataclasses` imports `inspect`, and up to Python 3.12 uses it for records without a docstring
    alone; `subprocess` imports `locale` for texts. Call it before those: the daemon does without
    1.2 MB. (importlib.util.LazyLoader loads at the import: that looks at the module's `__spec__`.)
    """
    for name in names:
        sys.modules.setdefault(name, _LazyModule(name))


def freeze_garbage() -> None:
    """
    Exclude the objects of the start from garbage collection; they live to the end.

    What the start alone needed is given back, 0.5 MB of the C library's heap: call it before
    `lock_memory`, which would keep it. So are the lists of all files that could be imported,
    0.15 MB: whoever imports something later has them read anew.
    """
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    _call_libc("malloc_trim", 0)


def collect_garbage() -> None:
    """
    Free what Python's own rules would leave for half an hour, and give it back: 3 ms.

    Trainings that came and went grew the daemon by 16 MB an hour, a part of it such garbage. From
    memory that is locked nothing can be given back between pieces in use (madvise(2)): 0.9 MB an
    hour stay.
    """
    young, middle, old = gc.get_count()
    if young >= _GARBAGE_OBJECTS or middle or old:  # at rest there is none
        gc.collect()
        _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    """Call a function of the C library; nothing where it has none of that name (musl, macOS)."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        getattr(ctypes.CDLL(None), name)(*arguments)


class OwnUsage:
    """Memory and processor time of this very process."""

    def __init__(self) -> None:
        self._statm = KeptFile("/proc/self/statm")
        self._cpu_s = time.process_time()
        self._mono_s = time.monotonic()
        self.cpu_percent: float | None = None  # of one core, over the last minute or so

    def rss_bytes(self) -> int | None:
        """Resident memory now; None where the system does not tell."""
        with suppress(SensorError, ValueError):
            return Statm(self._statm.read(128)).resident_bytes
        return None

    def update(self, now_mono_s: float) -> None:
        """Update `cpu_percent` once a minute; call it once a tick."""
        span_s = now_mono_s - self._mono_s
        if span_s < (5 if self.cpu_percent is None else 60):
            return
        now_cpu_s = time.process_time()
        self.cpu_percent = 100 * (now_cpu_s - self._cpu_s) / span_s
        self._cpu_s, self._mono_s = now_cpu_s, now_mono_s


def is_terminal_closed() -> bool:
    """Whether the terminal in whose foreground we were started was closed."""
    try:
        os.tcgetpgrp(0)
    except OSError as error:
        return error.errno == errno.EIO
    return False
