"""
Colours and symbols: which may be used here, and what each means.

A colour never stands alone: a word or a symbol beside it says the same.
NO_COLOR and FORCE_COLOR as on no-color.org and force-color.org.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal, TextIO

    When = Literal["auto", "always", "never"]

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "alarm": "1;31",
}


class Style:
    """How text may look on one stream."""

    __slots__ = ("color", "unicode")

    def __init__(self, *, color: bool = False, unicode: bool = True) -> None:
        self.color = color
        self.unicode = unicode

    def paint(self, text: str, name: str) -> str:
        """The text in a colour, or as it is where there are none."""
        if not self.color or not name or not text.strip():
            return text
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m"

    @property
    def ellipsis(self) -> str:
        """What stands where a name was cut."""
        return "…" if self.unicode else "~"

    @property
    def dot(self) -> str:
        """What stands between two remarks on one line."""
        return " · " if self.unicode else " | "

    def bar(self, ratio: float | None, columns: int) -> str:
        """A bar of `columns`; a question mark where the ratio is unknown."""
        full, empty = ("█", "░") if self.unicode else ("#", ".")
        if ratio is None:
            return "?" + " " * (columns - 1)
        # Rounded down, so that only what is full looks full; never empty when there is something.
        filled = min(columns, max(int(ratio * columns), 1 if ratio > 0 else 0))
        return full * filled + empty * (columns - filled)


def style_of(
    when: When = "auto", stream: TextIO | None = None, env: Mapping[str, str] = os.environ
) -> Style:
    """
    How text may look on a stream.

    Args:
        when: the --color option.
        stream: None: standard output.
        env: NO_COLOR, FORCE_COLOR and TERM are read.
    """
    stream = sys.stdout if stream is None else stream
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-")
    return Style(
        color=_wanted(when, stream, env),
        unicode=encoding.startswith("utf"),
    )


def _wanted(when: When, stream: TextIO | None, env: Mapping[str, str]) -> bool:
    if when != "auto":
        return when == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream is not None and stream.isatty() and env.get("TERM", "") not in ("dumb", "")
