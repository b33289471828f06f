"""`watchdog status --check`: one line and an exit code for Nagios, Icinga, scripts and prompts."""

from __future__ import annotations

from watchdog_app.base.text.terminal import plain
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Status


def check(status: Status, now_unix_s: float) -> tuple[str, int]:
    """
    One line with performance data after `|`, and the exit code.

    The code is 0 while nothing needs action, and 1 for a warning or an unreadable part of the
    machine. It is 2 where it is critical, and 3 when the reading is too old.
    """
    level, text = status.summary(now_unix_s)
    text = plain(text).replace("|", "/")
    return f"WATCHDOG {level.word} - {text} | {_performance(status)}", level.exit_code


def unreachable(message: str) -> tuple[str, int]:
    """The line where no daemon can be asked."""
    first = message.split("\n", maxsplit=1)[0].replace("|", "/")
    return f"WATCHDOG {Level.UNKNOWN.word} - {first}", Level.UNKNOWN.exit_code


def _performance(status: Status) -> str:
    """`label=value;warn;crit;min;max`, as the Monitoring Plugins' guidelines lay down."""
    host = status.host
    found = [f"tasks={len(status.tasks)}"]
    for label, limit, free in (
        ("ram", host.memory_total_bytes, host.memory_available_bytes),
        ("swap", host.swap_total_bytes, host.swap_free_bytes),
    ):
        if limit is not None and free is not None:
            found.append(f"{label}={limit - free}B;;;0;{limit}")
    for gpu in status.gpus:
        if gpu.parent_id is not None:
            continue
        name = f"gpu{'N/A' if gpu.index is None else gpu.index}"
        if gpu.memory_used_bytes is not None and gpu.usable_bytes is not None:
            found.append(f"{name}={gpu.memory_used_bytes}B;;;0;{gpu.usable_bytes}")
        if gpu.temperature_c is not None:
            found.append(f"{name}_temperature={gpu.temperature_c:.0f}")
    known = [one.eta_s for one in status.resources if one.eta_s is not None]
    if known:
        found.append(f"eta={min(known):.0f}s")
    return " ".join(found)
