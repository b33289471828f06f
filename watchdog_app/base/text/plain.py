"""Make untrusted text safe for notifications, files and logs: one line, without secrets."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress

# Characters of a task name: the longest file name, plus the folder before `__main__.py`.
LONGEST_NAME = 270
ELLIPSIS = "\u2026"
_MOST_NAMES = 8  # of one kind in a message
_SIMPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*")

HIDDEN = "***"
_MAX_WORDS = 60
_LONGEST_WORD = 300
# Parts of an option name. Only whole words count: --tokenizer and --max-tokens are not secrets.
_SECRET = frozenset(
    (
        "token", "secret", "password", "passwd", "passwort", "pass", "pwd", "passphrase", "apikey",
        "credential", "credentials", "auth", "authorization", "bearer", "cookie",
    )
)  # fmt: skip
_KEYS = frozenset(("api", "access", "secret", "private", "auth", "account", "wandb", "hf", "openai",
                   "aws", "azure", "storage", "license", "ssh", "encryption"))  # fmt: skip
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Secrets that are recognizable by their form alone.
_BY_FORM = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|ya29\.|eyJ[\w-]+\.)"
    r"[\w.+/=-]{8,}"
)
_IN_URL = re.compile(r"(\b[a-zA-Z][\w+.-]{1,20}://)[^/\s@]{1,300}@")
_ASSIGNED = re.compile(
    r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key)"
    r"[\"']?\s*[=:]\s*[\"']?)(?:bearer\s+)?[^\s&,;\"']+"
)


def line_start(fd: int) -> str:
    """What begins a new line if what is behind `fd` ends in an unfinished one; empty if unknown."""
    with suppress(OSError):  # without /proc, or a terminal without a size
        if os.isatty(fd):
            # Blanks fill the line. Behind unfinished text they end on the next line, which `\r`
            # then begins. On an empty line `\r` goes back to its start.
            columns = os.get_terminal_size(fd).columns
            return " " * columns + "\r" if columns else "\n"
        if stat.S_ISREG(os.fstat(fd).st_mode) and (size := os.fstat(fd).st_size):
            with open(f"/proc/self/fd/{fd}", "rb") as file:
                file.seek(size - 1)
                return "\n" * (file.read(1) not in (b"\n", b""))
    return ""


def clean(text: str, limit: int = 60) -> str:
    """
    One line of plain text with at most `limit` characters.

    Unprintable characters and those that change the display of others become `?`. A run of spaces
    becomes one space. A text that is too long loses its middle, because both ends identify it.

    Args:
        text: untrusted text.
        limit: maximum length of the result, in characters.
    """
    # Spaces first: tabs and line ends count as spaces and are harmless.
    line = " ".join(text[: 20 * limit].split())
    # Unprintable are control characters, invisible characters (bidirectional overrides, joiners),
    # lone surrogates (bytes that are not UTF-8) and unassigned code points.
    shown = "".join(c if c.isprintable() else "?" for c in line)
    if not shown:
        return "(no name)"
    return shortened(shown, limit)


def capitalize_first(text: str) -> str:
    """The text with its first letter in upper case; the rest is unchanged."""
    return text[:1].upper() + text[1:]


def shortened(text: str, limit: int = LONGEST_NAME) -> str:
    """
    The text, without its middle if it is longer than `limit` characters.

    Args:
        text: text of any length.
        limit: maximum length of the result, in characters.
    """
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + ELLIPSIS + text[len(text) - (limit - 1 - head) :]


def few_names(text: str) -> str:
    """The text `kind: name, name` with its first few names; other texts are unchanged."""
    kind, colon, names = text.partition(": ")
    every = names.split(", ")
    more = f" and {len(every) - _MOST_NAMES} more" * (len(every) > _MOST_NAMES)
    return f"{kind}{colon}{', '.join(every[:_MOST_NAMES])}{more}"


def shell_argument(name: str, pid: int) -> str:
    """
    A task as a command line argument: its name if it is safe to paste, else its pid.

    Args:
        name: name of the task.
        pid: pid of the task's root process.
    """
    return name if _SIMPLE.fullmatch(name) and len(name) <= 60 else str(pid)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secrets, limited in length."""
    found: list[str] = []
    hidden = False
    for word in argv[:_MAX_WORDS]:
        option, equals, _ = word.partition("=")
        if hidden and not word.startswith("-"):
            found.append(HIDDEN)
            hidden = False
        elif _names_secret(option) and (option.startswith("-") or equals):
            found.append(f"{option}={HIDDEN}" if equals else option[:_LONGEST_WORD])
            hidden = not equals
        else:
            found.append(redact(word[:_LONGEST_WORD]))
            hidden = False
    return found


def redact(text: str) -> str:
    """A text, such as an error message, with its secrets hidden."""
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}@", text)
    text = _BY_FORM.sub(HIDDEN, text)
    return _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)


def _names_secret(option: str) -> bool:
    if len(option) > 100 or any(sign in option for sign in " /?&:"):
        return False
    parts = [part.lower() for part in _PARTS.findall(option)]
    if not parts or option.startswith("--no-"):
        return False
    if parts[-1] == "key" and (len(parts) == 1 or not _KEYS.isdisjoint(parts[:-1])):
        return len(parts) > 1 or option.startswith("--")
    return not _SECRET.isdisjoint(parts)
