"""
Findings of the doctor, built from the table of texts `findings.toml`.

A check names an entry and passes its figures. The table has severity, words, remedy and commands.
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
    """How much a finding matters, worst first."""

    ERROR = "error"  # trainings on this machine fail, or will fail
    WARNING = "warning"  # trainings may be lost, or run far slower than the machine allows
    INFO = "info"  # worth knowing; nothing to do
    OK = "ok"


RANK = {severity: rank for rank, severity in enumerate(Severity)}

# Format of a figure in the table, such as `{free:bytes}`.
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
    """One result of a check. Its texts may contain names from files: untrusted."""

    id: str  # stable: "driver.version-mismatch"; the part before the dot is the group
    severity: Severity
    what: str  # what was found, in one or two sentences
    why: str = ""  # how it ends a training
    remedy: str = ""  # what to do, in a sentence
    commands: tuple[str, ...] = ()  # commands of the remedy, to copy unchanged, one per line
    details: tuple[str, ...] = ()  # readings behind the finding
    checked: bool = True  # False: the check could not be made; `what` says why

    @property
    def group(self) -> str:
        """The group of checks that the finding belongs to."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of a run, in the order of the groups."""

    findings: tuple[Finding, ...]
    groups: tuple[str, ...]
    seconds: float
    facts: dict[str, object] = field(default_factory=dict)  # driver, cards, environments

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(one.severity is severity for one in self.findings)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Return the entries of `findings.toml`, by name."""
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
    Build a finding from an entry of the table.

    Args:
        name: of the entry.
        details: readings behind the finding.
        places: kinds of this machine, as the table names them: "fedora", "container".
        severity: replaces the table's severity.
        values: figures for the texts, of any type that the table formats.
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
    """Build the finding that says that all is well."""
    text = _Text(name, places, values).text("fine")
    return Finding(_public_id(name), Severity.OK, text, details=details)


def _public_id(name: str) -> str:
    """Return the id that users see, without the third part, which distinguishes variants."""
    return ".".join(name.split(".")[:2])


class _Text(string.Formatter):
    """The texts of one entry, for one place, with its figures."""

    def __init__(self, name: str, places: Iterable[str], values: Mapping[str, Any]) -> None:
        own = table()[name]
        base = table().get(own.get("like", name.rpartition(".")[0]), {})
        self.entry = _for_places((base, own), places)
        self._values = _for_places((table()["shared"],), places) | dict(values)

    def text(self, key: str) -> str:
        """Return the text of one key, on one line; "" if the entry has none."""
        return self.fill(" ".join(self.entry.get(key, "").split())).strip()

    def reason(self) -> str:
        """Return why a check could not be made: the check's reason, else the table's."""
        return str(self._values["reason"]) if "reason" in self._values else self.text("reason")

    def fill(self, text: str) -> str:
        """Return a text with its figures filled in."""
        return self.vformat(text, (), self._values)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a figure as the table requests."""
        show = _FORMATS.get(format_spec)
        return str(show(value) if show else super().format_field(value, format_spec))


def _for_places(layers: Iterable[dict[str, Any]], places: Iterable[str]) -> dict[str, Any]:
    """Merge the entries that apply here: later layers win, and within a layer places win."""
    found: dict[str, Any] = {}
    for layer in layers:
        for each in (layer, *(layer.get(place, {}) for place in places)):
            found |= each
    return found
