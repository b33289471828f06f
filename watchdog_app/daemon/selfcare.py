"""
What the daemon does for itself: survive what it guards against, and cost next to nothing.

Sources: mlockall(2), setrlimit(2), proc(5) for oom_score_adj and statm.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from contextlib import suppress

from watchdog_app.units import format_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_MLOCK_ONFAULT = 1
_OOM_SCORE_ADJ = (-900, -500, 0)  # the lowest that we are allowed; -1000 would hide a leak of ours
_MOST_FILES = 4096


def lock_memory() -> str | None:
    """
    Keep our pages in memory; None when they are kept, else why not and what to do.

    All of it only with an unlimited RLIMIT_MEMLOCK: below a limit, locking the future makes
    later allocations fail, which is worse than being swapped out. Then as much as fits.
    """
    if sys.platform != "linux":
        return "This system cannot keep the daemon's memory from being swapped out."
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY and soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
            soft = hard
    limited = soft != resource.RLIM_INFINITY and not _may_lock_without_limit()
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if limited:
            locked = _lock_what_fits(libc, soft)
            return (
                f"At most {format_bytes(soft)} may be locked (ulimit -l), too little for all of "
                f"the daemon: {format_bytes(locked)} of it are kept in memory, the rest may be "
                "swapped out. Set LimitMEMLOCK=infinity in its unit."
            )
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


def _lock_what_fits(libc: ctypes.CDLL, limit_bytes: int) -> int:
    """
    Lock the interpreter's code, then the heap, within the limit; bytes of address space locked.

    Without its code in memory every step of ours waits for a disk that is busy swapping.
    """
    import ctypes

    code: list[tuple[int, int]] = []
    heap: list[tuple[int, int]] = []
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split()
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 else ""
            if fields[1].startswith("r-x") and "python" in os.path.basename(path):
                code.append((begin, end - begin))
            elif path == "[heap]":
                heap.append((begin, end - begin))
    locked = 0
    for begin, size in (*code, *heap):
        if locked + size <= limit_bytes:
            # ctypes would cut a bare number to 32 bits.
            failed = libc.mlock2(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MLOCK_ONFAULT)
            locked += 0 if failed else size
    return locked


def _may_lock_without_limit() -> bool:
    """CAP_IPC_LOCK (bit 14) is in force: capabilities(7)."""
    with suppress(OSError, ValueError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> 14 & 1)
    return False


def last_to_be_killed() -> int | None:
    """Lower our own oom_score_adj as far as allowed; the value now in force, None if unknown."""
    path = "/proc/self/oom_score_adj"
    for value in _OOM_SCORE_ADJ:
        with suppress(OSError, ValueError):
            with open(path) as file:
                now = int(file.read())
            if now <= value:
                return now
            with open(path, "w") as file:
                file.write(str(value))
            return value
    with suppress(OSError, ValueError), open(path) as file:
        return int(file.read())
    return None


def ordinary_to_be_killed(pid: int) -> None:
    """A child of ours is not protected as we are: it inherits our oom_score_adj."""
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("0")


def allow_many_connections() -> None:
    """Raise the soft limit of open files: every agent holds a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle_garbage() -> None:
    """What was made at the start lives to the end: never look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


class OwnCost:
    """Memory and processor time of this very process."""

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        self._file = -1
        with suppress(OSError):
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._cpu_s = time.process_time()
        self._mono_s = time.monotonic()
        self.cpu_percent: float | None = None  # of one core, over the last minute or so

    def rss_bytes(self) -> int | None:
        """Resident memory now; None where the system does not tell."""
        if self._file < 0:
            return None
        with suppress(OSError, ValueError, IndexError):
            return int(os.pread(self._file, 128, 0).split()[1]) * self._page_bytes
        return None

    def update(self, now_mono_s: float) -> None:
        """Work out `cpu_percent` anew, once a minute; call it once a tick."""
        span_s = now_mono_s - self._mono_s
        if span_s < (5 if self.cpu_percent is None else 60):
            return
        now_cpu_s = time.process_time()
        self.cpu_percent = 100 * (now_cpu_s - self._cpu_s) / span_s
        self._cpu_s, self._mono_s = now_cpu_s, now_mono_s
