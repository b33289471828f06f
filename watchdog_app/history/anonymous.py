"""
Replaces what identifies a user, a machine or a program in the texts of a report.

Known names are replaced wherever they occur. Paths, addresses and URLs are recognized by their
form. Lines that quote a log or a command are left out: they may hold anything.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from watchdog_app.base.text.plain import ELLIPSIS, clean

# Fields with names. A label is made of such names and of words that say what it is.
_KEYS = frozenset(
    (
        *("name", "path", "worker_path", "cwd", "python", "directory", "notebook", "script"),
        *("user", "kernel_id", "subject"),
    )
)
_LEAST_CHARS = 3  # a shorter name is also a part of other words
_KEPT = frozenset(
    (
        *("python", "python3", "ram", "swap", "and", "the", "task", "run", "disk", "memory"),
        *("limit", "training", "train", "model", "data", "main", "test", "kernel", "notebook"),
    )
)
_QUOTED = re.compile(
    r"log says: .*\bprocess\b|journal says|&&|\bwatchdog (?:exec|agent|rescues|resume|limit) "
)
_LONG = 300  # characters that a text shows of a reason or a path
_LEFT_OUT = "  (left out)"
_FORMS = (
    (re.compile(r"(?<!\w)([\"'`])(?:(?!\1)[^\n])*[\\/](?:(?!\1)[^\n])*\1(?!\w)"), "(path)"),
    (re.compile(r"\b[a-z][\w+.-]*://\S+", re.IGNORECASE), "(URL)"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*"), "(address)"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "(address)"),
    (
        # IPv6: "::", or more colons than a time of day has.
        re.compile(
            r"(?<![\w:])(?=[\da-f:]*(?:::|(?::[\da-f]+){3}))[\da-f:]{3,}(?!\w)", re.IGNORECASE
        ),
        "(address)",
    ),
    (re.compile(r"[\w.-]+\.py(?=:\d)"), "(path)"),
    (
        re.compile(r"(?<![\w./\\-])(?!name-)[\w-]*[a-z][\w.-]*:\d{2,5}\b", re.IGNORECASE),
        "(address)",
    ),
    (
        re.compile(r"\b(?:[A-Z]+-)?[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b", re.IGNORECASE),
        "(id)",
    ),
)
_SLASHED = re.compile(r"[^\s\"'`(]*[\\/][^\s\"'`),;]*")
_NO_PATH = re.compile(r"(?:[\d.,+-]*[KMGT]?i?B/s|/proc/\d+/\w+|\d+/\d+|w/o|and/or|I/O)\W?")


def anonymous(content: Mapping[str, Any], *sources: Any) -> dict[str, Any]:
    """
    The content of a report with names, paths, users, the host and commands replaced.

    Args:
        content: `title`, `text`, `events` and `plot` of a report.
        sources: data whose fields hold what must be replaced.
    """
    known = {_login(), os.path.expanduser("~")}
    for source in sources:
        known.update(_identities(source))
    host = os.uname().nodename
    words = sorted(filter(_is_identity, {*known, host}), key=len, reverse=True)
    names: dict[str, str] = {}
    for number, word in enumerate(reversed(words), 1):
        # Texts show names on one line, and long ones without their middle.
        for shown in filter(_is_identity, (word, clean(word), clean(word, _LONG))):
            names.setdefault(shown.lower(), f"name-{number}")
    words = sorted(names, key=len, reverse=True)
    host = host.lower()
    forms = (re.escape(word) + (r"(?:\.[\w-]+)*" if word == host else "") for word in words)
    # An underscore ends a name, a letter or a digit does not.
    pattern = re.compile(
        "|".join(rf"(?<![^\W_])(?:{form})(?![^\W_])" for form in forms) or "(?!)", re.IGNORECASE
    )

    def change(text: Any) -> str:
        lines = [
            _LEFT_OUT if _QUOTED.search(line) else line for line in str(text or "").split("\n")
        ]
        changed = pattern.sub(lambda at: names.get(at[0].lower(), "(host)"), "\n".join(lines))
        # A shortened text can hold a part of a name.
        lines = [_LEFT_OUT if ELLIPSIS in line else line for line in changed.split("\n")]
        changed = "\n".join(lines)
        for form, word in _FORMS:
            changed = form.sub(word, changed)
        return _SLASHED.sub(lambda at: at[0] if _NO_PATH.fullmatch(at[0]) else "(path)", changed)

    plot = content["plot"]
    if plot:
        resource = plot.get("resource")
        resource = resource and {**resource, "label": change(resource.get("label"))}
        plot = {**plot, "name": change(plot.get("name")), "resource": resource}
    return {
        "title": change(content["title"]),
        "text": change(content["text"]),
        "events": [[at, change(text)] for at, text in content["events"]],
        "plot": plot,
    }


def _is_identity(word: str) -> bool:
    return len(word) >= _LEAST_CHARS and not word.isdecimal() and word.lower() not in _KEPT


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""


def _identities(value: Any, key: str = "") -> Iterator[str]:
    """The values that identify something: fields of these names, and words of command lines."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _identities(each, name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _identities(each, key)
    elif isinstance(value, str) and key == "argv" and not value.startswith("-"):
        yield value
    elif isinstance(value, str) and key in _KEYS:
        base = os.path.basename(value)
        yield from (value, base, os.path.splitext(base)[0])
