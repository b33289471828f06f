"""Which notebook this kernel runs, where Jupyter tells."""

from __future__ import annotations

import os
from collections.abc import Mapping


def notebook_path(env: Mapping[str, str] = os.environ) -> str | None:
    """
    Path of the notebook of this kernel, or None.

    Source: Jupyter Server 2 sets JPY_SESSION_NAME for the kernels that it starts.
    """
    name = env.get("JPY_SESSION_NAME", "")
    return name if name.endswith(".ipynb") else None
