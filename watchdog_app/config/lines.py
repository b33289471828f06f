"""Where in a file a key stands, for messages: tomllib itself does not say."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^=\s]+)?)\s*=""")

Place = tuple[str | int, ...]


def line_of(text: str, place: Place) -> int | None:
    """
    The line of a key, counted from 1; None where it is not found.

    Args:
        text: of a file that is valid TOML.
        place: a table, or a table and a key in it; of rules ("rule", number from 1, key).
    """
    found = dict(_key_lines(text))
    while place:
        if place in found:
            return found[place]
        place = place[:-1]  # within an inline table: the line on which that begins
    return None


def _key_lines(text: str) -> list[tuple[Place, int]]:
    """Every table and key with its line, the first ones last, so that they win in a dict."""
    found: list[tuple[Place, int]] = []
    table: Place = ()
    rules = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            name = _unquote(header[2])
            if header[1] == "[[" and name == "rule":
                rules += 1
                table = (name, rules)
            else:
                table = tuple(_unquote(part) for part in name.split("."))
            found.append((table, number))
            continue
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None:
            keys = tuple(_unquote(part) for part in assigned[1].split("."))
            found.append(((*table, *keys), number))
            found += [((*table, *keys[:end]), number) for end in range(1, len(keys))]
    return found[::-1]


def _unquote(text: str) -> str:
    return text.strip().strip("\"'")
