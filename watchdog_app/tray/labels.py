"""Figures and untrusted names as short texts for menus, tooltips and notifications. Pure."""

from __future__ import annotations

from watchdog_app.base.text import terminal
from watchdog_app.base.text.quantities import format_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Task

_MAX_NAME_CHARS = 40


def plain(value: object, limit: int = 200) -> str:
    """One line of at most `limit` characters; what cannot be shown is written as an escape."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    line = terminal.plain(" ".join(text[: 20 * limit].split()))
    return line if len(line) <= limit else line[: limit - 1] + "\u2026"


def plain_block(value: object, limit: int = 2000) -> str:
    """As `plain`, with line ends kept."""
    lines = str("" if value is None else value)[: 2 * limit].split("\n")
    text = "\n".join(plain(line, 500) for line in lines)
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def short_name(value: object) -> str:
    """A task's name; one that is too long loses its middle and keeps its ending (`.ipynb`)."""
    return terminal.shorten(plain(value, 1000) or "(no name)", _MAX_NAME_CHARS)


def rate(bytes_per_s: float | None) -> str:
    """`+21 MiB/s`; `steady` below a KiB a second, which is no trend."""
    if bytes_per_s is None:
        return "N/A"
    if abs(bytes_per_s) < 1024:
        return "steady"
    figure, _, unit = format_rate(bytes_per_s).partition(" ")
    return f"{figure[: figure.index('.')] if len(figure) > 4 and '.' in figure else figure} {unit}"


def short_duration(seconds: float) -> str:
    """A time in one or two figures, as one says it: `4 min`, `30 s`, `2 h`, `3 d`."""
    value = max(0.0, seconds)
    if value < 1:
        return "1 s"
    if value < 9.5:
        return f"{round(value)} s"
    if value < 57.5:
        return f"{5 * round(value / 5)} s"
    if value < 3600 * 1.65:
        return f"{max(1, round(value / 60))} min"
    if value < 3600 * 47.5:
        return f"{round(value / 3600)} h"
    return f"{round(value / 86400)} d"


def until_full(task: Task) -> str | None:
    """`in about 4 min (3 to 7 min)`; None where no end is foreseen."""
    if task.eta_s is None:
        return None
    low, high = task.eta_low_s, task.eta_high_s
    text = f"in about {short_duration(task.eta_s)}"
    if low is None:
        return text
    if high is None:
        return f"{text} ({short_duration(low)} or more)"
    first, second = short_duration(low), short_duration(high)
    if first == second:
        return text
    if first.rpartition(" ")[2] == second.rpartition(" ")[2]:
        first = first.rpartition(" ")[0]
    return f"{text} ({first} to {second})"


def short_age(seconds: float) -> str:
    """`just now`, `40 s ago`, `3 min ago`: coarse, so that a label changes seldom."""
    return "just now" if seconds < 5 else f"{short_duration(seconds)} ago"
