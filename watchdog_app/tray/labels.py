"""Figures and untrusted names as short texts for menus, tooltips and notifications. Pure."""

from __future__ import annotations

from watchdog_app.base.text import terminal
from watchdog_app.base.text.quantities import format_rough_duration

_MAX_NAME_CHARS = 40


def plain(value: object, limit: int = 200) -> str:
    """One line of at most `limit` characters; what cannot be shown is written as an escape."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    line = terminal.plain(" ".join(text[: 20 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def plain_block(value: object, limit: int = 2000) -> str:
    """As `plain`, with line ends kept."""
    lines = str("" if value is None else value)[: 2 * limit].split("\n")
    text = "\n".join(plain(line, 500) for line in lines)
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def short_name(value: object) -> str:
    """A task's name; one that is too long loses its middle and keeps its ending (`.ipynb`)."""
    return terminal.shorten(plain(value, 1000) or "(no name)", _MAX_NAME_CHARS)


def short_age(seconds: float) -> str:
    """`just now`, `40 s ago`, `3 min ago`: coarse, so that a label changes seldom."""
    return "just now" if seconds < 5 else f"{format_rough_duration(seconds)} ago"
