"""
Which notebook a Jupyter kernel serves, from what the machine tells about it: pure.

Four sources, the best first: the Jupyter server itself (right after a rename
too), the connection file's `jupyter_session`, the kernel's environment
(JPY_SESSION_NAME), the command line of the parent (papermill, nbconvert,
`jupyter execute`). VS Code tells none of them: there the folder has to do.

Sources: jupyter_server, services/sessions; jupyter_client, connection files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from watchdog_app.base.errors import SensorError
from watchdog_app.base.jupyter import notebook_arguments
from watchdog_app.base.linux.files import read_regular
from watchdog_app.base.text.plain import shortened
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, TaskKind
from watchdog_app.machine.sensors.command_line import (
    LONGEST_PATH,
    Program,
    identify,
    is_spyder_kernel,
    kernel_id,
)

# What a session's path ends in when it is a document; jupytext opens the others as notebooks.
_DOCUMENTS = (".ipynb", ".md", ".py", ".r", ".rmd", ".qmd", ".jl", ".myst")
# All that is wanted of an environment, which also holds secrets.
ENVIRON = ("JPY_SESSION_NAME", "JPY_PARENT_PID", "WATCHDOG_RUNTIME_DIR")

_NEVER_FORKED = frozenset((TaskKind.KERNEL, TaskKind.CONSOLE, TaskKind.NOTEBOOK))


@dataclass(frozen=True, slots=True)
class Session:
    """One document or console that a kernel serves."""

    path: str  # absolute where the server's folder is known
    kind: TaskKind  # NOTEBOOK or CONSOLE


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel as its user knows it."""

    kind: TaskKind
    name: str
    notebook: str | None
    others: tuple[str, ...] = ()  # further notebooks that share the kernel


def make_session(path: str, session_type: str | None = None) -> Session:
    """
    The session of a path; the type is the server's word, or told by the path's ending.

    Args:
        path: of the document, or the name of a console.
        session_type: as a Jupyter server says it: "notebook", "console", "file"; None: not said.
    """
    is_document = path.lower().endswith(_DOCUMENTS)
    if session_type == "console" or (session_type is None and not is_document):
        return Session(path, TaskKind.CONSOLE)
    return Session(path, TaskKind.NOTEBOOK)


def parse_connection_file(data: bytes) -> str | None:
    """
    Session name of a kernel's connection file; None: it holds none.

    The file also holds the key of the kernel's sockets: nothing else leaves this function.
    """
    content = read_json(data)
    return valid_name(content.get("jupyter_session")) if isinstance(content, dict) else None


def read_json(data: bytes) -> Any:
    """What another program wrote; None for what cannot be read, however it is broken."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # the latter: `[[[[...`, by accident or to hurt us
        return None


def valid_name(value: object) -> str | None:
    """A name or path that another program gave; None: there is none, or no file can bear it."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_PATH or "\0" in value:
        return None
    # JSON can hold halves of characters, which can be neither shown nor written down.
    return value.encode("utf-8", "replace").decode()


def name_kernel(
    sessions: Sequence[Session],
    session_name: str | None,
    parent_notebooks: Sequence[str],
    cwd: str | None,
    console: str | None = None,
) -> KernelName:
    """
    A kernel's name from all that is known.

    Args:
        sessions: what the Jupyter server says now; several documents can share a kernel.
        session_name: of the connection file or the environment.
        parent_notebooks: notebooks on the command line of the process that started it.
        cwd: its working directory, for a kernel that nobody names and for relative paths.
        console: the program at whose prompt its user types; None: there is none.
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
    The path from the root; None: relative to a folder that we do not know, or no file's.

    Args:
        path: as it was given; None: there is none.
        cwd: the folder that it is relative to; None: not known.
    """
    if path is None or len(path) > LONGEST_PATH:
        return None
    if not os.path.isabs(path):
        if not cwd:
            return None
        path = os.path.join(cwd, path)
    whole = os.path.normpath(path)
    return whole if len(whole) <= LONGEST_PATH else None


class Sessions(Protocol):
    """Whoever knows which documents a kernel serves now."""

    def find_sessions(self, kernel_id: str | None) -> Sequence[Session]:
        """What is known of the kernel; empty: nothing."""


@dataclass(frozen=True, slots=True)
class ProcessReaders:
    """How processes are read, each by its pid; empty or None where that is refused."""

    argv: Callable[[int], tuple[str, ...]]
    environ: Callable[[int], Mapping[str, str]]  # at least `ENVIRON` of it
    cwd: Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the machine tells about the name of one kernel; read once, asked again at a rename."""

    connection_file: str | None
    session_name: str | None
    parent_notebooks: tuple[str, ...]
    server_pids: tuple[int, ...]  # processes that may be its Jupyter server
    console: str | None = None  # the program at whose prompt its user types


@dataclass(frozen=True, slots=True)
class Description:
    """What a process is, read in full."""

    info: ProcessInfo
    own: bool = False  # watchdog itself
    kernel: KernelFacts | None = None  # of Jupyter: its name can change


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
    What the machine tells about a kernel's name; None for a process that is no kernel.

    Args:
        program: what the command line says.
        argv: the command line itself.
        ppid: parent of the process.
        cwd: its working directory, where known.
        variables: of its environment.
        reads: of other processes.
    """
    overwritten = program.kind is TaskKind.PYTHON and len(argv) == 1
    if program.kind is not TaskKind.KERNEL and not overwritten:
        return None
    launcher = variables.get("JPY_PARENT_PID", "")
    # A title of its own hides what runs; but Jupyter says that it started this very process,
    # and not only the one from which a script has inherited the variable.
    if overwritten and launcher != str(ppid):
        return None
    connection_file = absolute(program.connection_file, cwd)
    session_name = _session_name(connection_file) or variables.get("JPY_SESSION_NAME")
    parent = reads.argv(ppid)
    above = identify(parent) if parent else None
    notebooks: tuple[str, ...] = ()
    # `jupyter lab train.ipynb` opens that one in a browser and serves many.
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
    # What a notebook starts, it inherits the notebook's environment, and jupyter_client writes
    # that into the new kernel's connection file as well: it names the one that started it.
    if session_name is not None and any(
        reads.environ(pid).get("JPY_SESSION_NAME") == session_name for pid in pids
    ):
        session_name = None
    return KernelFacts(connection_file, session_name, notebooks, tuple(pids), console)


def program_of_fork(
    program: Program, argv: Sequence[str], ppid: int, argv_of: Callable[[int], Sequence[str]]
) -> Program:
    """
    The program of a process that may be a fork: one without an exec bears its parent's words.

    A DataLoader's worker in a notebook has the command line of the kernel, and is none.

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
    What the words and the environment of a Python process say of it.

    Args:
        key: of the process.
        ppid: its parent.
        uid: its owner.
        user: the owner's name.
        exe: its executable.
        reads: of this process and of others.
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
    )
    return Description(info, program.own and kernel is None, kernel)


def with_current_name(
    info: ProcessInfo, facts: KernelFacts | None, sessions: Sessions
) -> ProcessInfo:
    """
    The process under the name that it has now: only kernels change theirs.

    Args:
        info: of the process.
        facts: what the machine tells about its name; None: it is no kernel.
        sessions: what Jupyter servers say now.
    """
    if facts is None:
        return info
    found = name_kernel(
        sessions.find_sessions(info.kernel_id),
        # A kernel that papermill starts inside a notebook inherits that notebook's
        # environment: the command line that started it knows better.
        None if facts.parent_notebooks or facts.console else facts.session_name,
        facts.parent_notebooks,
        info.cwd,
        facts.console,
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
