"""Facts of a training that begins, put together; none of them can keep it from beginning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.rescue.identity.run import RunIdentity


def gather(framework: str, version: str, **looks: Callable[[], Any]) -> RunIdentity:
    """
    The identity of a training. Never raises: what cannot be looked at is left out.

    Args:
        framework: as a person is told.
        version: of it.
        looks: how each of the other parts of `RunIdentity` is found.
    """
    found = {}
    for name, look in looks.items():
        try:
            found[name] = look()
        except Exception:  # noqa: S112 - objects of the program's own, other versions
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
    """The text of the program; None in a notebook or at a prompt."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return path if isinstance(path, str) else None
