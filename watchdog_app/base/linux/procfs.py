"""
Files of processes below /proc: bytes to values, and the few that are read alone.

A process may end at any time and its pid may pass to another: `read_stat` and what is built on it
answer None then. Source: proc(5); kernel, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os

# The keeper of a limit and each Python with an agent import this: `typing` would take 5 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

_PF_EXITING = 0x4  # include/linux/sched.h
_PF_KTHREAD = 0x00200000
_MOST_DIGITS = 20  # of 2**64; int() refuses more than 4300 with an error
_STAT_BYTES = 2048


class Stat:
    """
    What we use of /proc/PID/stat, and of the same file of a thread.

    Attributes:
        comm: the name, which exec and the process itself change.
        state: one letter: R S D T t Z X I.
        pgrp, session: of its job control.
        tty: 0: no controlling terminal.
        tty_pgrp: the group that its terminal listens to.
        major_faults: pages that were read from a disk or from swap.
        cpu_ticks: user and system.
        start_ticks: since boot; with the pid it identifies a process.
        start_stack: moved by exec alone, kept by fork; 0 where we may not see it.
    """

    __slots__ = (
        *("_flags", "_tail", "comm", "cpu_ticks", "major_faults", "pgrp", "ppid", "session"),
        *("start_stack", "start_ticks", "state", "threads", "tty", "tty_pgrp", "vsize_bytes"),
    )

    def __init__(self, data: bytes) -> None:
        """
        Raises:
            ValueError: not a whole line of that file.
        """
        # The command's name stands in parentheses and may hold any byte, ") Z (" too;
        # nothing after it holds a parenthesis.
        opened = data.find(b"(")
        closed = data.rfind(b")")
        rest = data[closed + 2 :].split(b" ", 26)
        if opened < 0 or closed < opened or len(rest) < 27:
            raise ValueError(f"no line of /proc/PID/stat: {data[:64]!r}")
        self.comm = data[opened + 1 : closed]
        self.state = rest[0].decode("ascii")
        self.ppid = int(rest[1])
        self.pgrp = int(rest[2])
        self.session = int(rest[3])
        self.tty = int(rest[4])
        self.tty_pgrp = int(rest[5])
        self._flags = int(rest[6])
        self.major_faults = int(rest[9])
        self.cpu_ticks = int(rest[11]) + int(rest[12])
        self.threads = int(rest[17])
        self.start_ticks = int(rest[19])
        self.vsize_bytes = int(rest[20])
        self.start_stack = int(rest[25])
        self._tail = rest[26]

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a thread of the kernel, which can never become a program."""
        return bool(self._flags & _PF_KTHREAD)

    @property
    def has_ended(self) -> bool:
        """Whether only the parent has not taken note (a zombie)."""
        return self.state in "ZXx"

    @property
    def is_exiting(self) -> bool:
        """Whether it gives its memory back and has no exit status yet."""
        return bool(self._flags & _PF_EXITING) and not self.has_ended

    @property
    def wait_status(self) -> int | None:
        """How it ended, as wait(2) gives it; None where the kernel does not say."""
        fields = self._tail.split()  # from field 29 on; the status is field 52
        return int(fields[23]) if len(fields) > 23 and fields[23].isdigit() else None


def read_stat(pid: int | str, proc: str = "/proc") -> Stat | None:
    """
    A process as it is now; None: there is none, or it may not be read.

    Args:
        pid: of the process.
        proc: where the proc file system is mounted.
    """
    try:
        file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Stat(os.read(file, _STAT_BYTES))
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None


def start_time(pid: int | str, proc: str = "/proc") -> int | None:
    """
    Start time of a process in ticks since boot; None if no process has that pid.

    Args:
        pid: of the process.
        proc: where the proc file system is mounted.
    """
    stat = read_stat(pid, proc)
    return None if stat is None or stat.has_ended else stat.start_ticks


def parse_tgid(status: bytes) -> int | None:
    """The process that a thread belongs to, of /proc/TID/status; None: not in it."""
    at = status.find(b"\nTgid:")
    words = status[at + 6 : at + 40].split(maxsplit=1) if at >= 0 else []
    return whole(words[0]) if words else None


def parse_statm(data: bytes) -> tuple[int, int]:
    """
    Resident and shared pages of /proc/PID/statm; shared is within resident.

    Raises:
        ValueError: not a whole line of that file.
    """
    fields = data.split(b" ", 3)
    if len(fields) < 4:
        raise ValueError(f"no line of /proc/PID/statm: {data[:64]!r}")
    return int(fields[1]), int(fields[2])


def parse_swap(status: bytes) -> int | None:
    """Bytes that the process has in swap, of /proc/PID/status; None: not in it (no memory)."""
    return _kib_line(status, b"\nVmSwap:")


def parse_shmem(status: bytes) -> int | None:
    """Resident bytes of shared memory, of /proc/PID/status; None: not in it (before Linux 4.5)."""
    return _kib_line(status, b"\nRssShmem:")


def parse_private(smaps_rollup: bytes) -> int | None:
    """Bytes that no other process maps, of /proc/PID/smaps_rollup; None: not in it."""
    clean = _kib_line(smaps_rollup, b"\nPrivate_Clean:")
    dirty = _kib_line(smaps_rollup, b"\nPrivate_Dirty:")
    return None if clean is None or dirty is None else clean + dirty


def parse_pss_anon(smaps_rollup: bytes) -> int | None:
    """Memory of no file, each page divided by its users; None: not in it (before Linux 5.3)."""
    return _kib_line(smaps_rollup, b"\nPss_Anon:")


def whole(word: bytes) -> int | None:
    """The number that a kernel file holds there; None: no number, or one beyond 64 bits."""
    return int(word) if word.isdigit() and len(word) <= _MOST_DIGITS else None


def _kib_line(data: bytes, label: bytes) -> int | None:
    at = data.find(label)
    if at < 0:
        return None
    words = data[at + len(label) : at + len(label) + 40].split(maxsplit=1)
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """
    Arguments of /proc/PID/cmdline, printable: bytes that are not UTF-8 appear as `\\xNN`.

    A process may overwrite its own: then the new title is one argument.
    """
    # Programs that overwrite it leave NULs behind; an empty last argument is lost with them.
    trimmed = data.rstrip(b"\0")
    if not trimmed:
        return ()
    return tuple(part.decode("utf-8", "backslashreplace") for part in trimmed.split(b"\0"))


def parse_environ(data: bytes, wanted: Container[str]) -> dict[str, str]:
    """
    The wanted variables of /proc/PID/environ; the rest holds secrets and is dropped.

    Args:
        data: content of the file, entries separated by NUL.
        wanted: names of the variables to keep.
    """
    found = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            key = name.decode("utf-8", "backslashreplace")
            if key in wanted:
                found[key] = value.decode("utf-8", "backslashreplace")
    return found


def parse_rlimit_as(limits: bytes) -> int | None:
    """Soft limit of the address space, of /proc/PID/limits; None: unlimited."""
    for line in limits.splitlines():
        if line.startswith(b"Max address space"):
            soft = line[len(b"Max address space") :].split(maxsplit=1)
            return whole(soft[0]) if soft else None
    return None


def parse_uptime(data: bytes) -> float | None:
    """Seconds since boot, of /proc/uptime; None: not such a file."""
    words = data.split(maxsplit=1)
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def parse_last_pid(loadavg: bytes) -> int | None:
    """The pid that was given out last, threads included, of /proc/loadavg; None: not in it."""
    words = loadavg.split()
    # Emulated kernels write a 0 that never changes.
    return (whole(words[4]) or None) if len(words) >= 5 else None
