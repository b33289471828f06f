"""
What a Linux process is, read in full once: program, notebook, memory group, limits.

Command line and environment are read under a lock of the process, which may keep it for seconds:
what reads them here runs in a thread, or says that it may have to wait.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from watchdog_app.base.errors import Gone, SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.base.linux.files import read_link, read_or_empty
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey
from watchdog_app.machine.sensors.command_line import is_interpreter, truncate_argv
from watchdog_app.machine.sensors.notebooks import (
    ENVIRON,
    Description,
    KernelFacts,
    ProcessReaders,
    Sessions,
    describe_process,
    with_current_name,
)

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_ENVIRON_BYTES = 1 << 20
_CLOCK_SET_S = 2.0  # less is rounding, and a clock that is being corrected


def read_argv(proc: str, pid: int) -> tuple[str, ...]:
    """
    Arguments of a process, cut by `truncate_argv`; empty: none, or they may not be read.

    The kernel may make the caller wait for a lock of the process.

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.
    """
    return truncate_argv(process.read_argv(pid, proc))


def read_owner(proc: str, pid: int) -> int:
    """
    Effective uid of a process; that of root when it has hidden itself (prctl PR_SET_DUMPABLE).

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.

    Raises:
        Gone: it has ended.
    """
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except OSError as error:
        raise Gone(f"process {pid} has ended") from error


def read_exe(proc: str, pid: int) -> str | None:
    """
    Executable of a process, also when its file was replaced since; None: none or denied.

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.
    """
    return _read_link(f"{proc}/{pid}/exe")


def has_python_argv(proc: str, pid: int) -> bool:
    """
    Whether a process is an interpreter by its command line, which can lie.

    It has to do where the executable may not be seen: root without the right to trace, in some
    containers. It may have to wait for the process.

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.
    """
    argv = read_argv(proc, pid)
    return bool(argv) and is_interpreter(argv[0])


class Describer:
    """
    Reads processes in full and names them.

    Args:
        proc: where the proc file system is mounted.
        layout: of the control groups.
        sessions: what Jupyter servers say of their kernels.
    """

    def __init__(self, proc: str, layout: Layout, sessions: Sessions) -> None:
        self._proc = proc
        self._layout = layout
        self._sessions = sessions
        self._users: dict[int, str | None] = {}

    def describe(
        self, pid: int, stat: process.Stat, uid: int, *, waits: bool = True
    ) -> Description:
        """
        All about one process. What may not be read is None; `complete` adds what is known at once.

        Args:
            pid: of a process that is a Python.
            stat: of the same, just read.
            uid: its owner.
            waits: read command line and environment too, for which any thread may have to wait.
        """

        def argv_of(pid: int) -> tuple[str, ...]:
            return read_argv(self._proc, pid) if waits else ()

        def environ_of(pid: int) -> dict[str, str]:
            path = f"{self._proc}/{pid}/environ"
            data = read_or_empty(path, _ENVIRON_BYTES) if waits else b""
            return process.parse_environ(data, ENVIRON)

        found = describe_process(
            ProcessKey(pid, stat.start_ticks),
            stat.ppid,
            uid,
            self._user(uid),
            read_exe(self._proc, pid),
            reads=ProcessReaders(
                argv_of, environ_of, lambda pid: _read_link(f"{self._proc}/{pid}/cwd")
            ),
        )
        # With a terminal of its own it is what a notebook runs by `!python train.py`: the shell
        # between the two has become the program.
        leads = stat.session == pid and stat.tty == 0
        info = replace(found.info, rlimit_as_bytes=self.rlimit_as(pid), leads_session=leads)
        return replace(found, info=info)

    def complete(
        self, description: Description, stat: process.Stat, now_unix_s: float
    ) -> Description:
        """
        The same with its start by the clock as it is now, and a kernel with its name.

        Args:
            description: from `describe`.
            stat: of the same process.
            now_unix_s: seconds of the epoch.
        """
        info = replace(description.info, started_unix_s=self.start_unix_s(stat, now_unix_s))
        return replace(description, info=self.with_current_name(info, description.kernel))

    def with_current_name(self, info: ProcessInfo, kernel: KernelFacts | None) -> ProcessInfo:
        """
        The same process under the name that it has now: only kernels change theirs.

        Args:
            info: of the process.
            kernel: what the machine tells about its name; None: it is no kernel.
        """
        return with_current_name(info, kernel, self._sessions)

    def group_folder(self, membership: bytes) -> str | None:
        """Folder of the group that charges a process, of its /proc/PID/cgroup; None: none seen."""
        return self._layout.locate(membership)

    def rlimit_as(self, pid: int) -> int | None:
        """Soft limit of its address space; None: unlimited or not for us to see."""
        return process.parse_rlimit_as(read_or_empty(f"{self._proc}/{pid}/limits"))

    def start_unix_s(
        self, stat: process.Stat, now_unix_s: float, before: float | None = None
    ) -> float | None:
        """
        When a process began, by the clock as it is set now; None: unknown.

        Args:
            stat: of the process.
            now_unix_s: now.
            before: as told last; it stays where the clock was not set since.
        """
        uptime_s = process.parse_uptime(read_or_empty(f"{self._proc}/uptime", 64))
        if uptime_s is None:
            return None
        found = now_unix_s - uptime_s + stat.start_ticks / TICKS_PER_S
        return found if before is None or abs(found - before) >= _CLOCK_SET_S else before

    def _user(self, uid: int) -> str | None:
        if uid not in self._users:
            try:
                import pwd

                self._users[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, ImportError):  # a container's uid without an entry
                self._users[uid] = None
        return self._users[uid]


def _read_link(path: str) -> str | None:
    with suppress(SensorError):
        return read_link(path).removesuffix(" (deleted)")
    return None
