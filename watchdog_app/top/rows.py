"""Texts and cells of the live view, made from a status object. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.text import Text

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.base.text.terminal import Style, counted, plain, shorten, width
from watchdog_app.core.explain.agent_lines import agent_line, save_line
from watchdog_app.core.explain.gpu_lines import gpu_lines
from watchdog_app.core.explain.saving import unsaved_sentence
from watchdog_app.core.explain.selection import (
    SORTS,
    gpu_numbers,
    listed_resources,
    nearest_resource,
    sort_tasks,
    split_background,
)
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Incident, Resource, Status, Task
from watchdog_app.top import charts
from watchdog_app.top.past import Key, SeriesHistory, resource_key, task_key

T = TypeVar("T")

WIDE = 108  # minimum width in columns at which the table has all columns
_SPARK_COLUMNS, _SPARK_COLUMNS_WIDE = 11, 16
# The columns and their widths on narrow and on wide terminals; the name takes the rest.
_WIDTHS = {
    "PID": (6, 6),
    "TASK": (0, 0),
    "STATE": (9, 9),
    "RAM": (6, 9),
    "SWAP": (9, 9),
    "DEV": (5, 5),
    "GPU-MEM": (7, 9),
    "CPU%": (5, 5),
    "LAST 15 MIN": (_SPARK_COLUMNS, _SPARK_COLUMNS),
    "TREND": (9, 9),
    "ETA": (12, 14),
}
_OPTIONAL = ("LAST 15 MIN",)  # left out, the first one first, where names have too little room
_GPU_COLUMNS = ("DEV", "GPU-MEM")
_NARROW = ("PID", "TASK", "STATE", "RAM", "LAST 15 MIN", "ETA")
_NARROW_WITH_GPUS = ("PID", "TASK", "STATE", "RAM", "DEV", "GPU-MEM", "ETA")
_TINY_TITLES = ("TASK", "RAM", "ETA")
_LEAST_FOR_NAMES = 12
_ROOM_FOR_NAMES = 15
_FIGURES, _FIGURES_WIDE = 48, 64  # columns for use, limit and time to exhaustion
_TINY, _FIGURES_TINY = 60, 24  # on narrower terminals only ratio and time fit


def column_titles(columns: int, has_gpu: bool) -> tuple[str, ...]:
    """Return the column titles that fit into a terminal of `columns` characters."""
    if columns < _TINY:
        return _TINY_TITLES
    if columns < WIDE:
        return _NARROW_WITH_GPUS if has_gpu else _NARROW
    titles = [head for head in _WIDTHS if has_gpu or head not in _GPU_COLUMNS]
    for head in _OPTIONAL:
        if _room_for_name(titles, columns) < _ROOM_FOR_NAMES:
            titles.remove(head)
    return tuple(titles)


def visible_tasks(
    status: Status, sort: str, name_filter: str, everything: bool, chosen: Task | None = None
) -> list[Task]:
    """
    Return the tasks to show, in display order.

    Args:
        status: the latest status.
        sort: one of `SORTS`.
        name_filter: part of the name; empty: any name.
        everything: also include small idle interpreters.
        chosen: a task that is shown even if it is a small idle interpreter.
    """
    found = sort_tasks(status.tasks, sort)
    if name_filter:
        needle = name_filter.casefold()
        return [task for task in found if needle in (task.name or "").casefold()]
    if everything:
        return found
    kept = {task.key for task in split_background(found)[0]}
    if chosen is not None:
        kept.add(chosen.key)
    return [task for task in found if task.key in kept]


def ended_message(before: Task, now: Task | None, status: Status) -> str:
    """Say that the chosen task has ended, and which one is chosen now; empty while it runs."""
    if any(task.key == before.key for task in status.tasks):
        return ""
    then = "" if now is None else f" {plain(now.name or '?')} is chosen now."
    return f"{plain(before.name or '?')} has ended.{then}"


def is_pid_reused(task: Task, status: Status | None) -> bool:
    """Return whether another program now has the task's pid."""
    known = status.tasks if status is not None else ()
    return any(other.pid == task.pid and other.key != task.key for other in known)


