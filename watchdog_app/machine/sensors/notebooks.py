"""
Which notebook a Jupyter kernel serves, from facts about its process. Pure.

There are four sources, best first:

- the Jupyter server itself, which is right even after a rename;
- the `jupyter_session` of the connection file;
- the kernel's environment (JPY_SESSION_NAME);
- the command line of the parent (papermill, nbconvert, `jupyter execute`).

VS Code provides none of them: then the kernel is named after its working folder.

Sources: jupyter_server, services/sessions; jupyter_client, connection files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from watchdog_app.base import time_limit
from watchdog_app.base.errors import SensorError
from watchdog_app.base.jupyter import notebook_arguments
from watchdog_app.base.linux.files import read_regular
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import shortened
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, TaskKind
from watchdog_app.machine.sensors.command_line import (
    LONGEST_PATH,
    Program,
    identify,
    is_spyder_kernel,
    kernel_id,
)

# Suffixes of session paths that are documents; jupytext opens those other than .ipynb as notebooks.
_DOCUMENTS = (".ipynb", ".md", ".py", ".r", ".rmd", ".qmd", ".jl", ".myst")
# The only variables that are kept: an environment also holds secrets.
ENVIRON = (
    "JPY_SESSION_NAME",
    "JPY_PARENT_PID",
    "WATCHDOG_RUNTIME_DIR",
    *time_limit.VARIABLES,
)

_NEVER_FORKED = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.NOTEBOOK))


@dataclass(frozen=True, slots=True)
class Session:
    """One document or console that a kernel serves."""

    path: str  # absolute if the server's folder is known
    kind: TaskKind  # NOTEBOOK or CONSOLE


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel's name as its user knows it."""

    kind: TaskKind
    name: str
    notebook: str | None
    others: tuple[str, ...] = ()  # other notebooks that share the kernel


def make_session(path: str, session_type: str | None = None) -> Session:
    """
    Build the session of a path; its kind comes from the server or from the path's suffix.

    Args:
        path: of the document, or the name of a console.
        session_type: type from the Jupyter server: "notebook", "console", "file"; None: unknown.
    """
    is_document = path.lower().endswith(_DOCUMENTS)
    if session_type == "console" or (session_type is None and not is_document):
        return Session(path, TaskKind.CONSOLE)
    return Session(path, TaskKind.NOTEBOOK)


def parse_connection_file(data: bytes) -> str | None:
    """
    Extract the session name from a kernel's connection file; None: it has none.

    The file also holds the key of the kernel's sockets, which this function never returns.
    """
    content = read_json(data)
    return valid_name(content.get("jupyter_session")) if isinstance(content, dict) else None


def read_json(data: bytes) -> Any:
    """Parse JSON from another program; None if it is malformed in any way."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # RecursionError: `[[[[...`, by accident or as an attack
        return None


def valid_name(value: object) -> str | None:
    """Check a name or path from another program; None: missing, or not a possible file name."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_PATH or "\0" in value:
        return None
    # JSON can hold lone surrogates, which can be neither shown nor stored.
    return value.encode("utf-8", "replace").decode()


def name_kernel(
    sessions: Sequence[Session],
    session_name: str | None,
    parent_notebooks: Sequence[str],
    cwd: str | None,
    console: str | None = None,
) -> KernelName:
    """
    Name a kernel from all known facts.

    Args:
        sessions: the Jupyter server's current sessions; several documents can share a kernel.
        session_name: from the connection file or the environment.
        parent_notebooks: notebooks on the command line of the process that started it.
        cwd: its working directory, for relative paths and for a kernel without any other name.
        console: program at whose prompt the user types; None: none.
    """
    if not sessions and session_name:
        sessions = [make_session(session_name)]
    if not sessions:
        sessions = [Session(path, TaskKind.NOTEBOOK) for path in parent_notebooks]
    if not sessions:
        folder = os.path.basename(cwd.rstrip("/")) if cwd else ""
        kind = TaskKind.KERNEL if console is None else TaskKind.CONSOLE
        what = console or "kernel"
        return KernelName(kind, f"{what} in {folder}" if folder else what, None)
    documents = sorted(session.path for session in sessions if session.kind is TaskKind.NOTEBOOK)
    paths = documents or sorted(session.path for session in sessions)
    names = list(dict.fromkeys(os.path.basename(path) or path for path in paths))
    joined = shortened(", ".join(names))
    if not documents:
        return KernelName(TaskKind.CONSOLE, joined, None)
    whole = list(dict.fromkeys(path for each in documents if (path := absolute(each, cwd))))
    first = whole[0] if whole else None
    return KernelName(TaskKind.NOTEBOOK, joined, first, tuple(whole[1:]))


def absolute(path: str | None, cwd: str | None) -> str | None:
    """
    Make a path absolute; None: its folder is unknown, or it is too long for a file.

    Args:
        path: as given; None: no path.
        cwd: the folder that it is relative to; None: unknown.
    """
    if path is None or len(path) > LONGEST_PATH:
        return None
    if not os.path.isabs(path):
        if not cwd:
            return None
        path = os.path.join(cwd, path)
    whole = os.path.normpath(path)
    return whole if len(whole) <= LONGEST_PATH else None


