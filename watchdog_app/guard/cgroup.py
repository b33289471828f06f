"""
A memory group for one program: the common part of both versions of control groups.

The kernel kills at its limit, as in any group, until `enforce_limit`. From then on a process that
reaches the limit waits. Every process can be frozen for a copy, or stopped like Ctrl-Z does.

Sources: kernel, Documentation/admin-guide/cgroup-v1/memory.rst (10. OOM control),
cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst (memory interface files, cgroup.freeze).
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from watchdog_app.base.linux.cgroups import (
    Group,
    Usage,
    group_oom_kills,
    memberships,
    read_usage,
)
from watchdog_app.base.linux.files import read_or_empty, write_bytes
from watchdog_app.base.linux.process import read_stat

PREFIX = "watchdog-guard-"
_GUARD = re.compile(rf"(^|/){PREFIX}[^/]*")
LEAST_LIMIT_BYTES = 32 << 20  # below this a Python does not even start
_STOP_TIMEOUT_S = 3.0  # a throttled task (cgroup v2) sleeps up to 2 s before it handles a signal
# a process that waits at the limit handles a signal only after it gets its page
_SIGNAL_ROOM_BYTES = 4 << 20
_POLL_S = 0.002
_CLOSE_TIMEOUT_S = 2.0
# Kernel functions in which a thread waits and cannot continue on its own. A thread at the limit of
# its cgroup (v1) waits in a page fault and cannot be frozen.
_HALTED = (
    *(b"__refrigerator", b"mem_cgroup_oom_synchronize", b"do_freezer_trap", b"do_exit"),
    b"do_signal_stop",  # a thread that is stopped and frozen looks asleep
)
_EXITING_WAITS = (b"do_exit",)  # kernel function in which an exiting thread waits
# The launcher enters the group and then becomes the command: same pid, nothing charged before.
_ENTER_SCRIPT = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class Cgroup:
    """
    A group that exists. Its methods raise OSError if the kernel refuses.

    Attributes:
        kind: "cgroup v1", "cgroup v2" or "systemd scope", for messages.
        path: folder in the memory hierarchy; empty for a scope before its first process.
        freezer: folder in the freezer hierarchy of version 1, if there is one.
    """

    kind = ""
    version = 0
    freezer: str | None = None

    def __init__(self, path: str, limit_bytes: int, swap_bytes: int = 0) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.swap_bytes = swap_bytes
        self._event: int | None = None  # signals the limit
        self._stopped = self._frozen = False
        # stopped by another program: they stay stopped
        self._stopped_before: set[int] | None = None
        # (pid, start ticks) of parents that may stop, too
        self._parents: list[tuple[int, int]] = []

    def enter(self, pid: int) -> None:
        """Move a process into the group; its later children are in the group as well."""
        self._write("cgroup.procs", pid)

    def leave(self, pid: int) -> None:
        """Move a process to the parent of the group."""
        for folder in filter(None, (self.path, self.freezer)):
            with suppress(OSError):  # not every group of version 2 may hold processes
                write_bytes(f"{os.path.dirname(folder)}/cgroup.procs", b"%d" % pid)

    def set_limit(self, limit_bytes: int) -> None:
        """Set another limit, effective at once."""
        raise NotImplementedError

    def enforce_limit(self) -> None:
        """Stop the kernel from killing at the limit: processes wait there until `lift_limit`."""
        raise NotImplementedError

    def rewrite_limit(self) -> None:
        """Write the limits again if another program, such as systemd, has changed them."""

    def lift_limit(self) -> None:
        """Let the kernel kill at the limit again, so that no process waits for ever."""
        raise NotImplementedError

    def open_event(self) -> tuple[int, int]:
        """Open the descriptor that signals the limit; return it with its poll mask."""
        raise NotImplementedError

    def clear_event(self) -> None:
        """Reset the event, so that the next one is signalled."""
        raise NotImplementedError

    def at_limit(self) -> bool:
        """Whether a process waits for memory and the kernel can reclaim none."""
        raise NotImplementedError

    def freeze(self) -> bool:
        """Freeze every process, for a copy. False: a process still runs."""
        self._record_stopped()
        return self._freeze()

    def usage(self) -> Usage:
        """The current usage of the group."""
        return read_usage(self.path, self.version)

    def pids(self) -> list[int]:
        """All processes in the group and below it."""
        return list(Group(self.path, self.version).pids(strict=False))

    def stop(self, again: bool = False) -> bool:
        """
        Stop all processes like Ctrl-Z does, so that a shell shows its prompt and `kill` works.

        A process that waits at the limit handles no signal before it gets memory. So this raises
        the limit a little, and the caller must set the limit again. Processes that were stopped
        before stay stopped at `resume`, unless `again`.

        sudo, su and runuser stop when their command does; `resume` continues them, too.

        Returns:
            False if SIGSTOP cannot stop a process (PID 1 of a namespace, another user's process).
            Also False if a parent of another user could not be continued. All processes are then
            frozen instead.
        """
        if again:
            self._stopped_before = set()
        self._record_stopped()
        self._stopped, self._frozen = True, False
        if not self._record_parents(again):
            self._frozen = self.freeze()
            return False
        end_mono_s = time.monotonic() + _STOP_TIMEOUT_S
        while not self.is_stopped():
            if time.monotonic() > end_mono_s:
                self._frozen = self.freeze()
                return False
            self._signal(signal.SIGSTOP)
            with suppress(OSError):
                used = self.usage().used_bytes
                self.set_limit(max(self.limit_bytes, used + _SIGNAL_ROOM_BYTES))
            self._unfreeze()
            pause_end = time.monotonic() + 0.1
            while not self.is_stopped() and time.monotonic() < pause_end:
                time.sleep(_POLL_S)
        self._unfreeze()
        return True

    def resume(self, everyone: bool = False) -> None:
        """Resume the processes of `stop` or `freeze`; with `everyone` all processes."""
        self._unfreeze()
        before, self._stopped_before = self._stopped_before or set(), None
        if self._stopped or everyone:
            self._stopped = False
            self._signal(signal.SIGCONT, set() if everyone else before)
            self._continue_parents()

    def is_stopped(self) -> bool:
        """Whether every thread is stopped."""
        return all_halted(self.pids(), waits=_EXITING_WAITS)

    def was_continued(self) -> bool:
        """Whether another program has resumed the processes of `stop`."""
        return self._stopped and not self._frozen and not self.is_stopped()

    def remove(self) -> bool:
        """Remove the group if it is empty; False: it holds a process."""
        if self._event is not None:
            os.close(self._event)
            self._event = None
        for folder in filter(None, (self.freezer, self.path)):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                if folder == self.path:
                    return False
        return True

    # For a program that is started in a group in which the kernel kills.

    def command(self, argv: Sequence[str]) -> list[str]:
        """The same command with a launcher that moves it into the group."""
        return ["/bin/sh", "-c", _ENTER_SCRIPT, self.path, *argv]

    def oom_kills(self) -> int | None:
        """Number of processes of the group that the kernel killed for memory; None: unknown."""
        return group_oom_kills(self.path)

    def close(self) -> None:
        """Kill all processes in the group and remove it."""
        end_mono_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while not self.remove() and time.monotonic() < end_mono_s:
            self._signal(signal.SIGKILL)
            time.sleep(0.02)  # killed processes leave the group when they are reaped

    def _record_stopped(self) -> None:
        """Record the stopped processes before a freeze: after it a stopped thread looks asleep."""
        if self._stopped_before is None:
            stats = (read_stat(pid) for pid in self.pids())
            self._stopped_before = {each.pid for each in stats if each and each.state in "Tt"}

    def _record_parents(self, again: bool) -> bool:
        """Record parents that stop with a child, such as sudo. False: one is another user's."""
        pids = self.pids()
        stats = [stat for stat in map(read_stat, pids) if stat is not None]
        self._parents = []
        for parent in {stat.ppid for stat in stats} - {0, 1, *pids}:
            if not _may_signal(parent):
                return False
            stat = read_stat(parent)
            while stat is not None and stat.pid > 1 and _may_signal(stat.pid):
                if again or stat.state not in "Tt":
                    self._parents.append((stat.pid, stat.start_ticks))  # the inner ones first
                stat = read_stat(stat.ppid)
        return True

    def _continue_parents(self) -> None:
        for pid, start_ticks in self._parents:
            stat = read_stat(pid)
            if stat is not None and stat.start_ticks == start_ticks and stat.state == "T":
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
        self._parents = []

    def _freeze(self) -> bool:
        raise NotImplementedError

    def _unfreeze(self) -> None:
        """End the freeze; processes that a signal has stopped stay stopped."""
        raise NotImplementedError

    def _signal(self, number: int, but: Collection[int] = ()) -> None:
        for pid in self.pids():
            if pid not in but:
                with suppress(OSError):
                    os.kill(pid, number)

    def _read(self, name: str) -> str:
        return read_or_empty(f"{self.path}/{name}").decode()

    def _write(self, name: str, value: int | str) -> None:
        write_bytes(f"{self.path}/{name}", str(value).encode())


def _may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except OSError:  # it has ended
        pass
    return True


def guard_group_name(pid: int, start_time: int) -> str:
    """The name of the group of a program's guard."""
    return f"{PREFIX}{pid}-{start_time}"


def guard_of_process(pid: int) -> str | None:
    """The name of the guard that a process is in, or None. May wait for a kernel lock."""
    return next(filter(None, map(guard_in_path, memberships(pid).values())), None)


def guard_in_path(path: str) -> str | None:
    """The name of the guard in the path of a group, or None."""
    found = _GUARD.search(path)
    return None if found is None else found[0].removeprefix("/").removesuffix(".scope")


def enclosing_path(name: str) -> str | None:
    """Path of the group around this process's guard, if any (`memory`, `freezer`, '' for v2)."""
    path = memberships().get(name)
    return None if path is None else path_outside(path)


def path_outside(path: str) -> str:
    """The path of the group above a guard, for a path in or below one; other paths unchanged."""
    found = _GUARD.search(path)
    return path if found is None else path[: found.start()] or "/"


def all_halted(pids: Iterable[int], waits: Collection[bytes] = _HALTED) -> bool:
    """
    Whether all threads of these processes are stopped until another process continues them.

    Args:
        pids: pids of the processes.
        waits: kernel functions in which a waiting thread counts as stopped.

    Source: proc(5), wchan; kernel, mm/memcontrol-v1.c and kernel/cgroup/legacy_freezer.c.
    """
    for pid in pids:
        folder = f"/proc/{pid}/task"
        with suppress(OSError):  # the process ended
            for thread in os.listdir(folder):
                stat = read_stat(thread, folder)
                if stat is None or stat.state in "XZTt":
                    continue
                # Read wchan before the check for existence: a thread that ended meanwhile is fine.
                wchan = read_or_empty(f"{folder}/{thread}/wchan", 64)
                if wchan not in waits and os.path.exists(f"{folder}/{thread}"):
                    return False
    return True