def task_cells(
    task: Task,
    titles: Sequence[str],
    columns: int,
    past: SeriesHistory | None,
    key: Key | None = None,
) -> list[Text]:
    """
    Return one row of the table.

    Args:
        task: task of the status object.
        titles: titles of the columns.
        columns: width of the terminal.
        past: series for the trend; None: the row is off screen and needs no trend.
        key: series to draw instead of the task's RAM.
    """
    wide = columns >= WIDE
    style = charts.text_style(task.level)
    points = past.points(key or task_key(task)) if past is not None else ()
    eta = quantities.eta(task.eta_s, task.eta_low_s, task.eta_high_s, compact=True)
    made = {
        "PID": Text(quantities.whole(task.pid), justify="right"),
        "TASK": _name_cell(task, _name_columns(titles, columns), style),
        "STATE": _state_cell(task),
        "RAM": _right_aligned(quantities.format_bytes(task.ram_bytes, compact=not wide)),
        "SWAP": _right_aligned(quantities.format_bytes(task.swap_bytes, compact=not wide)),
        "DEV": Text(gpu_numbers(task) or quantities.NONE),
        "GPU-MEM": _right_aligned(_gpu_memory(task, compact=not wide)),
        "CPU%": _right_aligned(quantities.whole(task.cpu_percent)),
        "LAST 15 MIN": Text(charts.sparkline(points, _spark_columns(titles, columns))),
        "TREND": _right_aligned(quantities.format_rate(task.slope_bytes_per_s, compact=True)),
        "ETA": Text(eta, style=style),
    }
    return [made[title] for title in titles]


def _gpu_memory(task: Task, *, compact: bool) -> str:
    if task.gpu_memory_bytes is None and not task.gpus:
        return quantities.NONE
    return quantities.format_bytes(task.gpu_memory_bytes, compact=compact)


def _spark_columns(titles: Sequence[str], columns: int) -> int:
    """Return the width of the trend: narrow, where a wide one leaves names too little room."""
    more = _SPARK_COLUMNS_WIDE - _SPARK_COLUMNS
    wide = columns >= WIDE and _room_for_name(titles, columns) - more >= _ROOM_FOR_NAMES
    return _SPARK_COLUMNS_WIDE if wide else _SPARK_COLUMNS


def _name_columns(titles: Sequence[str], columns: int) -> int:
    """Return the columns that remain for the name."""
    more = _spark_columns(titles, columns) - _SPARK_COLUMNS if "LAST 15 MIN" in titles else 0
    return max(_LEAST_FOR_NAMES, _room_for_name(titles, columns) - more)


def _room_for_name(titles: Sequence[str], columns: int) -> int:
    """Return the columns that remain for the name next to a narrow trend."""
    return columns - 3 - sum(_WIDTHS[title][columns >= WIDE] + 2 for title in titles)


def _name_cell(task: Task, room: int, style: str) -> Text:
    name = shorten(plain(task.name or "?"), room - 2)
    text = charts.badge(task.level).append(f" {name}", style=style)
    text.append(" " * max(0, room - 2 - width(name)))
    return text


def _state_cell(task: Task) -> Text:
    if task.state == "paused":
        return Text("paused", style="bold")
    if task.agent is not None and task.agent.saving:
        return Text("saving", style="bold")
    if task.agent is not None and task.agent.training:
        return Text(f"step {quantities.whole(task.agent.step)}"[:12])
    return Text(plain(task.state or "?")[:9])


def _right_aligned(text: str) -> Text:
    return Text(text, justify="right")


def title_line(status: Status, columns: int) -> Text:
    """Return the title line: host, time, and uptime of the daemon."""
    host, daemon = status.host, status.daemon
    at = status.time_unix_s
    clock = "" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
    left = Text("watchdog", style="bold")
    left.append(f"  {plain(host.name or '')}  {clock}", style="")
    if daemon is not None and daemon.protection is not None and daemon.protection.on is False:
        left.append("  ").append(" protection is OFF ", style=charts.BADGES[Level.CRITICAL.color])
    rest = "" if daemon is None else f"up {format_duration(daemon.uptime_s)}"
    pressure = host.pressure_some_avg10_percent
    if pressure is not None and pressure >= 1:
        rest = f"memory pressure {pressure:.0f} %  {rest}"
    gap = columns - left.cell_len - len(rest)
    if gap > 1:
        left.append(" " * gap + rest, style="dim")
    return left


