"""Line numbers of keys in a TOML file, for messages: tomllib does not report them."""

from __future__ import annotations

import re

Place = tuple[str | int, ...]  # ("stages", "warn_s") or ("rule", number from 1, "task")
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[^=\s]+)?)\s*=""")


def line_of(text: str, place: Place) -> int | None:
    """
    The line number of a key, from 1; None if not found.

    Args:
        text: the content of a valid TOML file.
        place: a table, or a table and a key in it; for rules ("rule", number from 1, key).
    """
    found = dict(_key_lines(text))
    while place:
        if place in found:
            return found[place]
        place = place[:-1]  # a key in an inline table has the line of that table
    return None


def _key_lines(text: str) -> list[tuple[Place, int]]:
    """Every table and key with its line, in reverse order, so that the first one wins in a dict."""
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
