"""
Parse /proc/PID: identity, memory and descendants of a process.

A process may end at any time, and another program may reuse its pid. Readers then return None or
an empty value. An action must compare the start time right before it acts.

Sources: proc(5); kernel, Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterable
from contextlib import suppress

from watchdog_app.base.linux.files import parse_number, read_or_empty

# The guard and every Python with an agent import this module; `typing` would take 5 ms.
Key = tuple[int, int]  # pid and start time in ticks since boot

_PF_KTHREAD = 0x00200000
_STAT_BYTES = 2048
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
SHELLS = frozenset(("ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"))


class Stat:
    """
    The used fields of /proc/PID/stat, or of the same file of a thread.

    Attributes:
        comm: name of the process; exec and the process itself can change it.
        state: one letter: R S D T t Z X I.
        session: session id.
        tty: controlling terminal; 0: no terminal.
        pid: pid of the process, or id of the thread.
        cpu_ticks: user and system time in clock ticks.
        start_ticks: start time in ticks since boot; together with the pid it identifies a process.
        start_stack: start of the stack; exec changes it, fork keeps it; 0: not readable.

    Args:
        data: content of the file.
    """

    __slots__ = (
        *("_tail", "comm", "cpu_ticks", "flags", "pid", "ppid", "session", "start_stack"),
        *("start_ticks", "state", "threads", "tty", "vsize_bytes"),
    )

    def __init__(self, data: bytes) -> None:
        """
        Raises:
            ValueError: not a complete line of that file.
        """
        # The command name is in parentheses and may contain any byte, even ") Z (". The fields
        # after it contain no parentheses.
        opened = data.find(b"(")
        closed = data.rfind(b")")
        rest = data[closed + 2 :].split(b" ", 26)
        if opened < 0 or closed < opened or len(rest) < 27:
            raise ValueError(f"no line of /proc/PID/stat: {data[:64]!r}")
        self.pid = int(data[:opened])
        self.comm = data[opened + 1 : closed]
        self.state = rest[0].decode("ascii")
        self.ppid = int(rest[1])
        self.session = int(rest[3])
        self.tty = int(rest[4])
        self.flags = int(rest[6])
        self.cpu_ticks = int(rest[11]) + int(rest[12])
        self.threads = int(rest[17])
        self.start_ticks = int(rest[19])
        self.vsize_bytes = int(rest[20])
        self.start_stack = int(rest[25])
        self._tail = rest[26]

    @property
    def key(self) -> Key:
        """Pid and start time, which are unique together until the next boot."""
        return self.pid, self.start_ticks

    @property
    def leads_terminal(self) -> bool:
        """Whether the process leads the session of a terminal, as a login shell does."""
        return self.session == self.pid and self.tty != 0

    @property
    def is_kernel_thread(self) -> bool:
        """Whether it is a kernel thread, which can never become a program."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended (a zombie until its parent reaps it)."""
        return self.state in "ZXx"

    @property
    def wait_status(self) -> int | None:
        """Exit status as from wait(2); None: the kernel does not report it."""
        fields = self._tail.split()  # starts with field 29; the status is field 52
        return int(fields[23]) if len(fields) > 23 and fields[23].isdigit() else None


def read_stat(pid: int | str, proc: str = "/proc") -> Stat | None:
    """
    Read /proc/PID/stat of a process; None: no such process, or not readable.

    Args:
        pid: pid of the process.
        proc: mount point of the proc file system.
    """
    try:
        file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return Stat(os.read(file, _STAT_BYTES))
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None


def start_time(pid: int | str) -> int | None:
    """Start time of a process in ticks since boot; None if no process has that pid."""
    stat = read_stat(pid)
    return None if stat is None or stat.has_ended else stat.start_ticks


class Statm:
    """
    The sizes in /proc/PID/statm, in bytes.

    Attributes:
        size_bytes: size of the address space.
        shared_bytes: file pages and shared memory; a part of `resident_bytes`.
        data_bytes: private writable mappings with the stack, including untouched pages.

    Args:
        data: content of the file.
    """

    __slots__ = ("data_bytes", "resident_bytes", "shared_bytes", "size_bytes")

    def __init__(self, data: bytes) -> None:
        """
        Raises:
            ValueError: not a complete line of that file.
        """
        fields = data.split()
        if len(fields) < 6:
            raise ValueError(f"no line of /proc/PID/statm: {data[:64]!r}")
        self.size_bytes = int(fields[0]) * _PAGE_BYTES
        self.resident_bytes = int(fields[1]) * _PAGE_BYTES
        self.shared_bytes = int(fields[2]) * _PAGE_BYTES
        self.data_bytes = int(fields[5]) * _PAGE_BYTES


