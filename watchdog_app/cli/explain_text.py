"""
What the daemon explains, folded to the terminal: deaths with their plot, what was decided. Pure.
"""

from __future__ import annotations

from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.base.text.terminal import Style, pad, plain, plain_block, shorten, width, wrap
from watchdog_app.cli.history import describe
from watchdog_app.cli.output import format_timestamp, wrap_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from watchdog_app.core.model.status import Status, Task

    Json = dict[str, Any]

_INDENT = "  "


def render(
    text: str, entries: list[Json], columns: int | None = None, style: Style | None = None
) -> list[str]:
    """
    The lines of `watchdog explain`.

    Args:
        text: the daemon's explanation.
        entries: of the journal, newest first; of the task alone where one is meant.
        columns: of the terminal.
        style: colours and symbols.
    """
    style = style or Style()
    lines = wrap_lines(text, columns)
    lines += ["", style.paint("What was decided, and what came of it:", "bold")]
    narrow = columns is not None and columns < 80
    for entry in entries:
        name = f"{plain(entry['name'])}: " if entry.get("name") else ""
        # A death begins with the name itself.
        sentence = describe(entry) if entry.get("kind") == "death" else f"{name}{describe(entry)}"
        first = f"{_INDENT}{format_timestamp(entry.get('unix_s'))}  "
        lines += wrap(sentence, columns, first=first, rest="      " if narrow else None)
    return lines if entries else [*lines, f"{_INDENT}Nothing yet."]


def render_death(
    text: str,
    plot: list[str],
    saved: str | None,
    columns: int | None,
    style: Style,
    *,
    more: list[str] | None = None,
) -> list[str]:
    """
    One death, with the plot after what happened and before how that is known.

    Args:
        text: the account, paragraphs with blank lines between.
        plot: the lines of the picture, if there is one.
        saved: what has become of the rescue since.
        more: evidence that was found only now.
    """
    lines: list[str] = []
    for number, part in enumerate(plain_block(text).strip().split("\n\n")):
        head, *rest = part.split("\n")
        first = wrap_lines(head, columns)
        color = "alarm" if number == 0 else "bold" if head.endswith(":") else ""
        lines += [""] * bool(number) + [style.paint(line, color) for line in first]
        if head == "How we know:":
            rest = [*(more or []), *rest]
        for line in rest:
            lines += [_color_certainty(each, style) for each in wrap_lines(line, columns)]
        if head.startswith("What was saved: ") and saved is not None:
            lines += wrap(saved, columns)
        if number == 0 and plot:
            lines += ["", *plot]
    return lines


def deaths_table(entries: list[Json], columns: int | None, style: Style) -> list[str]:
    """
    A line for each death or end: when, who, what of and how sure; newest first.

    Args:
        entries: of the journal, kinds "death" and "end".
    """
    if not entries:
        return ["Nothing has died that the journal knows of."]
    names = [shorten(plain(entry.get("name") or "?"), 24, style.ellipsis) for entry in entries]
    widest = max(width(name) for name in names)
    lines = []
    for entry, name in zip(entries, names, strict=True):
        pid = f"{entry.get('worker') or entry.get('pid') or '?'}"
        when = format_timestamp(entry.get("unix_s"))
        left = f"{when}  {pad(pid, 7, right=True)}  {pad(name, widest)}  "
        sure = "" if entry.get("certainty") != "unknown" else " (not known for sure)"
        reason = plain(entry.get("reason") or entry.get("text") or "unknown") + sure
        first, *rest = wrap(reason, columns and max(columns, width(left) + 24), first=left)
        bad = "alarm" if entry.get("memory") else "bold" if entry.get("kind") == "death" else ""
        lines += [first.replace(name, style.paint(name, bad), 1), *rest]
    return [*lines, "More about one: watchdog explain PID"]


def _color_certainty(line: str, style: Style) -> str:
    """How sure it is in colour; the word says it as well."""
    for word, color in (("exact", "green"), ("most likely", "yellow"), ("unknown", "dim")):
        mark = f"[{word}]"
        if line.startswith(f"  {mark}"):
            return line.replace(mark, style.paint(mark, color), 1)
    return line


def find_task(status: Status, query: str) -> Task | None:
    """
    The task that the daemon found by `query`; it has made sure that there is one.

    The most exact way of answering to it wins, as in the daemon.
    """
    pid, folded = parse_pid(query), query.strip().casefold()

    def texts(task: Task) -> list[str]:
        if pid is not None:
            return []
        names = (task.name, task.notebook, task.script, task.kernel_id)
        return [name.casefold() for name in names if name]

    matchers: tuple[Callable[[Task], bool], ...] = (
        lambda task: pid is not None and task.pid == pid,
        lambda task: folded in texts(task),
        lambda task: any(text.startswith(folded) for text in texts(task)),
        lambda task: any(folded in text for text in texts(task)),
    )
    for matches in matchers:
        found = next((task for task in status.tasks if matches(task)), None)
        if found is not None:
            return found
    return None
