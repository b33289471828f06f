"""Which notebook this kernel runs, as far as the process itself can tell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

# VS Code, connected to a Jupyter server, names its sessions after the notebook and a number.
_VSCODE_SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{32,}(?=\.ipynb$)")


def notebook_path(env: Mapping[str, str] = os.environ) -> str | None:
    """
    Path of the notebook of this kernel, or None.

    A script that a notebook has started inherits its variables and is no notebook.

    Sources: VS Code sets `__vsc_ipynb_file__` in the kernel; Jupyter Server 2 sets
    JPY_SESSION_NAME for the kernels that it starts.
    """
    shell = _shell()
    if shell is None and _script() is not None:
        return None
    told = told_inside()
    if told is not None:
        return told
    name = _VSCODE_SUFFIX.sub("", env.get("JPY_SESSION_NAME", ""))
    return name if name.endswith(".ipynb") else None


def told_inside() -> str | None:
    """What VS Code has said of the notebook in this kernel's variables, and nowhere else."""
    told = getattr(_shell(), "user_ns", {}).get("__vsc_ipynb_file__")
    return told if isinstance(told, str) and told else None


def program_path(env: Mapping[str, str] = os.environ) -> str | None:
    """Absolute path of the notebook or script that this process runs, or None."""
    found = notebook_path(env) or _script()
    return None if found is None else os.path.abspath(found)


def _script() -> str | None:
    found = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(found, str) or "ipykernel" in os.path.basename(found):
        return None
    return found


def _shell() -> Any:
    """IPython's shell in this process; None: no prompt and no notebook."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get() if get else None