def read_statm(pid: int | str = "self", proc: str = "/proc") -> Statm | None:
    """
    Read the memory sizes of a process; None: no such process, or not readable.

    Args:
        pid: pid of the process.
        proc: mount point of the proc file system.
    """
    try:
        return Statm(read_or_empty(f"{proc}/{pid}/statm", 256))
    except ValueError:
        return None


def status_words(status: bytes, name: bytes, mark: bytes = b":") -> list[bytes]:
    """
    The words of one line of /proc/PID/status or smaps_rollup; empty if the line is missing.

    Args:
        status: content of the file.
        name: name of the line, such as `Uid`; it must not be the first line.
        mark: character after the name.
    """
    at = status.find(b"\n%b%b" % (name, mark))
    if at < 0:
        return []
    start = at + len(name) + 2
    end = status.find(b"\n", start)
    return status[start : end if end >= 0 else len(status)].split()


def status_bytes(status: bytes, name: bytes) -> int | None:
    """
    The size in bytes in one line of /proc/PID/status or smaps_rollup; None: the line is missing.

    Args:
        status: content of the file.
        name: name of the line, such as `VmSwap` or, since Linux 4.5, `RssShmem`.
    """
    words = status_words(status, name)
    kib = parse_number(words[0]) if words else None
    return None if kib is None else kib * 1024


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """
    The arguments in /proc/PID/cmdline; bytes that are not UTF-8 appear as `\\xNN`.

    A process may overwrite its command line; the new title is then one argument.
    """
    # Programs that overwrite it leave trailing NULs; removing them also removes empty arguments.
    trimmed = data.rstrip(b"\0")
    if not trimmed:
        return ()
    return tuple(part.decode("utf-8", "backslashreplace") for part in trimmed.split(b"\0"))


def parse_environ(data: bytes, wanted: Container[str]) -> dict[str, str]:
    """
    The wanted variables in /proc/PID/environ; others may contain secrets and are dropped.

    Args:
        data: content of the file, entries separated by NUL.
        wanted: names of the variables to keep.
    """
    found = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "backslashreplace").partition("=")
        if equals and name in wanted:
            found[name] = value
    return found


def parse_rlimit_as(limits: bytes) -> int | None:
    """Soft limit of the address space in /proc/PID/limits; None: unlimited."""
    for line in limits.splitlines():
        if line.startswith(b"Max address space"):
            words = line.split()
            return parse_number(words[3]) if len(words) > 3 else None
    return None


def parse_uptime(data: bytes) -> float | None:
    """Seconds since boot in /proc/uptime; None: invalid content."""
    words = data.split(maxsplit=1)
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def since_boot_s() -> float:
    """
    Seconds since boot, including suspend.

    Systems without CLOCK_BOOTTIME do not count suspend. Source: clock_gettime(2).
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def parse_last_pid(loadavg: bytes) -> int | None:
    """The last assigned pid, threads included, in /proc/loadavg; None: missing."""
    words = loadavg.split()
    # Emulated kernels always write 0.
    return (parse_number(words[4]) or None) if len(words) >= 5 else None


def pids(proc: str = "/proc") -> list[int]:
    """The pids of all visible processes."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    return []


def read_argv(pid: int, proc: str = "/proc") -> tuple[str, ...]:
    """
    The arguments of a process, see `parse_cmdline`; empty: no arguments, or not readable.

    Args:
        pid: pid of the process in `proc`.
        proc: mount point of the proc file system.
    """
    return parse_cmdline(read_or_empty(f"{proc}/{pid}/cmdline"))


def read_comm(pid: int, proc: str = "/proc") -> str | None:
    """
    The name of a process, at most 15 characters; None: no such process.

    Args:
        pid: pid of the process in `proc`.
        proc: mount point of the proc file system.
    """
    name = read_or_empty(f"{proc}/{pid}/comm", 64)
    return name.decode("utf-8", "replace").strip() or None


def read_uids(pid: int) -> frozenset[int]:
    """
    The real, effective and saved user id of a process; empty: no such process.

    A set-uid program has several ids; watchdog does not act on such a program.
    """
    words = status_words(read_or_empty(f"/proc/{pid}/status"), b"Uid")
    return frozenset(int(word) for word in words[:3])


def innermost_pid(pid: int) -> int | None:
    """
    The pid that a process sees as its own; it differs in a container; None: unknown.

    Source: proc(5), NSpid in status: one pid per namespace, the innermost last.
    """
    words = status_words(read_or_empty(f"/proc/{pid}/status"), b"NSpid")
    return parse_number(words[-1]) if words else None


