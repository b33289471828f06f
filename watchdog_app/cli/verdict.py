"""What the daemon says of cards and incidents, for the lines that show them. Pure."""

from __future__ import annotations

from watchdog_app.cli.text import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_CARD_STAGES = {"note": "watch", "warning": "warn", "critical": "rescue"}
SEVERITIES = {"ok": "OVER", "watch": "NOTE", "warn": "WARNING", "rescue": "CRITICAL"}


def card_stage(gpu: Json) -> str:
    """What the daemon says of a card, as a stage; it may be lost before its incident is open."""
    found = gpu.get("verdict")
    severity = found.get("severity") if isinstance(found, dict) else None
    return _CARD_STAGES.get(str(severity), "ok")


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


def objects(holder: Json, key: str) -> list[Json]:
    """The objects in a list of a message; whatever else it holds is left out."""
    found = holder.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
