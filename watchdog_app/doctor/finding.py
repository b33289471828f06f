"""What the doctor says: one finding a question, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, the worst first."""

    ERROR = "error"  # trainings on this machine fail, or will
    WARNING = "warning"  # they can be lost, or run far below what the machine can do
    INFO = "info"  # worth knowing; nothing has to be done
    OK = "ok"


RANK = {severity: rank for rank, severity in enumerate(Severity)}


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


def fine(id_: str, what: str, *details: str) -> Finding:
    """Nothing to do."""
    return Finding(id_, Severity.OK, what, details=details)


def unchecked(
    id_: str,
    what: str,
    reason: str,
    *,
    remedy: str = "",
    commands: tuple[str, ...] = (),
    severity: Severity = Severity.INFO,
) -> Finding:
    """
    A question without an answer.

    Args:
        id_: of the finding.
        what: what was to be looked at, as the beginning of a sentence.
        reason: why it could not be.
        remedy: what would make it possible.
        commands: the same, to be copied.
        severity: more than INFO where the silence itself is a bad sign.
    """
    text = f"{what} could not be checked: {reason.rstrip('.')}."
    return Finding(id_, severity, text, remedy=remedy, commands=commands, checked=False)


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
