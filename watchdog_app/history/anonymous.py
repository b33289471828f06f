"""Replaces what identifies a user, a machine or a program in a report."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Fields with names. A label is made of such names and of words that say what it is.
_KEYS = frozenset(
    (
        *("name", "path", "worker_path", "cwd", "python", "directory", "notebook", "script"),
        *("user", "kernel_id", "subject"),
    )
)
_COMMANDS = re.compile(r"^To (?:start|continue|resume)", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w.~])~?/(?!proc/|dev/shm\b)[^\s'\",;:()]+")
_KEPT = frozenset(("python", "python3", "RAM", "RAM and swap"))


def anonymous(told: Mapping[str, Any], *sources: Any) -> dict[str, Any]:
    """
    The texts of a report with names, paths, users, the host and commands replaced.

    Args:
        told: the texts, in any nesting of objects and lists.
        sources: data whose fields hold what must be replaced.
    """
    known = {os.uname().nodename, _login(), os.path.expanduser("~")}
    for source in (told, *sources):
        known.update(_identities(source))
    words = sorted((each for each in known if each and each not in _KEPT), key=len, reverse=True)
    names = {word: f"name-{number}" for number, word in enumerate(reversed(words), 1)}
    pattern = re.compile(
        "|".join(rf"(?<![\w-]){re.escape(word)}(?![\w-])" for word in words) or "(?!)"
    )

    def change(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: change(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [change(each) for each in value]
        if not isinstance(value, str):
            return value
        kept = [part for part in value.split("\n\n") if not _COMMANDS.match(part)]
        return _PATH.sub("/...", pattern.sub(lambda found: names[found[0]], "\n\n".join(kept)))

    return {key: change(value) for key, value in told.items()}


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
    elif isinstance(value, str) and (key in _KEYS or (key == "argv" and len(value) > 2)):
        yield value
        yield os.path.basename(value)
