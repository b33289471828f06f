"""
What a Linux process is, read in full once: program, notebook, memory group, limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from watchdog_app.core.records import ProcessInfo, ProcessKey, TaskKind
from watchdog_app.errors import SensorError
from watchdog_app.sensors import procfs
from watchdog_app.sensors.cgroup_paths import GroupLocator
from watchdog_app.sensors.command_line import Program, identify, kernel_id, notebook_arguments
from watchdog_app.sensors.files import read_bytes, read_link
from watchdog_app.sensors.notebooks import (
    Session,
    absolute,
    name_kernel,
    parse_connection_file,
)
from watchdog_app.sensors.process_files import TICKS_PER_S, read_argv, read_exe

_ENVIRON = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
_ENVIRON_LIMIT = 1 << 20


class Sessions(Protocol):
    """Whoever knows which documents a kernel serves now."""

    def of(self, kernel_id: str | None) -> Sequence[Session]:
        """What is known of the kernel; empty: nothing."""


class NoSessions:
    """Nobody knows."""

    def of(self, kernel_id: str | None) -> Sequence[Session]:  # noqa: ARG002
        """Nothing."""
        return ()


@dataclass(frozen=True, slots=True)
class Description:
    """What a full read found; the witnesses of a kernel's name are kept for the next naming."""

    info: ProcessInfo
    own: bool = False  # watchdog itself
    kernel: bool = False  # of Jupyter: its name can change
    connection_file: str | None = None
    session_name: str | None = None
    parent_notebooks: tuple[str, ...] = ()


class Describer:
    """Reads processes in full and names them."""

    def __init__(self, proc: str, locator: GroupLocator, sessions: Sessions) -> None:
        self._proc = proc
        self._locator = locator
        self._sessions = sessions
        self._users: dict[int, str | None] = {}

    def describe(self, pid: int, stat: procfs.Stat, uid: int, now_unix_s: float) -> Description:
        """
        All about one process. What may not be read is None.

        Args:
            pid: of a process that is a Python.
            stat: of the same, just read.
            uid: its owner.
            now_unix_s: to tell when it began.
        """
        exe = read_exe(self._proc, pid)
        argv = read_argv(self._proc, pid)
        program = identify(argv, exe)
        cwd = None
        with suppress(SensorError):
            cwd = read_link(f"{self._proc}/{pid}/cwd").removesuffix(" (deleted)")
        environ = self._environ(pid) if _may_be_kernel(program, argv) else {}
        if program.kind is TaskKind.PYTHON and environ.get("JPY_PARENT_PID") == str(stat.ppid):
            # Its title was overwritten; Jupyter says that it started this very process.
            program = Program(TaskKind.KERNEL, "kernel")
        info = ProcessInfo(
            key=ProcessKey(pid, stat.start_ticks),
            ppid=stat.ppid,
            uid=uid,
            user=self._user(uid),
            exe=exe,
            argv=argv,
            cwd=cwd,
            kind=program.kind,
            name=program.name,
            notebook=absolute(program.notebook, cwd),
            script=absolute(program.script, cwd),
            kernel_id=kernel_id(program.connection_file) if program.connection_file else None,
            cgroup=self.group(pid),
            started_unix_s=self._started(stat, now_unix_s),
            rlimit_as_bytes=self.rlimit_as(pid),
        )
        if program.kind is not TaskKind.KERNEL:
            return Description(info, program.own)
        connection_file = absolute(program.connection_file, cwd)
        description = Description(
            info,
            kernel=True,
            connection_file=connection_file,
            session_name=self._session_name(connection_file) or environ.get("JPY_SESSION_NAME"),
            parent_notebooks=self._parent_notebooks(stat.ppid),
        )
        return replace(description, info=self.name(description))

    def name(self, description: Description) -> ProcessInfo:
        """The same kernel under the name that it has now; other processes as they are."""
        info = description.info
        if not description.kernel:
            return info
        named = name_kernel(
            self._sessions.of(info.kernel_id),
            # A kernel that papermill starts inside a notebook inherits that notebook's
            # environment: the command line that started it knows better.
            None if description.parent_notebooks else description.session_name,
            description.parent_notebooks,
            info.cwd,
        )
        return replace(info, kind=named.kind, name=named.name, notebook=named.notebook)

    def group(self, pid: int) -> str | None:
        """Folder of the group that charges the process; None: none that we can see."""
        with suppress(SensorError):
            return self._locator.locate(read_bytes(f"{self._proc}/{pid}/cgroup", 1 << 14))
        return None

    def rlimit_as(self, pid: int) -> int | None:
        """Soft limit of its address space; None: unlimited or not for us to see."""
        with suppress(SensorError):
            return procfs.parse_rlimit_as(read_bytes(f"{self._proc}/{pid}/limits", 1 << 13))
        return None

    def _environ(self, pid: int) -> dict[str, str]:
        with suppress(SensorError):
            data = read_bytes(f"{self._proc}/{pid}/environ", _ENVIRON_LIMIT)
            return procfs.parse_environ(data, _ENVIRON)
        return {}

    def _session_name(self, connection_file: str | None) -> str | None:
        if connection_file is None:
            return None
        with suppress(SensorError):
            return parse_connection_file(read_bytes(connection_file))
        return None

    def _parent_notebooks(self, ppid: int) -> tuple[str, ...]:
        argv = read_argv(self._proc, ppid)
        # `jupyter lab train.ipynb` opens that one in a browser and serves many.
        if not argv or identify(argv).kind is TaskKind.SERVER:
            return ()
        return notebook_arguments(argv)

    def _started(self, stat: procfs.Stat, now_unix_s: float) -> float | None:
        with suppress(SensorError):
            uptime_s = procfs.parse_uptime(read_bytes(f"{self._proc}/uptime", 64))
            if uptime_s is not None:
                return now_unix_s - uptime_s + stat.start_ticks / TICKS_PER_S
        return None

    def _user(self, uid: int) -> str | None:
        if uid not in self._users:
            try:
                import pwd

                self._users[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, ImportError):  # a container's uid without an entry
                self._users[uid] = None
        return self._users[uid]


def _may_be_kernel(program: Program, argv: Sequence[str]) -> bool:
    """Whether the environment is worth reading: a kernel, or a title that hides what runs."""
    overwritten = program.kind is TaskKind.PYTHON and len(argv) == 1
    return program.kind is TaskKind.KERNEL or overwritten
