"""
What a Linux process is, read in full once: program, notebook, memory group, limits.

Also the framework that it has loaded, and its Python environment, without an agent.

The kernel reads command line and environment under a lock of the process, which may hold it for
seconds. So these reads run in a thread, or their docstring says that they may block.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace

from watchdog_app.base import jupyter
from watchdog_app.base.errors import Gone
from watchdog_app.base.linux import process
from watchdog_app.base.linux.cgroups import Layout
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, TaskKind
from watchdog_app.machine.sensors.command_line import is_interpreter, truncate_argv
from watchdog_app.machine.sensors.notebooks import (
    ENVIRON,
    Description,
    ProcessReaders,
    describe_process,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.sensors.jupyter import JupyterServers

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_ENVIRON_BYTES = 1 << 20
_CLOCK_SET_S = 2.0  # smaller differences come from rounding or from clock correction
_MAPS_BYTES = 8 << 20  # TensorFlow on a GPU has 1,500 lines of 150 bytes
# In this order: TensorBoard loads TensorFlow into trainings of torch, TensorFlow loads JAX's files.
_LIBRARIES = (
    ("torch", re.compile(rb"/libtorch(?:_cpu|_python)?\.so")),
    ("tensorflow", re.compile(rb"/(?:libtensorflow_|_pywrap_tensorflow_internal)")),
    ("jax", re.compile(rb"/(?:libjax_common|xla_extension)")),
)
_VARIABLES = ("PATH", "PYTHONPATH")
_MARKS = ("pyvenv.cfg", "conda-meta")
_HOOK_FOLDER = os.path.join("watchdog_app", "agent", "shim")  # set by `watchdog exec`
_KERNELS = frozenset((TaskKind.NOTEBOOK, TaskKind.KERNEL, TaskKind.CONSOLE))
# Wait until a program has had time to import its framework.
_FIRST_AGE_S = 10.0
# A framework adds at least 60 MiB of mapped files. A data set on disk that is mapped adds more and
# more, so each read waits for a larger step.
_STEP_BYTES = 32 << 20
_STEP_SHARE = 0.25
MOST_READS = 4  # in one sample; each takes 1 ms of CPU time


def read_argv(proc: str, pid: int) -> tuple[str, ...]:
    """
    Read the arguments of a process, cut by `truncate_argv`; empty: without arguments or denied.

    The read may block on a lock of the process.

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.
    """
    return truncate_argv(process.read_argv(pid, proc))


def read_owner(proc: str, pid: int) -> int:
    """
    Read the effective uid of a process; root's if it is not dumpable (prctl PR_SET_DUMPABLE).

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
    Read the executable of a process, even if its file was replaced since; None: none or denied.

    Args:
        proc: where the proc file system is mounted.
        pid: of the process.
    """
    return _read_link(f"{proc}/{pid}/exe")


def has_python_argv(proc: str, pid: int) -> bool:
    """
    Return whether the command line names an interpreter. A command line can be wrong.

    Callers use it if the executable is hidden: for root without the right to trace, in some
    containers. The read may block on the process.

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
        servers: say which documents the kernels serve.
    """

    def __init__(self, proc: str, layout: Layout, servers: JupyterServers) -> None:
        self._proc = proc
        self.layout = layout
        self.servers = servers
        self._users: dict[int, str | None] = {}

    def describe(
        self, pid: int, stat: process.Stat, uid: int, *, waits: bool = True
    ) -> Description:
        """
        Describe one process, without the fields that `complete` sets. What may not be read is None.

        Args:
            pid: of a Python process.
            stat: of the same process, just read.
            uid: its owner.
            waits: also read command line and environment, which may block the thread.
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
        # A process with a terminal of its own is started by a notebook's `!python train.py`: the
        # shell in between has become the program by exec.
        leads = stat.session == pid and stat.tty == 0
        info = replace(found.info, rlimit_as_bytes=self.rlimit_as(pid), leads_session=leads)
        return replace(found, info=info)

    def complete(
        self, description: Description, stat: process.Stat, now_unix_s: float
    ) -> Description:
        """
        Set the start by the current clock and the current name of a kernel.

        Args:
            description: from `describe`.
            stat: of the same process.
            now_unix_s: seconds of the epoch.
        """
        info = replace(description.info, started_unix_s=self.start_unix_s(stat, now_unix_s))
        return replace(description, info=self.servers.with_current_name(info, description.kernel))

    def rlimit_as(self, pid: int) -> int | None:
        """Read the soft limit of the address space, in bytes; None: unlimited or not readable."""
        return process.parse_rlimit_as(read_or_empty(f"{self._proc}/{pid}/limits"))

    def start_unix_s(
        self, stat: process.Stat, now_unix_s: float, before: float | None = None
    ) -> float | None:
        """
        Compute when a process started, by the clock as it is set now; None: unknown.

        Args:
            stat: of the process.
            now_unix_s: now.
            before: the last result; kept unless the clock was set since.
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
    with suppress(OSError):
        return os.readlink(path).removesuffix(" (deleted)")
    return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a process has loaded."""

    framework: str | None  # "torch", "tensorflow", "jax"; None: none of them
    python: str | None  # folder of its Python environment; None: not readable
    agent_waits: bool  # the agent's hook was loaded at its start, so it finds trainings


