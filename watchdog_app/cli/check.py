"""`watchdog status --check`: one line and an exit code for Nagios, Icinga, scripts and prompts."""

from __future__ import annotations

from watchdog_app.cli import figures
from watchdog_app.cli.task_table import stage_rank
from watchdog_app.cli.verdict import is_stale, objects, verdict, worst_stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3

_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def check(status: dict[str, Any], now_unix_s: float) -> tuple[str, int]:
    """
    One line with performance data after `|`, and the exit code.

    0 while nothing is in a stage above watch, 1 from warn on or where a part of the machine cannot
    be read, 2 from rescue on, 3 when the reading is too old to say.
    """
    rank = stage_rank(worst_stage(status))
    code = OK if rank < 2 else WARNING if rank == 2 else CRITICAL
    word, _, sentence = verdict(status, now_unix_s).partition(": ")
    if code == OK and word == "WARNING":
        code = WARNING  # nothing is about to end, as far as it can be seen
    if is_stale(status, now_unix_s):
        code = UNKNOWN
    if word == "UNKNOWN":
        code = UNKNOWN
    sentence = sentence.replace("|", "/")
    return f"WATCHDOG {_WORDS[code]} - {sentence} | {_performance(status)}", code


def unreachable(message: str) -> tuple[str, int]:
    """The line where no daemon can be asked."""
    first = message.split("\n", maxsplit=1)[0].replace("|", "/")
    return f"WATCHDOG UNKNOWN - {first}", UNKNOWN


def _performance(status: dict[str, Any]) -> str:
    """`label=value;warn;crit;min;max`, as the Monitoring Plugins' guidelines lay down."""
    host = status.get("host") or {}
    found = [f"tasks={len(status.get('processes') or [])}"]
    for label, total, free in (
        ("ram", "memory_total_bytes", "memory_available_bytes"),
        ("swap", "swap_total_bytes", "swap_free_bytes"),
    ):
        limit, left = figures.number(host.get(total)), figures.number(host.get(free))
        if limit is not None and left is not None:
            found.append(f"{label}={limit - left:.0f}B;;;0;{limit:.0f}")
    for gpu in objects(status, "gpus"):
        name = f"gpu{figures.whole(gpu.get('index'))}"
        used, limit = (
            figures.number(gpu.get(f"memory_{word}_bytes")) for word in ("used", "total")
        )
        if limit is not None:  # what the driver keeps for itself is nobody's
            limit -= figures.number(gpu.get("memory_reserved_bytes")) or 0
        if gpu.get("parent_uuid") is None and used is not None and limit is not None:
            found.append(f"{name}={used:.0f}B;;;0;{limit:.0f}")
        celsius = figures.number(gpu.get("temperature_c"))
        if celsius is not None and gpu.get("parent_uuid") is None:
            found.append(f"{name}_temperature={celsius:.0f}")
    etas = [figures.number(one.get("eta_s")) for one in status.get("ceilings") or []]
    known = [one for one in etas if one is not None]
    if known:
        found.append(f"eta={min(known):.0f}s")
    return " ".join(found)
