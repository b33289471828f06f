"""
Text on a terminal: make it safe, measure, cut, wrap, colour and align it.

Names of notebooks and scripts are untrusted. Escape sequences, line ends and direction marks in
them are shown, not interpreted. A word or symbol always repeats the meaning of a colour.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

# No colour is readable as a letter on every background: yellow, cyan and alarm bring their own.
_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "30;43",
    "cyan": "30;46",
    "alarm": "97;41",
}
# A line may break at any space except between a number and its unit: `95 %`, `7.0 GiB`.
_BREAKS = re.compile(r"(?<!\d) | (?!(?:%|[KMGT]iB(?:/s)?|B|s|min|h|d|MHz|°C|W)(?!\w))")
_TAIL_MOST = 12  # longest file extension (columns) that a cut keeps: ".safetensors"


def plain(value: object) -> str:
    """
    One line of text without control sequences.

    Control characters, line ends, direction marks and lone surrogates (a file name that is not
    UTF-8) become escapes such as `\\x1b`. A no-break space becomes a space.
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text.replace("\xa0", " ")
    )


def plain_block(value: object) -> str:
    """The same as `plain`, but line ends stay and tabs become spaces."""
    return "\n".join(plain(line.expandtabs(4)) for line in str(value).split("\n"))


def width(text: str) -> int:
    """Width of a text in terminal columns: two for CJK and emoji, zero for combining accents."""
    if text.isascii():
        return len(text)
    return sum(_char_columns(char) for char in text)


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """
    The text, filled with spaces up to a width of `columns`.

    Args:
        text: text, at most this wide.
        columns: width in terminal columns.
        right: align the text to the right.
    """
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks


def shorten(text: str, columns: int, ellipsis: str = "…") -> str:
    """
    The text in at most `columns`, cut in the middle; the file extension (`.ipynb`) stays.

    Args:
        text: one line of text.
        columns: maximum width in terminal columns.
        ellipsis: replacement for the cut part.
    """
    if width(text) <= columns:
        return text
    room = columns - width(ellipsis)
    if room <= 0:
        return _head(text, columns)
    dot = text.rfind(".")
    ending = width(text[dot:]) if dot > 0 else 0
    if ending > _TAIL_MOST or ending >= room:
        ending = 0
    # Keep some text before the extension, so that run_a.ipynb and run_b.ipynb still differ.
    tail = _head(text[::-1], ending + (room - ending) // 3)[::-1]
    return _head(text, room - width(tail)) + ellipsis + tail


def wrap(text: str, columns: int | None, first: str = "", rest: str | None = None) -> list[str]:
    """
    Wrap a text at spaces, or within a word that is too long for a line.

    Args:
        text: one paragraph.
        columns: maximum width, a few columns more than the indents; None: one long line.
        first: prefix of the first line.
        rest: prefix of the other lines; None: spaces as wide as `first`.
    """
    if columns is None:
        columns = sys.maxsize
    indent = " " * width(first) if rest is None else rest
    lines: list[str] = []
    prefix, line = first, ""
    for word in _BREAKS.split(" ".join(text.split())):
        left = word
        if line and width(f"{prefix}{line} {left}") > columns:
            lines.append(prefix + line)
            prefix, line = indent, ""
        while not line and width(prefix + left) > columns and width(left) > 1:
            part = _head(left, max(1, columns - width(prefix))) or left[0]
            lines.append(prefix + part)
            left = left[len(part) :]
            prefix = indent
        line = f"{line} {left}" if line else left
    if line or not lines:
        lines.append(prefix + line)
    return lines


def counted(number: int, what: str) -> str:
    """
    Format a count with its noun: `1 task`, `3 tasks`.

    Args:
        number: the count.
        what: the noun in the singular.
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def _char_columns(char: str) -> int:
    if char < "\u0300":
        return 1
    from unicodedata import category, east_asian_width  # imported here because it takes 0.4 ms

    if category(char) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def _head(text: str, columns: int) -> str:
    taken = 0
    for index, char in enumerate(text):
        taken += _char_columns(char)
        if taken > columns:
            return text[:index]
    return text


class Style:
    """
    Colour and character set for text on one stream.

    Attributes:
        ellipsis: replacement for the cut part of a name.
        dot: separator between two remarks on one line.

    Args:
        color: whether to write colours.
        unicode: whether the terminal shows more than ASCII.
    """

    __slots__ = ("color", "dot", "ellipsis", "unicode")

    def __init__(self, *, color: bool = False, unicode: bool = True) -> None:
        self.color = color
        self.unicode = unicode
        self.ellipsis = "…" if unicode else "~"
        self.dot = " · " if unicode else " | "

    def paint(self, text: str, name: str) -> str:
        """
        The text in a colour, or unchanged if the stream has no colours.

        Args:
            text: one line of text.
            name: a key of `_CODES`; empty: no colour.
        """
        if not self.color or not name or not text.strip():
            return text
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m"

    def bar(self, ratio: float | None, columns: int) -> str:
        """
        A bar of `columns`; a question mark if the ratio is unknown.

        Args:
            ratio: filled share, 0 to 1; None: unknown.
            columns: width in terminal columns.
        """
        full, empty = ("█", "░") if self.unicode else ("#", ".")
        if ratio is None:
            return "?" + " " * (columns - 1)
        # Round down, so that only a full bar looks full; show at least one cell above 0.
        filled = min(columns, max(int(ratio * columns), 1 if ratio > 0 else 0))
        return full * filled + empty * (columns - filled)


class Table:
    """
    A table of aligned columns.

    Args:
        rows: cells as plain text, the same number in every row.
        right: indexes of right-aligned columns.
        gives_way: index of the column to shorten if the table is too wide.
        gap: spaces between columns.
    """

    def __init__(
        self, rows: Sequence[Sequence[str]], right: set[int], gives_way: int, gap: int = 1
    ) -> None:
        self._rows = rows
        self._right = right
        self._gives_way = gives_way
        self._gap = gap
        columns = len(rows[0]) if rows else 0
        self._widths = [max(width(row[column]) for row in rows) for column in range(columns)]

    def fits(self, columns: int | None, least: int = sys.maxsize) -> bool:
        """
        Whether the column `gives_way` keeps its full width, or at least `least`.

        Args:
            columns: width of the terminal; None: unlimited.
            least: sufficient width of that column, in terminal columns.
        """
        return self._room(columns) >= min(self._widths[self._gives_way], least)

    def _room(self, columns: int | None) -> int:
        """Width left for the column `gives_way` in a table of `columns` terminal columns."""
        wanted = self._widths[self._gives_way]
        if columns is None:
            return wanted
        others = [one for index, one in enumerate(self._widths) if index != self._gives_way and one]
        return min(wanted, columns - sum(others) - self._gap * len(others))

    def lines(self, columns: int | None, ellipsis: str = "…") -> list[str]:
        """
        The rows as text without trailing spaces; empty columns are left out.

        Args:
            columns: width of the terminal; None: unlimited.
            ellipsis: replacement for the cut part of a cell.
        """
        widths = list(self._widths)
        most = self._room(columns)
        widths[self._gives_way] = max(min(1, widths[self._gives_way]), most)
        found = []
        for row in self._rows:
            cells = [
                pad(shorten(cell, one, ellipsis), one, right=index in self._right)
                for index, (cell, one) in enumerate(zip(row, widths, strict=True))
                if one
            ]
            line = (" " * self._gap).join(cells).rstrip()
            found.append(line if columns is None else shorten(line, columns, ellipsis))
        return found
