"""
What the daemon explains, folded to the terminal, with what was decided below. Pure.
"""

from __future__ import annotations

from watchdog_app.cli.color import Look
from watchdog_app.cli.history_text import sentence, when
from watchdog_app.cli.text import plain, plain_block, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]

_LONG = 10_000
_INDENT = "  "


def render(
    text: str, entries: list[Json], columns: int | None = None, look: Look | None = None
) -> list[str]:
    """
    The lines of `watchdog explain`.

    Args:
        text: the daemon's explanation.
        entries: of the journal, newest first; of the task alone where one is meant.
        columns: of the terminal.
        look: colours and symbols.
    """
    look = look or Look()
    limit = columns or _LONG
    lines = []
    for line in plain_block(text).rstrip().split("\n"):
        blanks = " " * (len(line) - len(line.lstrip()))
        lines += [part.rstrip() for part in wrap(line, limit, first=blanks)]
    lines += ["", look.paint("What was decided, and what came of it:", "bold")]
    for entry in entries:
        name = f"{plain(entry['name'])}: " if entry.get("name") else ""
        # A death begins with the name itself.
        said = sentence(entry) if entry.get("kind") == "death" else f"{name}{sentence(entry)}"
        first = f"{_INDENT}{when(entry.get('unix_s'))}  "
        lines += wrap(said, limit, first=first, rest="      " if limit < 80 else None)
    return lines if entries else [*lines, f"{_INDENT}Nothing yet."]


def find_task(status: Json, wanted: str) -> Json | None:
    """
    The task that the daemon found by `wanted`; it has made sure that there is one.

    The most exact way of answering to it wins, as in the daemon.
    """
    processes = [one for one in status.get("processes") or [] if isinstance(one, dict)]
    folded = wanted.strip().casefold()

    def texts(process: Json) -> list[str]:
        keys = ("name", "notebook", "script", "kernel_id")
        return [str(process[key]).casefold() for key in keys if process.get(key)]

    ways: tuple[Callable[[Json], bool], ...] = (
        lambda process: str(process.get("pid")) == folded,
        lambda process: folded in texts(process),
        lambda process: any(text.startswith(folded) for text in texts(process)),
        lambda process: any(folded in text for text in texts(process)),
    )
    for fits in ways:
        found = next((process for process in processes if fits(process)), None)
        if found is not None:
            return found
    return None
