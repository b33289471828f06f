"""Command lines and messages without what looks like a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
_MOST_WORDS = 60
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


def shown_words(argv: Sequence[str]) -> list[str]:
    """A command line without secrets, and no longer than is of use."""
    found: list[str] = []
    hidden = False
    for word in argv[:_MOST_WORDS]:
        option, equals, _ = word.partition("=")
        if hidden and not word.startswith("-"):
            found.append(HIDDEN)
            hidden = False
        elif _names_secret(option) and (option.startswith("-") or equals):
            found.append(f"{option}={HIDDEN}" if equals else option[:_LONGEST_WORD])
            hidden = not equals
        else:
            found.append(shown_text(word[:_LONGEST_WORD]))
            hidden = False
    return found


def shown_text(text: str) -> str:
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
