"""
What the daemon knows of the cards: open incidents, and cards that it cannot read.

It has watched for longer than one look takes: a card that answers now may have
reported a fault a minute ago.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.base.codec import objects
from watchdog_app.core.diagnosis.gpu_faults import STATES
from watchdog_app.core.model.levels import Level
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.gpu_fault import of_fault

_SEVERITIES = {Level.CRITICAL: Severity.ERROR, Level.WARNING: Severity.WARNING}

_STATES = {str(state): row for state, row in STATES.items()}


def cards(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Each card of which the daemon knows something bad: its id, and the finding."""
    status = facts.daemon()
    told = set()
    for incident in objects(status, "incidents"):
        if incident.get("resource") != "gpu_fault":
            continue
        subject = str(incident.get("subject"))
        told.add(subject)
        advice = incident.get("advice")
        names = [str(one.get("name")) for one in objects(incident, "contributors")]
        yield (
            subject,
            Finding(
                "driver.incident",
                _SEVERITIES.get(Level.of(incident), Severity.INFO),
                f"The daemon has an open incident on {incident.get('label')}: "
                f"{incident.get('reason')}.",
                "A training there has failed by it, or may fail.",
                " ".join(map(str, advice)) if isinstance(advice, list) else "",
                ("watchdog status",),
                (f"hit: {', '.join(names)}",) if names else (),
            ),
        )
    for card in objects(status, "gpus"):
        gpu_id, row = str(card.get("id")), _STATES.get(str(card.get("state")))
        if row is None or gpu_id in told or gpu_id.partition("/")[0] in told:
            continue
        index = card.get("index")
        name = f"GPU {index} ({card.get('name')})"
        commands = ("watchdog status", "sudo dmesg | grep -iE 'nvrm|xid' | tail")
        yield gpu_id, of_fault("driver.incident", row, name, index, commands)
