"""
The framework that a Linux process has loaded, and its Python environment, without an agent.

The kernel lists the mapped libraries under a lock of the process, as it does the environment. So
callers read in a thread.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from watchdog_app.base import jupyter
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import ProcessInfo, TaskKind

_MAPS_BYTES = 8 << 20  # TensorFlow on a GPU has 1,500 lines of 150 bytes
_ENVIRON_BYTES = 1 << 20
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
