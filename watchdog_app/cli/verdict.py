"""What the daemon says of cards and incidents, for the lines that show them. Pure."""

from __future__ import annotations

from watchdog_app.cli.text import plain
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

# Of something that is broken or brakes.
CONDITION_WORDS = {
    Level.OK: "OVER",
    Level.WATCH: "NOTE",
    Level.WARNING: "WARNING",
    Level.CRITICAL: "CRITICAL",
    Level.UNKNOWN: "UNKNOWN",
}


def card_title(gpu: Json) -> str:
    """`is lost`: what the daemon says of a card; empty where it is well."""
    found = gpu.get("verdict")
    return plain((found.get("title") if isinstance(found, dict) else None) or "")


def is_condition(incident: Json) -> bool:
    """Whether an incident is of something that is broken or brakes, and not of a level."""
    kind = incident.get("ceiling")
    return kind in ("gpu_health", "throttling", "stalled") or (
        kind == "battery" and incident.get("subject") == "unplugged"
    )
