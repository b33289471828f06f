"""JSON for other programs: always valid, with the time, also when there is no daemon."""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 1

_HOST_FIGURES = (
    "memory_total_bytes",
    "memory_available_bytes",
    "swap_total_bytes",
    "swap_free_bytes",
    "swap_in_bytes_per_s",
    "swap_out_bytes_per_s",
    "shm_used_bytes",
    "shm_limit_bytes",
    "pressure_some_avg10_percent",
    "pressure_full_avg10_percent",
)


def dumps(value: Any, *, indent: int | None = 2) -> str:
    """
    Valid JSON in ASCII; one line when `indent` is None.

    Infinite numbers become null, and halves of characters (a file name that is not
    UTF-8) the replacement character: strict readers refuse both.
    """
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(value, indent=indent, separators=separators, allow_nan=False)
        suspect = "\\ud" in text
    except ValueError:
        suspect = True
    if suspect:
        text = json.dumps(_clean(value), indent=indent, separators=separators, allow_nan=False)
    return text


def timed(status: dict[str, Any], now_unix_s: float) -> dict[str, Any]:
    """A status object with the time of its reading as text as well (RFC 3339, UTC)."""
    at = status.get("time_unix_s")
    known = at if isinstance(at, int | float) else now_unix_s
    found = {
        "schema_version": status.get("schema_version", SCHEMA_VERSION),
        "time": _rfc3339(known),
    }
    found.update((key, value) for key, value in status.items() if key not in found)
    return found


def without_daemon(message: str, now_unix_s: float) -> dict[str, Any]:
    """The status object without a daemon: everything unknown, `errors` says why."""
    what, _, remedy = message.partition(". ")
    what = what.rstrip(".")
    return {
        "schema_version": SCHEMA_VERSION,
        "time": _rfc3339(now_unix_s),
        "time_unix_s": now_unix_s,
        "level": "unknown",
        "headline": what,
        "host": {"name": os.uname().nodename if hasattr(os, "uname") else None}
        | dict.fromkeys(_HOST_FIGURES),
        "daemon": None,
        "ceilings": [],
        "gpus": [],
        "hardware": None,
        "processes": [],
        "incidents": [],
        "errors": [
            {
                "source": "daemon",
                "message": f"{what}.",
                "remedy": remedy or None,
            }
        ],
    }


def _rfc3339(unix_s: float) -> str:
    # Milliseconds, because a watch can be faster than a second. Whole ones first: 59.9996 s
    # would be printed as 60.000.
    millis = round(unix_s * 1000)
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(millis // 1000))
    return f"{whole}.{millis % 1000:03d}Z"


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
