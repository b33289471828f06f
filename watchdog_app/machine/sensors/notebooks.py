"""
Which notebook a kernel serves, from what the machine tells about it: pure.

Four witnesses, the best first: the Jupyter server itself (right after a rename
too), the connection file's `jupyter_session`, the kernel's environment
(JPY_SESSION_NAME), the command line of the parent (papermill, nbconvert,
`jupyter execute`). VS Code tells none of them: there the folder has to do.

Sources: jupyter_server, services/sessions; jupyter_client, connection files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchdog_app.base.text.plain import shortened
from watchdog_app.core.model.machine import TaskKind

# What a session's path ends in when it is a document; jupytext opens the others as notebooks.
_DOCUMENTS = (".ipynb", ".md", ".py", ".r", ".rmd", ".qmd", ".jl", ".myst")
LONGEST_PATH = 4096  # PATH_MAX


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


def session_of(path: str, session_type: str | None = None) -> Session:
    """The session of a path; the type is the server's word, or told by the path's ending."""
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
    return text_of(content.get("jupyter_session")) if isinstance(content, dict) else None


def read_json(data: bytes) -> Any:
    """What another program wrote; None for what cannot be read, however it is broken."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):  # the latter: `[[[[...`, by accident or to hurt us
        return None


def text_of(value: object) -> str | None:
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
    A kernel's name from all witnesses.

    Args:
        sessions: what the Jupyter server says now; several documents can share a kernel.
        session_name: of the connection file or the environment.
        parent_notebooks: notebooks on the command line of the process that started it.
        cwd: its working directory, for a kernel that nobody names and for relative paths.
        console: the program at whose prompt its user types; None: there is none.
    """
    if not sessions and session_name:
        sessions = [session_of(session_name)]
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
    """The path from the root; None: relative to a folder that we do not know, or no file's."""
    if path is None or len(path) > LONGEST_PATH:
        return None
    if not os.path.isabs(path):
        if not cwd:
            return None
        path = os.path.join(cwd, path)
    whole = os.path.normpath(path)
    return whole if len(whole) <= LONGEST_PATH else None
