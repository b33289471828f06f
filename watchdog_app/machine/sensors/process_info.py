"""
What a Linux process is, read in full once: program, notebook, memory group, limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.base.linux.files import read_bytes, read_link, read_record
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey
from watchdog_app.machine.sensors.command_line import identify, kernel_id
from watchdog_app.machine.sensors.kernels import ENVIRON, Sessions, Witnesses, forked, gather, named
from watchdog_app.machine.sensors.notebooks import absolute
from watchdog_app.machine.sensors.process_files import TICKS_PER_S, read_argv, read_exe

_ENVIRON_LIMIT = 1 << 20
_CLOCK_SET_S = 2.0  # less is rounding, and a clock that is being corrected


@dataclass(frozen=True, slots=True)
class Description:
    """What a full read found."""

    info: ProcessInfo
    own: bool = False  # watchdog itself
    kernel: Witnesses | None = None  # of Jupyter: its name can change


class _Said(NamedTuple):
    """What stands in the memory of processes."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    argv_of: Callable[[int], tuple[str, ...]]  # of others


class Describer:
    """Reads processes in full and names them."""

    def __init__(self, proc: str, layout: Layout, sessions: Sessions) -> None:
        self._proc = proc
        self._layout = layout
        self._sessions = sessions
        self._users: dict[int, str | None] = {}

    def describe(self, pid: int, stat: process.Stat, uid: int) -> Description:
        """
        All about one process. What may not be read is None.

        It may have to wait for the process: for any thread. `placed` adds what is known at once.

        Args:
            pid: of a process that is a Python.
            stat: of the same, just read.
            uid: its owner.
        """
        argv = read_argv(self._proc, pid)
        said = _Said(argv, self._environ(pid), self._argv_of)
        return self._describe(pid, stat, uid, said)

    def outside(self, pid: int, stat: process.Stat, uid: int) -> Description:
        """The same as far as it never has to wait: without command line and environment."""
        return self._describe(pid, stat, uid, _Said((), {}, lambda _: ()))

    def placed(
        self, description: Description, stat: process.Stat, now_unix_s: float
    ) -> Description:
        """The same with its start by the clock as it is now, and a kernel with its name."""
        info = replace(description.info, started_unix_s=self.started(stat, now_unix_s))
        placed = replace(description, info=info)
        return replace(placed, info=self.renamed(placed))

    def _describe(self, pid: int, stat: process.Stat, uid: int, said: _Said) -> Description:
        argv, variables, argv_of = said
        exe = read_exe(self._proc, pid)
        program = forked(identify(argv, exe), argv, stat.ppid, argv_of)
        cwd = self._cwd_of(pid)
        kernel = gather(
            program,
            argv,
            stat.ppid,
            cwd,
            environ=lambda: variables,
            environ_of=self._environ,
            argv_of=argv_of,
            cwd_of=self._cwd_of,
        )
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
            cgroup=None,  # told by `Memberships`: the read can wait for a lock
            started_unix_s=None,
            rlimit_as_bytes=self.rlimit_as(pid),
            # With a terminal of its own it is what a notebook runs by `!python train.py`: the
            # shell between the two has become the program.
            leads_session=stat.session == pid and stat.tty == 0,
            runtime_dir=variables.get("WATCHDOG_RUNTIME_DIR") or None,
        )
        return Description(info, program.own and kernel is None, kernel)

    def renamed(self, description: Description) -> ProcessInfo:
        """The same process under the name that it has now: only kernels change theirs."""
        if description.kernel is None:
            return description.info
        return named(description.info, description.kernel, self._sessions)

    def group(self, membership: bytes) -> str | None:
        """Folder of the group that charges a process, of its /proc/PID/cgroup; None: none seen."""
        return self._layout.locate(membership)

    def rlimit_as(self, pid: int) -> int | None:
        """Soft limit of its address space; None: unlimited or not for us to see."""
        with suppress(SensorError):
            return process.parse_rlimit_as(read_record(f"{self._proc}/{pid}/limits"))
        return None

    def _argv_of(self, pid: int) -> tuple[str, ...]:
        return read_argv(self._proc, pid)

    def _cwd_of(self, pid: int) -> str | None:
        with suppress(SensorError):
            return read_link(f"{self._proc}/{pid}/cwd").removesuffix(" (deleted)")
        return None

    def _environ(self, pid: int) -> dict[str, str]:
        with suppress(SensorError):
            data = read_bytes(f"{self._proc}/{pid}/environ", _ENVIRON_LIMIT)
            return process.parse_environ(data, ENVIRON)
        return {}

    def started(
        self, stat: process.Stat, now_unix_s: float, before: float | None = None
    ) -> float | None:
        """
        When a process began, by the clock as it is set now; None: unknown.

        Args:
            stat: of the process.
            now_unix_s: now.
            before: as told last; it stays where the clock was not set since.
        """
        found = self._started(stat, now_unix_s)
        if found is None or before is None or abs(found - before) >= _CLOCK_SET_S:
            return found
        return before

    def _started(self, stat: process.Stat, now_unix_s: float) -> float | None:
        with suppress(SensorError):
            uptime_s = process.parse_uptime(read_record(f"{self._proc}/uptime", 64))
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
