"""
What was seen and decided, in words: for the machine, or for one task.

Pure: a status object, incidents and journal entries in, lines out.
"""

from __future__ import annotations

from watchdog_app.cli import figures
from watchdog_app.cli.color import Look
from watchdog_app.cli.history_text import sentence, when
from watchdog_app.cli.status_text import incident_lines, verdict, worst_stage
from watchdog_app.cli.task_table import agent_text, stage_rank
from watchdog_app.cli.text import plain, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]

_LONG = 10_000
_INDENT = "  "


def render(
    status: Json,
    incidents: list[Json],
    entries: list[Json],
    task: Json | None,
    now_unix_s: float,
    *,
    columns: int | None = None,
    look: Look | None = None,
) -> list[str]:
    """
    The lines of `watchdog explain`.

    Args:
        status: the status object.
        incidents: those that are open; of the task alone where one is meant.
        entries: of the journal, newest first; of the task alone where one is meant.
        task: its entry in the status object; None: the machine is meant.
        now_unix_s: what ages are counted to.
        columns: of the terminal.
        look: colours and symbols.
    """
    look = look or Look()
    limit = columns or _LONG
    if task is None:
        first = wrap(verdict(status, now_unix_s), limit)
        lines = [look.stage(one, worst_stage(status)) for one in first]
    else:
        lines = _task(task, now_unix_s, limit)
    seen = [line for one in _ceilings(status, task) for line in _ceiling(one, limit, look)]
    lines += ["", look.paint("What is seen", "bold"), *seen] if seen else []
    for incident in incidents:
        lines += ["", *incident_lines(incident, now_unix_s, columns, look)]
    lines += ["", look.paint("What was decided, and what came of it", "bold")]
    lines += _decisions(entries, limit)
    return lines


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


def _task(task: Json, now_unix_s: float, limit: int) -> list[str]:
    path = task.get("notebook") or task.get("script")
    head = f"{plain(task.get('name') or '?')} (pid {figures.whole(task.get('pid'))}"
    head += f", {plain(task.get('kind') or 'python')}"
    head += f", {plain(path)})" if path else ")"
    children = figures.number(task.get("children")) or 0
    uses = f"It holds {figures.size(task.get('ram_bytes'))} of RAM"
    if figures.number(task.get("swap_bytes")):
        uses += f" and {figures.size(task['swap_bytes'])} of swap"
    if children:
        uses += f", with {children:.0f} child process{'es' if children > 1 else ''}"
    trend = figures.rate(task.get("trend_bytes_per_s"))
    uses += {"0": "; it does not grow.", figures.UNKNOWN: "."}.get(trend, f"; trend {trend}.")
    lines = wrap(head, limit) + wrap(uses, limit, first=_INDENT)
    if task.get("why"):
        lines += wrap(_stop(plain(task["why"])), limit, first=_INDENT)
    eta = figures.eta(task)
    if eta != figures.NONE:
        where = {"ram": "RAM", "cgroup": "the limit of its memory group"}
        ceiling = where.get(str(task.get("ceiling")), plain(task.get("ceiling") or "its limit"))
        lines += wrap(f"At this pace {ceiling} is reached in {eta}.", limit, first=_INDENT)
    if task.get("paused_by_watchdog"):
        text = f"It is paused by watchdog; let it go on with: watchdog resume {task.get('pid')}"
        lines += wrap(text, limit, first=_INDENT)
    if task.get("agent"):
        text = f"Agent: {agent_text(task['agent'], now_unix_s)}."
    else:
        text = "No agent is in it: watchdog can pause it, but cannot save its work."
    return lines + wrap(text, limit, first=_INDENT)


def _ceilings(status: Json, task: Json | None) -> list[Json]:
    ceilings = [one for one in status.get("ceilings") or [] if isinstance(one, dict)]
    if task is not None:
        ceilings = [one for one in ceilings if task.get("pid") in (one.get("tasks") or [])]
    return sorted(ceilings, key=lambda one: -stage_rank(one.get("stage")))


def _ceiling(ceiling: Json, limit: int, look: Look) -> list[str]:
    unit = str(ceiling.get("unit") or "bytes")
    why = plain(ceiling.get("why") or "")
    if not why:
        why = figures.of_limit(ceiling.get("used"), ceiling.get("limit"), unit)
    eta = figures.eta(ceiling)
    text = f"{plain(ceiling.get('label') or ceiling.get('kind') or '?')}: {why}"
    text += f"; full in {eta}" if eta != figures.NONE else ""
    stage = ceiling.get("stage")
    text += f" (stage {plain(stage)})" if stage_rank(stage) > 0 else ""
    return [look.stage(one, stage) for one in wrap(text, limit, first=_INDENT, rest="    ")]


def _decisions(entries: list[Json], limit: int) -> list[str]:
    lines = []
    for entry in entries:
        name = f"{plain(entry['name'])}: " if entry.get("name") else ""
        # A death begins with the name itself.
        text = sentence(entry) if entry.get("kind") == "death" else f"{name}{sentence(entry)}"
        first = f"{_INDENT}{when(entry.get('unix_s'))}  "
        lines += wrap(text, limit, first=first, rest="      " if limit < 80 else None)
    return lines or [f"{_INDENT}Nothing yet."]


def _stop(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
