"""Notebook names in the command lines and sessions of Jupyter programs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

# VS Code names its sessions on a Jupyter server after the notebook and an id.
VSCODE_SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{32,}(?=\.ipynb$)")


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
