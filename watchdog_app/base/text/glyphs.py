"""
The live view on a terminal without Unicode: each character becomes an ASCII one.

This happens where the text is encoded, so it includes what the library draws. Each character
becomes as many as it is wide, so nothing is shifted.
"""

from __future__ import annotations

import codecs
import io
import os
import unicodedata
from collections.abc import Mapping
from typing import TextIO

ERRORS = "watchdog.plain_glyphs"

# The console's font has neither trends nor dots, and the old terminals have letters alone.
_POOR = frozenset(("linux", "vt52", "vt100", "vt102", "vt220", "vt320", "ansi", "dumb"))

_PLAIN = {
    **dict.fromkeys("█▇▆▅", "#"),
    **dict.fromkeys("▄▃", "="),
    **dict.fromkeys("▂▁", "_"),
    **dict.fromkeys("▒▓", "+"),
    "░": ".",
    **dict.fromkeys("─━═", "-"),
    **dict.fromkeys("│┃║▌▐▎▊", "|"),
    **dict.fromkeys("┤├┼┬┴╭╮╰╯┌┐└┘╴╶", "+"),
    "·": "~",  # watch
    "…": "~",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    "°": " ",
    "\u00d7": "x",
    "↑": "^",
    "↓": "v",
}


def plain_glyph(char: str) -> str:
    """ASCII of the same width for a character; `?` where nothing resembles it."""
    known = _PLAIN.get(char)
    if known is not None:
        return known
    if "\u2800" <= char <= "\u28ff":  # the dots of a plot
        return "*" if char > "\u2800" else " "
    if unicodedata.category(char) in ("Mn", "Me"):
        return ""
    letter = unicodedata.normalize("NFKD", char)[:1]
    if letter.isascii() and letter.isprintable():
        return letter
    return "??" if unicodedata.east_asian_width(char) in "WF" else "?"


def prepare(stream: TextIO, env: Mapping[str, str] = os.environ) -> None:
    """Have a stream write what its terminal can show."""
    encoding = (stream.encoding or "ascii").lower().replace("_", "-")
    # Python writes UTF-8 in the C locale as well; who asks for that one by name has ASCII.
    poor = env.get("TERM", "") in _POOR or env.get("LC_ALL") in ("C", "POSIX")
    if not isinstance(stream, io.TextIOWrapper) or (encoding.startswith("utf") and not poor):
        return
    codecs.register_error(ERRORS, _replaced)
    stream.reconfigure(encoding="ascii" if poor else None, errors=ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain_glyph, error.object[error.start : error.end])), error.end
