"""Untrusted text made safe to show: in a notification, a file, a log. No secrets, one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Of a task: the longest name that a file can have, and a folder's before `__main__.py`.
LONGEST_NAME = 270
_ELLIPSIS = "\u2026"
_SIMPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*")

HIDDEN = "***"
_MAX_WORDS = 60
_LONGEST_WORD = 300
# Parts of an option's name: whole words, for --tokenizer and --max-tokens are no secrets.
_SECRET = frozenset(
    (
        "token", "secret", "password", "passwd", "passwort", "pass", "pwd", "passphrase", "apikey",
        "credential", "credentials", "auth", "authorization", "bearer", "cookie",
    )
)  # fmt: skip
_KEYS = frozenset(("api", "access", "secret", "private", "auth", "account", "wandb", "hf", "openai",
                   "aws", "azure", "storage", "license", "ssh", "encryption"))  # fmt: skip
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# What is a secret by its own form, wherever it stands.
_BY_FORM = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|ya29\.|eyJ[\w-]+\.)"
    r"[\w.+/=-]{8,}"
)
_IN_URL = re.compile(r"(\b[a-zA-Z][\w+.-]{1,20}://)[^/\s@]{1,300}@")
_ASSIGNED = re.compile(
    r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key)"
    r"[\"']?\s*[=:]\s*[\"']?)(?:bearer\s+)?[^\s&,;\"']+"
)


def clean(text: str, limit: int = 60) -> str:
    """
    One line of plain text of at most `limit` characters.

    What cannot be shown, or would change how the rest is shown, becomes a `?`; every run of
    blanks becomes one; a name that is too long loses its middle, as both ends tell it apart.

    Args:
        text: untrusted.
        limit: most characters of the result.
    """
    # Blanks first: a tab or a line end is one, and no harm.
    line = " ".join(text[: 20 * limit].split())
    # Not printable are control characters, invisible ones (bidirectional overrides, joiners),
    # halves of pairs (bytes that are not UTF-8), and what is no character at all.
    shown = "".join(c if c.isprintable() else "?" for c in line)
    if not shown:
        return "(no name)"
    return shortened(shown, limit)


def shortened(text: str, limit: int = LONGEST_NAME) -> str:
    """
    The text as it is, without its middle where it is longer than `limit` characters.

    Args:
        text: of any length.
        limit: most characters of the result.
    """
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + _ELLIPSIS + text[len(text) - (limit - 1 - head) :]


def shell_argument(name: str, pid: int) -> str:
    """
    A task on the command line: its name where that is safe to paste, else its pid.

    Args:
        name: of the task.
        pid: of its root process.
    """
    return name if _SIMPLE.fullmatch(name) and len(name) <= 60 else str(pid)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secrets, and no longer than is of use."""
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
    """A text, such as that of an error, without the secrets in it."""
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
