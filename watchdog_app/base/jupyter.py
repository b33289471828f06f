"""How programs of Jupyter name the notebooks that they run."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# VS Code, connected to a Jupyter server, names its sessions after the notebook and a number.
VSCODE_SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{32,}(?=\.ipynb$)")


def notebook_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """
    Notebooks that a command line says to run, as they are written there.

    Options and the value of `--output` are none; `papermill in.ipynb out.ipynb` runs the first.
    """
    found = tuple(
        word
        for word, before in zip(argv, ("", *argv), strict=False)
        if word.endswith(".ipynb") and not word.startswith("-") and before != "--output"
    )
    runs_one = any(os.path.basename(word) == "papermill" for word in argv[:3])
    return found[:1] if runs_one else found
