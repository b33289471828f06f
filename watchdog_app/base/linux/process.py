"""
The parser of /proc/PID: what a process is, what it uses, who descends from it, how it ended.

A process may end at any time and its pid may pass to another program. A reader answers None then,
or nothing; an action compares the start time right before it acts.

Sources: proc(5); kernel, Documentation/filesystems/proc.rst, include/uapi/linux/pidfd.h.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import read_bytes, read_or_empty

# The guard of a limit and each Python with an agent import this: `typing` would take 5 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable

    Key = tuple[int, int]  # pid and start time in ticks since boot

_PF_EXITING = 0x4  # include/linux/sched.h
_PF_KTHREAD = 0x00200000
_MAX_DIGITS = 20  # of 2**64; int() refuses more than 4300 with an error
_STAT_BYTES = 2048
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_SHELLS = frozenset(("ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"))
# _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info): version 0 of the struct has 64 bytes.
_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
# Threads that do not run before somebody lets them, by the kernel function that they wait in. One
# that sleeps at the limit of its group (cgroup v1) cannot be frozen: it is in a page fault.
_HALTED = (
    *(b"__refrigerator", b"mem_cgroup_oom_synchronize", b"do_freezer_trap", b"do_exit"),
    b"do_signal_stop",  # stopped and frozen, it looks asleep
)


class Stat:
    """
    What we use of /proc/PID/stat, and of the same file of a thread.

    Attributes:
        comm: the name, which exec and the process itself change.
        state: one letter: R S D T t Z X I.
        session: of its job control.
        tty: 0: no controlling terminal.
        pid: of the process, or of the thread.
        cpu_ticks: user and system.
        start_ticks: since boot; with the pid it identifies a process.
        start_stack: moved by exec alone, kept by fork; 0 where we may not see it.
    """

    __slots__ = (
        *("_flags", "_tail", "comm", "cpu_ticks", "pid", "ppid", "session", "start_stack"),
        *("start_ticks", "state", "threads", "tty", "vsize_bytes"),
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
        self.pid = int(data[:opened])
        self.comm = data[opened + 1 : closed]
        self.state = rest[0].decode("ascii")
        self.ppid = int(rest[1])
        self.session = int(rest[3])
        self.tty = int(rest[4])
        self._flags = int(rest[6])
        self.cpu_ticks = int(rest[11]) + int(rest[12])
        self.threads = int(rest[17])
        self.start_ticks = int(rest[19])
        self.vsize_bytes = int(rest[20])
        self.start_stack = int(rest[25])
        self._tail = rest[26]

    @property
    def key(self) -> Key:
        """Its pid and its start time: no two processes of one boot share both."""
        return self.pid, self.start_ticks

    @property
    def leads_terminal(self) -> bool:
        """Whether it is the first of a terminal's session, as the shell in it is."""
        return self.session == self.pid and self.tty != 0

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


def start_time(pid: int | str) -> int | None:
    """Start time of a process in ticks since boot; None if no process has that pid."""
    stat = read_stat(pid)
    return None if stat is None or stat.has_ended else stat.start_ticks


class Statm:
    """
    The sizes in /proc/PID/statm, in bytes.

    Attributes:
        size_bytes: of the address space.
        shared_bytes: of files and of shared memory; a part of `resident_bytes`.
        data_bytes: private and writable, the stack included, touched or not.
    """

    __slots__ = ("data_bytes", "resident_bytes", "shared_bytes", "size_bytes")

    def __init__(self, data: bytes) -> None:
        """
        Raises:
            ValueError: not a whole line of that file.
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
    What a process uses now; None: there is none, or it may not be read.

    Args:
        pid: of the process.
        proc: where the proc file system is mounted.
    """
    try:
        return Statm(read_bytes(f"{proc}/{pid}/statm", 256))
    except (SensorError, ValueError):
        return None


def status_words(status: bytes, name: bytes, mark: bytes = b":") -> list[bytes]:
    """
    The words of one line of /proc/PID/status or smaps_rollup; none where the line is missing.

    Args:
        status: content of the file.
        name: of the line, such as `Uid`; never the first one.
        mark: what stands after the name.
    """
    at = status.find(b"\n%b%b" % (name, mark))
    if at < 0:
        return []
    start = at + len(name) + 2
    end = status.find(b"\n", start)
    return status[start : end if end >= 0 else len(status)].split()


def status_bytes(status: bytes, name: bytes) -> int | None:
    """
    The size in one line of /proc/PID/status or smaps_rollup; None: not in it, so not zero.

    Args:
        status: content of the file.
        name: of the line, such as `VmSwap` or, from Linux 4.5 on, `RssShmem`.
    """
    words = status_words(status, name)
    kib = parse_number(words[0]) if words else None
    return None if kib is None else kib * 1024


def parse_number(word: bytes) -> int | None:
    """The number that a kernel file holds there; None: no number, or one beyond 64 bits."""
    return int(word) if word.isdigit() and len(word) <= _MAX_DIGITS else None


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
            return parse_number(soft[0]) if soft else None
    return None