@dataclass(frozen=True, slots=True)
class ProcessReaders:
    """Functions that read a process by its pid; empty or None if that is denied."""

    argv: Callable[[int], tuple[str, ...]]
    environ: Callable[[int], Mapping[str, str]]  # the variables of `ENVIRON` at least
    cwd: Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Facts about the name of one kernel; read once, and looked up again after a rename."""

    connection_file: str | None
    session_name: str | None
    parent_notebooks: tuple[str, ...]
    server_pids: tuple[int, ...]  # processes that may be its Jupyter server
    console: str | None = None  # program at whose prompt the user types


@dataclass(frozen=True, slots=True)
class Description:
    """What a process is, read in full."""

    info: ProcessInfo
    own: bool = False  # watchdog itself
    kernel: KernelFacts | None = None  # for a Jupyter kernel, whose name can change


def kernel_facts(
    program: Program,
    argv: Sequence[str],
    ppid: int,
    cwd: str | None,
    *,
    variables: Mapping[str, str],
    reads: ProcessReaders,
) -> KernelFacts | None:
    """
    Collect the facts about a kernel's name; None if the process is not a kernel.

    Args:
        program: what the command line says.
        argv: the command line itself.
        ppid: parent of the process.
        cwd: its working directory, if known.
        variables: of its environment.
        reads: readers for other processes.
    """
    overwritten = program.kind is TaskKind.PYTHON and len(argv) == 1
    if program.kind is not TaskKind.KERNEL and not overwritten:
        return None
    launcher = variables.get("JPY_PARENT_PID", "")
    # A process title hides the program. If JPY_PARENT_PID is the parent, Jupyter started this very
    # process. Otherwise a script has only inherited the variable.
    if overwritten and launcher != str(ppid):
        return None
    connection_file = absolute(program.connection_file, cwd)
    session_name = _session_name(connection_file) or variables.get("JPY_SESSION_NAME")
    parent = reads.argv(ppid)
    above = identify(parent) if parent else None
    notebooks: tuple[str, ...] = ()
    # `jupyter lab train.ipynb` opens that notebook in a browser, but serves many.
    if above is not None and above.kind is not TaskKind.SERVER:
        folder = reads.cwd(ppid)
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
    # A process that a notebook starts inherits the notebook's environment, and jupyter_client
    # copies the name into a new kernel's connection file. So the name belongs to the parent's
    # notebook, not to this kernel.
    if session_name is not None and any(
        reads.environ(pid).get("JPY_SESSION_NAME") == session_name for pid in pids
    ):
        session_name = None
    return KernelFacts(connection_file, session_name, notebooks, tuple(pids), console)


def program_of_fork(
    program: Program, argv: Sequence[str], ppid: int, argv_of: Callable[[int], Sequence[str]]
) -> Program:
    """
    Correct the program of a forked process, which still shows its parent's command line.

    A DataLoader worker in a notebook has the command line of the kernel, but is not a kernel.

    Args:
        program: what the command line says.
        argv: the command line.
        ppid: parent of the process.
        argv_of: reads the command line of another process.
    """
    alone = program.kind not in _NEVER_FORKED or len(argv) < 2
    if alone or tuple(argv) != tuple(argv_of(ppid)):
        return program
    return Program(TaskKind.PYTHON, f"forked worker of {program.name}")


def describe_process(
    key: ProcessKey,
    ppid: int,
    uid: int,
    user: str | None,
    exe: str | None,
    *,
    reads: ProcessReaders,
) -> Description:
    """
    Describe a Python process from its command line and environment.

    Args:
        key: of the process.
        ppid: its parent.
        uid: its owner.
        user: the owner's name.
        exe: its executable.
        reads: readers for this process and others.
    """
    argv, variables, cwd = reads.argv(key.pid), reads.environ(key.pid), reads.cwd(key.pid)
    program = program_of_fork(identify(argv, exe), argv, ppid, reads.argv)
    kernel = kernel_facts(program, argv, ppid, cwd, variables=variables, reads=reads)
    info = ProcessInfo(
        key=key,
        ppid=ppid,
        uid=uid,
        user=user,
        exe=exe,
        argv=argv,
        cwd=cwd,
        kind=program.kind,
        name=program.name,
        notebook=absolute(program.notebook, cwd),
        script=absolute(program.script, cwd),
        kernel_id=kernel_id(program.connection_file) if program.connection_file else None,
        runtime_dir=variables.get("WATCHDOG_RUNTIME_DIR") or None,
        ends_unix_s=time_limit.end_unix_s(variables),
    )
    return Description(info, program.own and kernel is None, kernel)


def _session_name(connection_file: str | None) -> str | None:
    if connection_file is not None:
        with suppress(SensorError):
            return parse_connection_file(read_regular(connection_file))
    return None
