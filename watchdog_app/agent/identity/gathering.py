"""Collect the identity of a training that starts; a failure must not stop the training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.rescue.identity.run import RunIdentity


def gather(framework: str, version: str, **readers: Callable[[], Any]) -> RunIdentity:
    """
    The identity of a training. Never raises: a part that cannot be read is omitted.

    Args:
        framework: its name in messages.
        version: the framework's version.
        readers: a function for each of the other fields of `RunIdentity`.
    """
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except Exception:  # noqa: S112 - objects of the program or other versions may raise
            continue
    statements = code.statements(_program())
    return RunIdentity(
        framework,
        version,
        statements=[text for text, _, _ in statements],
        lines=[(first, last) for _, first, last in statements],
        **found,
    )


def _program() -> str | None:
    """The path of the program's source; None in a notebook or at a prompt."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return path if isinstance(path, str) else None
