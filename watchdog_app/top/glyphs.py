"""
Drawing with characters: Braille dots, or ASCII on a terminal without Unicode.

A character cell has two columns and four rows of dots. The stream's encoder replaces characters by
ASCII, so the replacement includes what Textual draws. Each replacement is as wide as its character,
so columns stay aligned.
"""

from __future__ import annotations

import codecs
import io
import os
import unicodedata
from collections.abc import Mapping
from typing import TextIO

ERRORS = "watchdog.plain_glyphs"

# Bit of each dot by (column, row) in its cell (Unicode, Braille Patterns, U+2800).
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800

_DOTS_X = 2
_DOTS_Y = 4

# The Linux console's font has no block characters and no dots; the old terminals have only ASCII.
_ASCII_TERMINALS = frozenset(("linux", "vt52", "vt100", "vt102", "vt220", "vt320", "ansi", "dumb"))

_ASCII = {
    **dict.fromkeys("█▇▆▅", "#"),
    **dict.fromkeys("▄▃", "="),
    **dict.fromkeys("▂▁", "_"),
    **dict.fromkeys("▒▓", "+"),
    "░": ".",
    **dict.fromkeys("─━═", "-"),
    **dict.fromkeys("│┃║▌▐▎▊", "|"),
    **dict.fromkeys("┤├┼┬┴╭╮╰╯┌┐└┘╴╶", "+"),
    "·": "~",  # mark of the level "watch"
    "…": "~",
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    **dict.fromkeys("\u2018\u2019", "'"),
    **dict.fromkeys("\u201c\u201d", '"'),
    "°": " ",
    "\u00d7": "x",
    "↑": "^",
    "↓": "v",
}


def ascii_glyph(char: str) -> str:
    """Return ASCII of the same width for a character; `?` if nothing resembles it."""
    known = _ASCII.get(char)
    if known is not None:
        return known
    if "\u2800" <= char <= "\u28ff":  # Braille dots
        return "*" if char > "\u2800" else " "
    if unicodedata.category(char) in ("Mn", "Me"):
        return ""
    letter = unicodedata.normalize("NFKD", char)[:1]
    if letter.isascii() and letter.isprintable():
        return letter
    return "??" if unicodedata.east_asian_width(char) in "WF" else "?"


def replace_missing_glyphs(stream: TextIO, env: Mapping[str, str] = os.environ) -> None:
    """Make a stream write ASCII for characters that its terminal cannot show."""
    encoding = (stream.encoding or "ascii").lower().replace("_", "-")
    # Python also writes UTF-8 in the C locale. A user who sets LC_ALL=C expects ASCII.
    ascii_only = env.get("TERM", "") in _ASCII_TERMINALS or env.get("LC_ALL") in ("C", "POSIX")
    if not isinstance(stream, io.TextIOWrapper) or (encoding.startswith("utf") and not ascii_only):
        return
    codecs.register_error(ERRORS, _encode_as_ascii)
    stream.reconfigure(encoding="ascii" if ascii_only else None, errors=ERRORS)


def _encode_as_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(ascii_glyph, error.object[error.start : error.end])), error.end


class Canvas:
    """
    A grid of dots, each with a layer; a cell shows the highest layer of its dots.

    Args:
        columns, rows: size in character cells.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(1, columns)
        self.rows = max(1, rows)
        self._bits = [[0] * self.columns for _ in range(self.rows)]
        self._layers = [[0] * self.columns for _ in range(self.rows)]

    @property
    def width(self) -> int:
        """Width in dots."""
        return self.columns * _DOTS_X

    @property
    def height(self) -> int:
        """Height in dots."""
        return self.rows * _DOTS_Y

    def dot(self, x: int, y: int, layer: int = 1) -> None:
        """Set a dot; the origin is the lower left. Ignore a dot outside the grid."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            return
        row, inner = divmod(self.height - 1 - y, _DOTS_Y)
        column, across = divmod(x, _DOTS_X)
        self._bits[row][column] |= _BITS[across][inner]
        self._layers[row][column] = max(self._layers[row][column], layer)

    def line(self, begin: tuple[int, int], end: tuple[int, int], layer: int = 1) -> None:
        """Set the dots from one point to another one to its right, including both."""
        (x0, y0), (x1, y1) = begin, end
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x = round(x0 + (x1 - x0) * step / steps)
            y = round(y0 + (y1 - y0) * step / steps)
            if x >= self.width:
                break  # the end of a forecast may be years ahead
            self.dot(x, y, layer)

    def cells(self) -> list[list[tuple[str, int]]]:
        """Return the rows from the top; each cell is its character and the layer of its colour."""
        return [
            [
                (chr(_BLANK + bits) if bits else " ", layer)
                for bits, layer in zip(bits_row, layer_row, strict=True)
            ]
            for bits_row, layer_row in zip(self._bits, self._layers, strict=True)
        ]
