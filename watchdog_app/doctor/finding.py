"""
What the doctor says: findings, made from the table of texts `findings.toml`.

A check names an entry and gives its figures; severity, words, remedy and commands are in the table.
"""

from __future__ import annotations

import functools
import shlex
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from typing import Any

from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.doctor import versions


class Severity(StrEnum):
    """How much a finding matters, the worst first."""

    ERROR = "error"  # trainings on this machine fail, or will
    WARNING = "warning"  # they can be lost, or run far below what the machine can do
    INFO = "info"  # worth knowing; nothing has to be done
    OK = "ok"


RANK = {severity: rank for rank, severity in enumerate(Severity)}

# How a figure is shown: `{free:bytes}` in the table.
_FORMATS: Mapping[str, Any] = {
    "and": " and ".join,
    "bytes": format_bytes,
    "driver": versions.format_driver_version,
    "duration": format_duration,
    "list": ", ".join,
    "quote": shlex.quote,
    "version": versions.format_version,
    "words": " ".join,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer. Texts can hold names from files: untrusted."""

    id: str  # stable: "driver.version-mismatch"; the part before the dot is the group
    severity: Severity
    what: str  # what was found, one or two sentences
    why: str = ""  # how it ends a training
    remedy: str = ""  # what to do, a sentence
    commands: tuple[str, ...] = ()  # of the remedy, to be copied as they stand, a line each
    details: tuple[str, ...] = ()  # the readings behind it
    checked: bool = True  # False: the question could not be answered; `what` says why

    @property
    def group(self) -> str:
        """The group of checks that it comes from."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a run, in the order of the groups."""

    findings: tuple[Finding, ...]
    groups: tuple[str, ...]
    seconds: float
    facts: dict[str, object] = field(default_factory=dict)  # driver, cards, environments

    def count(self, severity: Severity) -> int:
        """How many findings of a severity."""
        return sum(one.severity is severity for one in self.findings)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The entries of `findings.toml`, by name."""
    import tomllib

    text = resources.files("watchdog_app.doctor").joinpath("findings.toml").read_text("utf-8")
    return tomllib.loads(text)


def finding(
    name: str,
    /,
    *details: str,
    places: Iterable[str] = (),
    severity: Severity | None = None,
    **values: Any,
) -> Finding:
    """
    The finding of an entry of the table.

    Args:
        name: of the entry.
        details: the readings behind it.
        places: what this machine is, as the table names it: "fedora", "container".
        severity: in the place of the table's.
        values: figures for the texts; they need to be no text themselves.
    """
    texts = _Text(name, places, values)
    subject = texts.text("subject") if "what" not in texts.entry else ""
    return Finding(
        _public_id(name),
        severity or Severity(texts.entry["severity"]),
        f"{subject} could not be checked: {texts.reason().rstrip('.')}."
        if subject
        else texts.text("what"),
        texts.text("why"),
        texts.text("do"),
        tuple(filter(None, map(texts.fill, texts.entry.get("commands", ())))),
        details,
        checked=texts.entry.get("checked", not subject),
    )


def fine(name: str, /, *details: str, places: Iterable[str] = (), **values: Any) -> Finding:
    """Nothing to do: what the entry says where all is well."""
    text = _Text(name, places, values).text("fine")
    return Finding(_public_id(name), Severity.OK, text, details=details)


def _public_id(name: str) -> str:
    """The id that users see; a third part tells variants apart."""
    return ".".join(name.split(".")[:2])


class _Text(string.Formatter):
    """The texts of one entry, for a place and with figures."""

    def __init__(self, name: str, places: Iterable[str], values: Mapping[str, Any]) -> None:
        own = table()[name]
        base = table().get(own.get("like", name.rpartition(".")[0]), {})
        self.entry = _for_places((base, own), places)
        self._values = _for_places((table()["shared"],), places) | dict(values)

    def text(self, key: str) -> str:
        """The text of one key, in one line; "" where the entry has none."""
        return self.fill(" ".join(self.entry.get(key, "").split())).strip()

    def reason(self) -> str:
        """Why a question could not be answered: the check's word, else the table's."""
        return str(self._values["reason"]) if "reason" in self._values else self.text("reason")

    def fill(self, text: str) -> str:
        """A text with its figures."""
        return self.vformat(text, (), self._values)

    def format_field(self, value: Any, format_spec: str) -> str:
        """A figure as the table wants it shown."""
        show = _FORMATS.get(format_spec)
        return str(show(value) if show else super().format_field(value, format_spec))


def _for_places(layers: Iterable[dict[str, Any]], places: Iterable[str]) -> dict[str, Any]:
    """What holds here: later layers before earlier ones, and in each the place before the rest."""
    found: dict[str, Any] = {}
    for layer in layers:
        for each in (layer, *(layer.get(place, {}) for place in places)):
            found |= each
    return found
