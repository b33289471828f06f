"""
Jupyter kernels among the processes: their witnesses gathered, their names given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux.files import read_regular
from watchdog_app.core.model.machine import ProcessInfo, TaskKind
from watchdog_app.machine.sensors.command_line import (
    Program,
    identify,
    is_spyder_kernel,
    notebook_arguments,
)
from watchdog_app.machine.sensors.notebooks import (
    LONGEST_PATH,
    Session,
    absolute,
    name_kernel,
    parse_connection_file,
)

# All that is wanted of an environment, which also holds secrets.
ENVIRON = ("JPY_SESSION_NAME", "JPY_PARENT_PID", "WATCHDOG_RUNTIME_DIR")

_ONE_OF_A_KIND = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.NOTEBOOK))


class Sessions(Protocol):
    """Whoever knows which documents a kernel serves now."""

    def of(self, kernel_id: str | None) -> Sequence[Session]:
        """What is known of the kernel; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What the machine tells about the name of one kernel; read once, asked again at a rename."""

    connection_file: str | None
    session_name: str | None
    parent_notebooks: tuple[str, ...]
    server_pids: tuple[int, ...]  # processes that may be its Jupyter server
    console: str | None = None  # the program at whose prompt its user types


def gather(
    program: Program,
    argv: Sequence[str],
    ppid: int,
    cwd: str | None,
    *,
    environ: Callable[[], Mapping[str, str]],
    environ_of: Callable[[int], Mapping[str, str]],
    argv_of: Callable[[int], Sequence[str]],
    cwd_of: Callable[[int], str | None],
) -> Witnesses | None:
    """
    The witnesses of a kernel's name; None for a process that is no kernel.

    Args:
        program: what the command line says.
        argv: the command line itself.
        ppid: parent of the process.
        cwd: its working directory, where known.
        environ: reads its environment, at least `ENVIRON` of it; asked only where it matters.
        environ_of: reads that of another process; empty when it cannot be read.
        argv_of: reads the command line of another process; empty when it cannot be read.
        cwd_of: likewise its working directory, which its arguments are relative to.
    """
    overwritten = program.kind is TaskKind.PYTHON and len(argv) == 1
    if program.kind is not TaskKind.KERNEL and not overwritten:
        return None
    variables = environ()
    launcher = variables.get("JPY_PARENT_PID", "")
    # A title of its own hides what runs; but Jupyter says that it started this very process,
    # and not only the one from which a script has inherited the variable.
    if overwritten and launcher != str(ppid):
        return None
    connection_file = absolute(program.connection_file, cwd)
    session_name = _session_name(connection_file) or variables.get("JPY_SESSION_NAME")
    parent = argv_of(ppid)
    above = identify(parent) if parent else None
    notebooks: tuple[str, ...] = ()
    # `jupyter lab train.ipynb` opens that one in a browser and serves many.
    if above is not None and above.kind is not TaskKind.SERVER:
        folder = cwd_of(ppid)
        notebooks = tuple(
            absolute(path, folder) or path
            for path in notebook_arguments(parent)
            if len(path) <= LONGEST_PATH
        )
    console = None
    if is_spyder_kernel(argv):
        console = "Spyder console"
    elif above is not None and above.kind is TaskKind.CONSOLE:
        console = above.name
    pids = [ppid, int(launcher)] if launcher.isascii() and launcher.isdigit() else [ppid]
    pids = list(dict.fromkeys(pids))
    # What a notebook starts, it inherits the notebook's environment, and jupyter_client writes
    # that into the new kernel's connection file as well: it names the one that started it.
    if session_name is not None and any(
        environ_of(pid).get("JPY_SESSION_NAME") == session_name for pid in pids
    ):
        session_name = None
    return Witnesses(connection_file, session_name, notebooks, tuple(pids), console)


def forked(
    program: Program, argv: Sequence[str], ppid: int, argv_of: Callable[[int], Sequence[str]]
) -> Program:
    """
    The program of a process that may be a fork: one without an exec bears its parent's words.

    A DataLoader's worker in a notebook has the command line of the kernel, and is none.
    """
    alone = program.kind not in _ONE_OF_A_KIND or len(argv) < 2
    if alone or tuple(argv) != tuple(argv_of(ppid)):
        return program
    return Program(TaskKind.PYTHON, f"forked worker of {program.name}")


def named(info: ProcessInfo, witnesses: Witnesses, sessions: Sessions) -> ProcessInfo:
    """The kernel under the name that it has now."""
    found = name_kernel(
        sessions.of(info.kernel_id),
        # A kernel that papermill starts inside a notebook inherits that notebook's
        # environment: the command line that started it knows better.
        None if witnesses.parent_notebooks or witnesses.console else witnesses.session_name,
        witnesses.parent_notebooks,
        info.cwd,
        witnesses.console,
    )
    return replace(
        info,
        kind=found.kind,
        name=found.name,
        notebook=found.notebook,
        other_notebooks=found.others,
    )


def _session_name(connection_file: str | None) -> str | None:
    if connection_file is not None:
        with suppress(SensorError):
            return parse_connection_file(read_regular(connection_file))
    return None