def resource_rows(status: Status, columns: int, everything: bool, most: int) -> list[Text]:
    """Return a line for each resource: label, bar with forecast, figures."""
    listed, left_out = listed_resources(status, everything)
    # Keep the order of the list, but leave out the least urgent resources.
    shown = _most_urgent(listed, most, _urgency)
    left_out += len(listed) - len(shown)
    if not shown:
        return [Text("No limit is known yet.", style="dim")]
    wide = columns >= WIDE
    labels = [plain(resource.label or resource.kind or "?") for resource in shown]
    # Give room to the figures first: the other parts do not show them.
    tiny = columns < _TINY
    left = columns - (_FIGURES_WIDE if wide else _FIGURES_TINY if tiny else _FIGURES)
    room = min(max(map(width, labels)), max(8 if tiny else 10, left * 2 // 3))
    bar_columns = max(4 if tiny else 8, min(48, left - room))
    lines = []
    for resource, label in zip(shown, labels, strict=True):
        style = charts.text_style(resource.level)
        name = shorten(label, room)
        line = charts.badge(resource.level).append(" ")
        line.append(name + " " * (room - width(name)) + " ", style=style)
        line.append_text(charts.bar(resource, bar_columns))
        line.append(f" {quantities.ratio(resource.ratio):>5}")
        if not tiny:
            line.append(
                f"  {quantities.of_limit(resource.used, resource.limit, resource.unit or 'bytes')}"
            )
        if end := resource.end(interval=wide):
            line.append(f"  {end}", style=style or "bold")
        line.truncate(columns)
        lines.append(line)
    if left_out:
        lines.append(Text(f"  and {counted(left_out, 'limit')} far away (a)", style="dim"))
    return lines


def gpu_rows(status: Status, columns: int, everything: bool, most: int) -> list[Text]:
    """
    Return a line for each GPU, as in `watchdog status`, and remarks where there is room.

    Args:
        status: the latest status.
        columns: width of the terminal.
        everything: also show notes and small programs.
        most: lines to return at most; the most urgent GPUs and their remarks are kept.
    """
    if not status.gpus or most < 1:
        return []
    fits = len(status.gpus) <= most
    shown = _most_urgent(status.gpus, most - (not fits), lambda gpu: (-gpu.level,))
    lines: list[Text] = []
    groups = gpu_lines(status, shown, columns, Style(), everything=everything)
    spare = most - len(shown) if fits else 0
    for _, group in sorted(zip(shown, groups, strict=True), key=lambda pair: -pair[0].level):
        if not everything:
            del group[2:]
        if len(group) - 1 > spare:
            del group[1:]
        spare -= len(group) - 1
    for gpu, group in zip(shown, groups, strict=True):
        style = charts.text_style(gpu.level)
        for number, line in enumerate(group):
            text = Text(line, style=style if not number or not everything else "dim")
            if not number and gpu.level.mark:
                text.stylize(charts.BADGES.get(gpu.level.color, ""), 0, 2)
            text.truncate(columns, overflow="ellipsis")
            lines.append(text)
    left_out = len(status.gpus) - len(shown)
    if left_out:
        lines.append(Text(f"  and {counted(left_out, 'card')} more (g)", style="dim"))
    return lines


def _most_urgent(items: Sequence[T], most: int, rank: Callable[[T], tuple[float, ...]]) -> list[T]:
    """Return the first `most` items by rank, in the order of `items`."""
    places = sorted(range(len(items)), key=lambda at: rank(items[at]))[:most]
    return [items[at] for at in sorted(places)]


def incident_rows(status: Status, columns: int, most: int) -> list[Text]:
    """
    Return open incidents, the most urgent first, then problems; if none, a line that all is well.
    """
    lines: list[Text] = []
    incidents = sorted(status.incidents, key=lambda one: (-one.level, -(one.opened_unix_s or 0.0)))
    for one in incidents:
        text = charts.badge(one.level).append(f" {plain(one.label or '?')}")
        text.append(f": {plain(one.reason or '')}", style=charts.text_style(one.level))
        who = ", ".join(plain(each.name or "?") for each in one.contributors[:2])
        if who:
            text.append(f"; {_contributor_role(one)}: {who}")
        text.truncate(columns, overflow="ellipsis")
        lines.append(text)
        # List the other incidents before the advice on the first.
        room = len(incidents) + len(lines) // 2 < most
        lines += [_dim_line(f"  {plain(each)}", columns) for each in one.advice[: 1 if room else 0]]
    lines += [_dim_line(f"! {plain(one.message)}", columns) for one in status.problems]
    if not lines:
        now_unix_s = 0.0  # another line shows the age
        level, said = status.headline_level(now_unix_s), status.summary(now_unix_s)[1]
        lines.append(Text(f"{level.word}: {plain(said)}.", style=charts.text_style(level)))
    unsaved = unsaved_sentence(status.tasks)
    if unsaved:
        lines.append(_dim_line(f"{unsaved}: watchdog status says how to change that", columns))
    return lines[:most]


def unknown_line() -> Text:
    """Return the line that takes the place of the incidents while no daemon answers."""
    return charts.badge(Level.UNKNOWN).append(" UNKNOWN: nothing is watched now.")


def _dim_line(text: str, columns: int) -> Text:
    line = Text(text, style="dim")
    line.truncate(columns, overflow="ellipsis")
    return line


def _contributor_role(incident: Incident) -> str:
    """Return a verb for the contributors of an incident."""
    if not incident.is_fault:
        return "ends" if incident.resource == "walltime" else "grows"
    return "on it" if incident.is_gpu_fault else "concerns"


def task_title(task: Task) -> Text:
    """Return the title of the plot of a task's own memory."""
    text = Text(plain(task.name or "?"), style="bold")
    return text.append(f"  pid {quantities.whole(task.pid)}, its RAM", style="dim")


def resource_title(resource: Resource) -> Text:
    """Return the title of the plot of a resource; the reason, its end, is truncated first."""
    text = Text(plain(resource.label or resource.kind), style="bold")
    if end := resource.end():
        text.append(f"  {end}", style="bold")
    return text.append(f"  {plain(resource.reason or '')}")


def saved_line(task: Task, now_unix_s: float) -> Text:
    """Return the line on the saves of a task."""
    agent = task.agent
    if agent is None:
        text = "no agent: it can be warned about and paused, not saved"
    elif agent.outdated:
        text = "its agent is outdated: restart its kernel to save it"
    else:
        text = agent_line(agent, now_unix_s)
    return Text(f"{plain(task.name or '?')} ({quantities.whole(task.pid)}): {text}", style="dim")


def outcome_lines(result: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """
    Return a sentence for each action that the daemon carried out, and whether it failed.

    Args:
        result: the daemon's answer to a request.
    """
    requests = result.get("requests") or []
    found = [(save_line(one), one.get("status") != "done") for one in requests]
    for one in result.get("resumed") or []:
        found.append((f"{plain(one.get('name') or '?')} resumed.", False))
    found += [(plain(text), True) for text in result.get("failures") or []]
    if "pids" in result and "name" in result:
        found.append((f"{plain(result['name'])} is paused; r resumes it.", False))
    return found


def next_sort(sort: str) -> str:
    """Return the next sort order."""
    return SORTS[(SORTS.index(sort) + 1) % len(SORTS)]


def series_by_task(status: Status, tasks: Sequence[Task]) -> dict[Key, Key]:
    """
    Return the series to draw for each task whose ETA is that of a GPU, not of its RAM.

    A trend of RAM next to the ETA of a GPU would mislead.
    """
    found = {}
    for task in tasks:
        resource = nearest_resource(status, task) if task.eta_s is not None else None
        if resource is not None and resource.kind.startswith("gpu_"):
            found[task_key(task)] = resource_key(resource)
    return found


def _urgency(resource: Resource) -> tuple[float, ...]:
    return -resource.level, math.inf if resource.eta_s is None else resource.eta_s
