"""The notebook that this kernel runs, as far as the process itself knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from watchdog_app.base.jupyter import VSCODE_SUFFIX, notebook_arguments

# Programs that start a kernel to run a notebook given as an argument.
_RUNNERS = frozenset(("jupyter-execute", "jupyter-nbconvert", "nbconvert", "papermill"))


def notebook_path(env: Mapping[str, str] = os.environ) -> str | None:
    """
    Path of this kernel's notebook, or None.

    A script that a notebook has started inherits its variables but is not a notebook.

    Sources: VS Code sets `__vsc_ipynb_file__` in the kernel. Jupyter Server 2 sets JPY_SESSION_NAME
    for the kernels that it starts. `jupyter execute` and similar programs have the notebook on
    their command line.
    """
    shell = ipython_shell()
    if shell is None and _script_path() is not None:
        return None
    told = read_vscode_notebook()
    if told is not None:
        return told
    name = VSCODE_SUFFIX.sub("", env.get("JPY_SESSION_NAME", ""))
    if name.endswith(".ipynb"):
        return name
    return None if shell is None else _read_executed_notebook(os.getppid())


def read_vscode_notebook() -> str | None:
    """The notebook's path from VS Code, which is only in this kernel's variables."""
    told = getattr(ipython_shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    return told if isinstance(told, str) and told else None


def program_path(env: Mapping[str, str] = os.environ) -> str | None:
    """Absolute path of the notebook or script that this process runs, or None."""
    found = notebook_path(env) or _script_path()
    try:
        return None if found is None else os.path.abspath(found)
    except OSError:  # the working directory was deleted
        return found


def _read_executed_notebook(pid: int) -> str | None:
    """The only notebook on the command line of `pid`; None if it has several."""
    from watchdog_app.base.linux.process import read_argv

    words = read_argv(pid)
    # Itself, or `python PATH`, or `python -m NAME`.
    if _RUNNERS.isdisjoint(os.path.basename(word) for word in words[:3]):
        return None
    named = notebook_arguments(words)
    if len(named) != 1:
        return None
    try:
        return os.path.join(os.readlink(f"/proc/{pid}/cwd"), named[0])
    except OSError:
        return None


def _script_path() -> str | None:
    found = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(found, str) or "ipykernel" in os.path.basename(found):
        return None
    return found


def ipython_shell() -> Any:
    """IPython's shell in this process; None outside a prompt or notebook."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get() if get else None


def running_cell_number(shell: Any) -> int:
    """
    The number of the running cell.

    IPython 9 increments the counter when a cell begins, earlier versions when it ends. Both set
    `_iN` first.
    """
    count = int(shell.execution_count)
    return count if f"_i{count}" in shell.user_ns else count - 1
