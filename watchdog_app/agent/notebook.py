"""Which notebook this kernel runs, where Jupyter tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def notebook_path(env: Mapping[str, str] = os.environ) -> str | None:
    """
    Path of the notebook of this kernel, or None.

    Source: Jupyter Server 2 sets JPY_SESSION_NAME for the kernels that it starts.
    """
    name = env.get("JPY_SESSION_NAME", "")
    return name if name.endswith(".ipynb") else None


def program_path(env: Mapping[str, str] = os.environ) -> str | None:
    """Absolute path of the notebook or script that this process runs, or None."""
    found = notebook_path(env) or _vscode_notebook()
    if found is None:
        found = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(found, str) or "ipykernel" in os.path.basename(found):
        return None
    return os.path.abspath(found)


def _vscode_notebook() -> str | None:
    """VS Code leaves the path in the kernel's own variables and nowhere else."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get() if get else None
    found = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__")
    return found if isinstance(found, str) else None
