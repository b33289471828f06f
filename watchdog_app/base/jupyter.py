"""Notebook names in the command lines of Jupyter programs; where IPython reads startup files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

# VS Code names its sessions on a Jupyter server after the notebook and an id.
VSCODE_SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{32,}(?=\.ipynb$)")

_STARTUP_FILE = os.path.join("startup", "90-watchdog.py")  # placed by `watchdog agent enable`


def environment_startup_file(prefix: str) -> str:
    """
    The path of our startup file for all kernels of one environment.

    Args:
        prefix: folder of the environment.
    """
    return os.path.join(prefix, "etc", "ipython", _STARTUP_FILE)


def user_startup_file(env: Mapping[str, str] = os.environ) -> str:
    """
    The path of our startup file for all kernels of a user with the default profile.

    Args:
        env: environment of the user.
    """
    home = env.get("HOME") or os.path.expanduser("~")
    base = env.get("IPYTHONDIR") or os.path.join(home, ".ipython")
    return os.path.join(base, "profile_default", _STARTUP_FILE)


def notebook_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """
    The notebooks that a command line runs, as written there.

    Options and the value of `--output` do not count. `papermill in.ipynb out.ipynb` runs only the
    first.
    """
    found = tuple(
        word
        for word, before in zip(argv, ("", *argv), strict=False)
        if word.endswith(".ipynb") and not word.startswith("-") and before != "--output"
    )
    runs_one = any(os.path.basename(word) == "papermill" for word in argv[:3])
    return found[:1] if runs_one else found