def pending_signals(pid: int) -> int:
    """
    Mask of the signals that are pending for a process or its main thread; 0: no such process.

    Signal N is bit N-1.
    """
    status = read_or_empty(f"/proc/{pid}/status")
    return _signal_mask(status, b"SigPnd") | _signal_mask(status, b"ShdPnd")


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    mask = _signal_mask(read_or_empty(f"/proc/{pid}/status"), b"SigCgt")
    return bool(mask >> (number - 1) & 1)


def blocks(pid: int, number: int) -> bool:
    """Whether the main thread of a process blocks a signal."""
    mask = _signal_mask(read_or_empty(f"/proc/{pid}/status"), b"SigBlk")
    return bool(mask >> (number - 1) & 1)


def own_signal_masks(*names: str) -> int:
    """
    One mask of this process's signals; signal N is bit N-1. 0 where /proc cannot be read.

    Args:
        names: `SigCgt` for those with a handler, `SigIgn` for those that are ignored, `SigBlk` for
            those that the main thread blocks. The mask has the signals of each.
    """
    status = read_or_empty("/proc/self/status")
    found = 0
    for name in names:
        found |= _signal_mask(status, name.encode())
    return found


def _signal_mask(status: bytes, name: bytes) -> int:
    words = status_words(status, name)
    return int(words[0], 16) if words else 0


def is_interactive_shell(stat: Stat, proc: str = "/proc") -> bool:
    """
    Whether a user types in this shell: it leads a terminal's session and runs no given command.

    `pipenv shell` and similar tools start such shells. A notebook's `!command` runs `sh -c` in a
    new terminal, which is work of the notebook.

    Args:
        stat: stat of the process.
        proc: mount point of the proc file system.
    """
    if not stat.leads_terminal:
        return False
    argv = read_argv(stat.pid, proc)
    if not argv or os.path.basename(argv[0]).lstrip("-") not in SHELLS:
        return False
    short = [each for each in argv[1:] if each.startswith("-") and not each.startswith("--")]
    if any("i" in each for each in short):
        return True
    return not any("c" in each for each in short) and all(each[:1] == "-" for each in argv[1:])


def descendants(
    roots: Iterable[Key], proc: str = "/proc", others: Collection[Key] = (), *, quick: bool = False
) -> list[Stat]:
    """
    The root processes and all their descendants, parents before children.

    The parent pid links the processes, so children in new sessions are found too. Roots that have
    ended are left out, even if another process reused the pid. `others` and interactive shells are
    left out with their descendants, because they are independent of the roots.

    Args:
        roots: (pid, start time) of each root.
        proc: mount point of the proc file system.
        others: (pid, start time) of processes to leave out.
        quick: read the kernel's lists of children instead of all of /proc. It can miss a child
            while others start or end (proc(5), children). Without such lists all of /proc is read.
    """
    roots = list(roots)
    listed = quick and any(os.path.exists(f"{proc}/{pid}/task/{pid}/children") for pid, _ in roots)
    children: dict[int, list[Stat]] = {}
    for pid in () if listed else pids(proc):
        stat = read_stat(pid, proc)
        if stat is not None:
            children.setdefault(stat.ppid, []).append(stat)
    found: dict[int, Stat] = {}
    for root in roots:
        start = read_stat(root[0], proc)
        queue = [] if start is None or start.key != root else [start]
        for parent in queue:
            if parent.pid in found:
                continue
            found[parent.pid] = parent
            below = _listed_children(parent.pid, proc) if listed else children.get(parent.pid, ())
            for child in below:
                if child.key not in others and not is_interactive_shell(child, proc):
                    queue.append(child)
    return list(found.values())


def _listed_children(parent: int, proc: str) -> list[Stat]:
    found = []
    with suppress(OSError):
        for thread in os.listdir(f"{proc}/{parent}/task"):
            for pid in read_or_empty(f"{proc}/{parent}/task/{thread}/children").split():
                stat = read_stat(int(pid), proc)
                if stat is not None and stat.ppid == parent:
                    found.append(stat)
    return found


def ancestors(pid: int, proc: str = "/proc") -> frozenset[int]:
    """
    The pids of a process and all its ancestors.

    Args:
        pid: pid of the process in `proc`.
        proc: mount point of the proc file system.
    """
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        stat = read_stat(pid, proc)
        if stat is None:
            break
        pid = stat.ppid
    return frozenset(seen)


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends; None: unsupported, or ended already."""
    with suppress(AttributeError, OSError):  # Linux only
        return os.pidfd_open(pid)
    return None
