"""Names that users' files gave, made safe to show: in a notice, a terminal, a log."""

from __future__ import annotations

import re

# Of a task: the longest name that a file can have, and a folder's before `__main__.py`.
LONGEST_NAME = 270
_ELLIPSIS = "\u2026"
_SIMPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*")


def plain(text: str, limit: int = 60) -> str:
    """
    One line of plain text of at most `limit` characters.

    What cannot be shown, or would change how the rest is shown, becomes a `?`; every run of
    blanks becomes one; a name that is too long loses its middle, as both ends tell it apart.

    Args:
        text: untrusted.
        limit: most characters of the result.
    """
    # Blanks first: a tab or a line end is one, and no harm.
    line = " ".join(text[: 20 * limit].split())
    # Not printable are control characters, invisible ones (bidirectional overrides, joiners),
    # halves of pairs (bytes that are not UTF-8), and what is no character at all.
    shown = "".join(c if c.isprintable() else "?" for c in line)
    if not shown:
        return "(no name)"
    return shortened(shown, limit)


def shortened(text: str, limit: int = LONGEST_NAME) -> str:
    """The text as it is, without its middle where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + _ELLIPSIS + text[len(text) - (limit - 1 - head) :]


def argument(name: str, pid: int) -> str:
    """
    A task on the command line: its name where that is safe to paste, else its pid.

    Args:
        name: of the task.
        pid: of its root process.
    """
    return name if _SIMPLE.fullmatch(name) and len(name) <= 60 else str(pid)
