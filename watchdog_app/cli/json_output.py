"""JSON for other programs: always valid, with the time, also when there is no daemon."""

from __future__ import annotations

import json
import os
import time

from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import SCHEMA_VERSION, Host, Problem, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
    return {**status, "time": _rfc3339(at if isinstance(at, int | float) else now_unix_s)}


def without_daemon(message: str, now_unix_s: float) -> dict[str, Any]:
    """The status object without a daemon: everything unknown, `problems` says why."""
    what, _, remedy = message.partition(". ")
    what = what.rstrip(".")
    found = Status(
        schema_version=SCHEMA_VERSION,
        time_unix_s=now_unix_s,
        level=Level.UNKNOWN,
        headline=what,
        host=Host(name=os.uname().nodename if hasattr(os, "uname") else None),
        problems=(Problem(source="daemon", message=f"{what}.", remedy=remedy or None),),
    )
    return timed(found.to_json(), now_unix_s)


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