def parse_uptime(data: bytes) -> float | None:
    """Seconds since boot, of /proc/uptime; None: not such a file."""
    words = data.split(maxsplit=1)
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def since_boot_s() -> float:
    """
    Seconds since the machine was started, sleep included.

    Systems without CLOCK_BOOTTIME leave the sleep out. Source: clock_gettime(2).
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def parse_last_pid(loadavg: bytes) -> int | None:
    """The pid that was given out last, threads included, of /proc/loadavg; None: not in it."""
    words = loadavg.split()
    # Emulated kernels write a 0 that never changes.
    return (parse_number(words[4]) or None) if len(words) >= 5 else None


def pids(proc: str = "/proc") -> list[int]:
    """Every process that can be seen; none where nothing can."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    return []


def read_argv(pid: int, proc: str = "/proc") -> tuple[str, ...]:
    """
    Arguments of a process, as of `parse_cmdline`; empty: none, or they may not be read.

    Args:
        pid: of the process, by the numbers of `proc`.
        proc: where the proc file system is mounted.
    """
    return parse_cmdline(read_or_empty(f"{proc}/{pid}/cmdline"))


def read_comm(pid: int, proc: str = "/proc") -> str | None:
    """
    What a process calls itself, 15 characters at most; None: there is none.

    Args:
        pid: of the process, by the numbers of `proc`.
        proc: where the proc file system is mounted.
    """
    name = read_or_empty(f"{proc}/{pid}/comm", 64)
    return name.decode("utf-8", "replace").strip() or None


def read_uids(pid: int) -> frozenset[int]:
    """
    Every user id that the process runs under: real, effective, saved; empty when it is gone.

    A set-uid program has several: it is not its user's alone, and is left alone.
    """
    words = status_words(read_or_empty(f"/proc/{pid}/status"), b"Uid")
    return frozenset(int(word) for word in words[:3])


def innermost_pid(pid: int) -> int | None:
    """
    What a process takes for its own pid: another one than ours in a container; None: unknown.

    Source: proc(5), NSpid of status: one for each namespace, the innermost last.
    """
    words = status_words(read_or_empty(f"/proc/{pid}/status"), b"NSpid")
    return parse_number(words[-1]) if words else None


def cpu_limit_s(pid: int) -> float | None:
    """Seconds of processor time that a process may use (RLIMIT_CPU); None: no limit, or unknown."""
    with suppress(ImportError, AttributeError, OSError, ValueError):  # prlimit is Linux's alone
        import resource

        limits = resource.prlimit(pid, resource.RLIMIT_CPU)
        least = min((each for each in limits if each != resource.RLIM_INFINITY), default=None)
        return None if least is None else float(least)
    return None


def pending_signals(pid: int) -> tuple[int, int]:
    """
    Signals that wait for a process, those of its threads included.

    Returns:
        All of them, and those that a thread would take if it ran: masks with bit N-1 for signal
        N. Both are 0 when the process is gone.
    """
    waiting, taken = 0, 0
    with suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            status = read_or_empty(f"/proc/{pid}/task/{thread}/status")
            pending = _signal_mask(status, b"SigPnd") | _signal_mask(status, b"ShdPnd")
            waiting |= pending
            taken |= pending & ~_signal_mask(status, b"SigBlk")
    return waiting, taken


def stop_pending(pid: int) -> bool:
    """Whether a SIGSTOP was sent to the process that it has not come to yet."""
    import signal

    status = read_or_empty(f"/proc/{pid}/status")
    pending = _signal_mask(status, b"SigPnd") | _signal_mask(status, b"ShdPnd")
    return bool(pending >> (signal.SIGSTOP - 1) & 1)


def _signal_mask(status: bytes, name: bytes) -> int:
    words = status_words(status, name)
    return int(words[0], 16) if words else 0


def all_halted(pids: Iterable[int], waits: Collection[bytes] = _HALTED) -> bool:
    """
    Whether no thread of these processes can run before somebody lets it.

    Args:
        pids: of the processes.
        waits: kernel functions in which a thread cannot run, beside being stopped or ended.

    Source: proc(5), wchan; kernel, mm/memcontrol-v1.c and kernel/cgroup/legacy_freezer.c.
    """
    for pid in pids:
        folder = f"/proc/{pid}/task"
        with suppress(OSError):  # it is gone
            for thread in os.listdir(folder):
                stat = read_stat(thread, folder)
                if stat is None or stat.state in "XZTt":
                    continue
                # Read before: one that has ended meanwhile is not in the way.
                wchan = read_or_empty(f"{folder}/{thread}/wchan", 64)
                if wchan not in waits and os.path.exists(f"{folder}/{thread}"):
                    return False
    return True


