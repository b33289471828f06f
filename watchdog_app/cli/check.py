"""`watchdog status --check`: one line and an exit code for Nagios, Icinga, scripts and prompts."""

from __future__ import annotations

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.cli import figures
from watchdog_app.cli.text import plain
from watchdog_app.core.model.levels import Level, headline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check(status: dict[str, Any], now_unix_s: float) -> tuple[str, int]:
    """
    One line with performance data after `|`, and the exit code.

    0 while nothing needs anybody, 1 for a warning or where a part of the machine cannot be read,
    2 where it is critical, 3 when the reading is too old to say.
    """
    level, text = headline(status, now_unix_s)
    text = plain(text).replace("|", "/")
    return f"WATCHDOG {level.word} - {text} | {_performance(status)}", level.exit_code


def unreachable(message: str) -> tuple[str, int]:
    """The line where no daemon can be asked."""
    first = message.split("\n", maxsplit=1)[0].replace("|", "/")
    return f"WATCHDOG {Level.UNKNOWN.word} - {first}", Level.UNKNOWN.exit_code


def _performance(status: dict[str, Any]) -> str:
    """`label=value;warn;crit;min;max`, as the Monitoring Plugins' guidelines lay down."""
    host = status.get("host") or {}
    found = [f"tasks={len(status.get('processes') or [])}"]
    for label, total, free in (
        ("ram", "memory_total_bytes", "memory_available_bytes"),
        ("swap", "swap_total_bytes", "swap_free_bytes"),
    ):
        limit, left = number_or_none(host.get(total)), number_or_none(host.get(free))
        if limit is not None and left is not None:
            found.append(f"{label}={limit - left:.0f}B;;;0;{limit:.0f}")
    for gpu in objects(status, "gpus"):
        name = f"gpu{figures.whole(gpu.get('index'))}"
        used, limit = (
            number_or_none(gpu.get(f"memory_{word}_bytes")) for word in ("used", "total")
        )
        if limit is not None:  # what the driver keeps for itself is nobody's
            limit -= number_or_none(gpu.get("memory_reserved_bytes")) or 0
        if gpu.get("parent_uuid") is None and used is not None and limit is not None:
            found.append(f"{name}={used:.0f}B;;;0;{limit:.0f}")
        celsius = number_or_none(gpu.get("temperature_c"))
        if celsius is not None and gpu.get("parent_uuid") is None:
            found.append(f"{name}_temperature={celsius:.0f}")
    etas = [number_or_none(one.get("eta_s")) for one in status.get("ceilings") or []]
    known = [one for one in etas if one is not None]
    if known:
        found.append(f"eta={min(known):.0f}s")
    return " ".join(found)