class LoadedReader:
    """Decides when to read what one process has loaded."""

    def __init__(self) -> None:
        self._due_bytes: float | None = 0.0  # shared memory from which to read; None: never again

    def is_due(self, age_s: float, shared_bytes: int | None) -> bool:
        """
        Return whether a framework may have been loaded since the last read.

        Args:
            age_s: age of the process.
            shared_bytes: its resident file-backed and shared memory; None: not known.
        """
        due = self._due_bytes
        return due is not None and age_s >= _FIRST_AGE_S and (shared_bytes or 0) >= due

    def record(self, loaded: Loaded, shared_bytes: int | None) -> None:
        """
        Record a read.

        Args:
            loaded: its result.
            shared_bytes: shared memory of the process at that time.
        """
        now_bytes = shared_bytes or 0
        found = loaded.framework is not None
        self._due_bytes = None if found else now_bytes * (1 + _STEP_SHARE) + _STEP_BYTES


def read_loaded(proc: str, info: ProcessInfo) -> Loaded:
    """
    Read what a process has loaded. The read may block on the process.

    Args:
        proc: where the proc file system is mounted.
        info: of the process.
    """
    pid = info.key.pid
    environ = read_or_empty(f"{proc}/{pid}/environ", _ENVIRON_BYTES)
    variables = process.parse_environ(environ, _VARIABLES)
    python = find_environment(info, variables)
    return Loaded(
        find_framework(read_or_empty(f"{proc}/{pid}/maps", _MAPS_BYTES)),
        python,
        _HOOK_FOLDER in variables.get("PYTHONPATH", "") or _has_startup_file(info, python),
    )


def find_framework(maps: bytes) -> str | None:
    """
    Find the framework among the mapped files of a process; None: none of the known ones.

    Args:
        maps: content of /proc/PID/maps.
    """
    return next((name for name, library in _LIBRARIES if library.search(maps)), None)


def find_environment(info: ProcessInfo, variables: dict[str, str]) -> str | None:
    """
    Find the folder of a process's Python environment; None: unknown.

    A program that was started by its bare name was found on its PATH, whether or not an environment
    was activated. VIRTUAL_ENV would not say so: a kernel inherits it from its Jupyter server.

    Args:
        info: of the process.
        variables: of its environment.
    """
    if info.exe is None or not info.argv:
        return None
    named = info.argv[0]
    path: str | None = os.path.join(info.cwd or os.sep, named)
    if os.sep not in named:
        exe = os.path.realpath(info.exe)
        folders = filter(os.path.isabs, variables.get("PATH", "").split(os.pathsep))
        paths = (os.path.join(folder, named) for folder in folders)
        path = next((path for path in paths if os.path.realpath(path) == exe), None)
    if path is not None:
        folder = os.path.dirname(os.path.dirname(os.path.normpath(path)))
        if any(os.path.exists(os.path.join(folder, mark)) for mark in _MARKS):
            return folder
    return os.path.dirname(os.path.dirname(info.exe))


def _has_startup_file(info: ProcessInfo, python: str | None) -> bool:
    """Return whether IPython ran our startup file when this kernel started."""
    if info.kind not in _KERNELS or info.started_unix_s is None:
        return False
    paths = [jupyter.user_startup_file()]
    paths += [] if python is None else [jupyter.environment_startup_file(python)]
    for path in paths:
        with suppress(OSError):
            if os.stat(path).st_mtime <= info.started_unix_s:
                return True
    return False