def is_interactive_shell(stat: Stat, proc: str = "/proc") -> bool:
    """
    Somebody types in it: a shell that leads a terminal of its own and was given no command.

    So `pipenv shell` and its like begin. `sh -c` in a terminal of its own, as a notebook's
    `!command` runs, is work of the program that started it.

    Args:
        stat: of the process.
        proc: where the proc file system is mounted.
    """
    if not stat.leads_terminal:
        return False
    argv = read_argv(stat.pid, proc)
    if not argv or os.path.basename(argv[0]).lstrip("-") not in _SHELLS:
        return False
    short = [each for each in argv[1:] if each.startswith("-") and not each.startswith("--")]
    if any("i" in each for each in short):
        return True
    return not any("c" in each for each in short) and all(each[:1] == "-" for each in argv[1:])


def descendants(
    roots: Iterable[Key], proc: str = "/proc", others: Collection[Key] = (), *, quick: bool = False
) -> list[Stat]:
    """
    The named processes and all that descend from them, parents before children.

    Children are followed by their parent's pid, so those in sessions of their own are found too.
    Whoever is gone, or whose pid has passed to another process, is left out; so are `others` and
    interactive shells, with all that descends from them: they go their own way.

    Args:
        roots: pid and start time of each.
        proc: where the proc file system is mounted.
        others: pid and start time of those that are left out.
        quick: ask the kernel for the children: as long as the family takes, not all of /proc. While
            children begin and end one may be left out (proc(5), children). Kernels that list none
            are read whole.
    """
    roots = list(roots)
    if quick and any(os.path.exists(f"{proc}/{pid}/task/{pid}/children") for pid, _ in roots):
        return _collect_descendants(
            roots,
            lambda pid: read_stat(pid, proc),
            lambda pid: _listed_children(pid, proc),
            others,
            proc,
        )
    stats = (read_stat(pid, proc) for pid in pids(proc))
    by_pid = {stat.pid: stat for stat in stats if stat is not None}
    children: dict[int, list[Stat]] = {}
    for stat in by_pid.values():
        children.setdefault(stat.ppid, []).append(stat)
    return _collect_descendants(roots, by_pid.get, lambda pid: children.get(pid, ()), others, proc)


def _listed_children(parent: int, proc: str) -> list[Stat]:
    found = []
    with suppress(OSError):
        for thread in os.listdir(f"{proc}/{parent}/task"):
            for pid in read_or_empty(f"{proc}/{parent}/task/{thread}/children").split():
                stat = read_stat(int(pid), proc)
                if stat is not None and stat.ppid == parent:
                    found.append(stat)
    return found


def _collect_descendants(
    roots: Iterable[Key],
    read: Callable[[int], Stat | None],
    children: Callable[[int], Iterable[Stat]],
    others: Collection[Key],
    proc: str,
) -> list[Stat]:
    found: dict[int, Stat] = {}
    for root in roots:
        start = read(root[0])
        if start is None or start.key != root or start.pid in found:
            continue
        queue = [start]
        for parent in queue:
            if parent.pid in found:
                continue
            found[parent.pid] = parent
            queue.extend(
                child
                for child in children(parent.pid)
                if child.key not in others and not is_interactive_shell(child, proc)
            )
    return list(found.values())


def is_below_shell(pid: int, root: int) -> bool:
    """
    Whether an interactive shell stands between a process and `root`, from which it descends.

    Args:
        pid: of the process.
        root: pid of the task that it belongs to.
    """
    seen = {0, 1, root}
    while pid not in seen:
        seen.add(pid)
        stat = read_stat(pid)
        if stat is None:
            return False
        if is_interactive_shell(stat):
            return root in ancestors(pid)
        pid = stat.ppid
    return False


def ancestors(pid: int, proc: str = "/proc") -> frozenset[int]:
    """
    The process, its parent, and so on up to the first one.

    Args:
        pid: of the process, by the numbers of `proc`.
        proc: where the proc file system is mounted.
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
    """A descriptor that becomes readable when `pid` ends; None: there is none, or it has ended."""
    with suppress(AttributeError, OSError):  # Linux alone
        return os.pidfd_open(pid)
    return None


def exit_status(pid: int, start_time: int, pidfd: int | None, proc: str = "/proc") -> int | None:
    """
    Status of an ended process as wait(2) gives it; None when it is not known any more.

    Who is not its parent finds it in /proc until the parent has reaped it, and since Linux 6.15
    behind a pidfd.

    Args:
        pid: of the process.
        start_time: field 22 of its stat: the pid may be another's by now.
        pidfd: from `open_pidfd`, opened while it lived.
        proc: where proc is mounted.
    """
    status = _pidfd_exit_status(pidfd)
    if status is not None:
        return status
    stat = read_stat(pid, proc)
    if stat is not None and stat.has_ended and stat.start_ticks == start_time:
        status = stat.wait_status
        if status is not None:
            return status
    # The descriptor knows it from the moment on at which the parent reaps it, /proc up to then:
    # that moment may have been between the two.
    return _pidfd_exit_status(pidfd)


def _pidfd_exit_status(pidfd: int | None) -> int | None:
    """What the kernel keeps behind a pidfd once the process is reaped; None: not yet, or never."""
    if pidfd is None:
        return None
    import fcntl
    import struct

    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info, True)
        if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
            return int(struct.unpack_from("=i", info, 60)[0])
    return None


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
