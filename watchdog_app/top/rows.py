"""From a status object to what the live view shows of it: texts and cells. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.cli import figures
from watchdog_app.cli.ceiling_lines import chosen
from watchdog_app.cli.color import Look
from watchdog_app.cli.gpu_lines import card_level, grouped_lines
from watchdog_app.cli.task_table import SORTS, devices, folded, ordered
from watchdog_app.cli.text import counted, plain, shorten, width
from watchdog_app.cli.verdict import is_condition
from watchdog_app.core.model.levels import Level, headline
from watchdog_app.top import charts
from watchdog_app.top.past import Key, Past, ceiling_key, task_key

Json = dict[str, Any]

_WIDE = 110  # columns from which on the table shows everything
_HEADS = (
    "PID", "TASK", "STATE", "RAM", "SWAP", "DEV", "GPU-MEM", "CPU%", "LAST 15 MIN", "TREND", "ETA",
)  # fmt: skip
_OF_CARDS = ("DEV", "GPU-MEM")
_NARROW = ("PID", "TASK", "STATE", "RAM", "LAST 15 MIN", "ETA")
_NARROW_WITH_CARDS = ("PID", "TASK", "STATE", "RAM", "DEV", "GPU-MEM", "ETA")
_LEAST = ("TASK", "RAM", "ETA")
_SPARK_COLUMNS = {True: 16, False: 11}
_FIGURES, _FIGURES_WIDE = 48, 64  # columns for use, limit and time to exhaustion
_TINY, _FIGURES_TINY = 60, 24  # below so many columns there is room for ratio and time alone
_NO_INTERVAL = {"eta_low_s": None, "eta_high_s": None}


def heads(columns: int, has_gpu: bool) -> tuple[str, ...]:
    """Column titles that fit a terminal of so many columns."""
    if columns < _TINY:
        return _LEAST
    if columns < _WIDE:
        return _NARROW_WITH_CARDS if has_gpu else _NARROW
    return tuple(head for head in _HEADS if has_gpu or head not in _OF_CARDS)


def tasks(
    status: Json, sort: str, wanted: str, everything: bool, chosen: Json | None = None
) -> list[Json]:
    """The tasks to show, in order; the chosen one is no idle one that is left out."""
    found = ordered(objects(status, "processes"), sort)
    if wanted:
        needle = wanted.casefold()
        return [one for one in found if needle in str(one.get("name") or "").casefold()]
    if everything:
        return found
    kept = folded(found)[0]
    key = None if chosen is None else task_key(chosen)
    return [one for one in found if one in kept or task_key(one) == key]


def ended(before: Json, now: Json | None, status: Json) -> str:
    """What is said when the chosen task is gone, and which one is chosen instead; else nothing."""
    if any(task_key(one) == task_key(before) for one in objects(status, "processes")):
        return ""
    then = "" if now is None else f" {plain(now.get('name') or '?')} is chosen now."
    return f"{plain(before.get('name') or '?')} has ended.{then}"


def another(task: Json, status: Json) -> bool:
    """Whether its pid belongs to another program by now."""
    return any(
        one.get("pid") == task.get("pid") and task_key(one) != task_key(task)
        for one in objects(status, "processes")
    )


def cells(
    task: Json,
    titles: Sequence[str],
    columns: int,
    past: Past | None,
    key: Key | None = None,
) -> list[Text]:
    """
    One row of the table.

    Args:
        task: of the status object.
        titles: of the columns.
        columns: of the terminal.
        past: None: nobody sees its trend now.
        key: of the series to draw, where that is not the task's RAM.
    """
    wide = columns >= _WIDE
    style = charts.TEXT_STYLES[Level.of(task)]
    points = past.of(key or task_key(task)) if past is not None else ()
    made = {
        "PID": Text(figures.whole(task.get("pid")), justify="right"),
        "TASK": _name(task, _room(titles, columns), style),
        "STATE": _state(task),
        "RAM": _right(figures.size(task.get("ram_bytes"), compact=not wide)),
        "SWAP": _right(figures.size(task.get("swap_bytes"), compact=not wide)),
        "DEV": Text(devices(task) or figures.NONE),
        "GPU-MEM": _right(figures.size(task.get("gpu_memory_bytes"), compact=not wide)),
        "CPU%": _right(figures.whole(task.get("cpu_percent"))),
        "LAST 15 MIN": Text(charts.sparkline(points, _SPARK_COLUMNS[wide]), style="cyan"),
        "TREND": _right(figures.rate(task.get("trend_bytes_per_s"), compact=True)),
        "ETA": Text(figures.eta(task, compact=True), style=style),
    }
    return [made[title] for title in titles]


def _room(titles: Sequence[str], columns: int) -> int:
    """What is left for the name."""
    wide = columns >= _WIDE
    fixed = {
        "PID": 6, "STATE": 9, "RAM": 9 if wide else 6, "SWAP": 9, "DEV": 5, "CPU%": 5,
        "GPU-MEM": 9 if wide else 7,
        "LAST 15 MIN": _SPARK_COLUMNS[wide], "TREND": 9, "ETA": 14 if wide else 12,
    }  # fmt: skip
    taken = sum(fixed.get(title, 0) + 2 for title in titles)
    return max(12, columns - taken - 3)


def _name(task: Json, room: int, style: str) -> Text:
    mark = Level.of(task).mark
    name = shorten(plain(task.get("name") or "?"), room - 2)
    text = Text(f"{mark:2} {name}", style=style)
    text.append(" " * max(0, room - 2 - width(name)))
    return text


def _state(task: Json) -> Text:
    agent = task.get("agent") or {}
    if task.get("state") == "paused":
        return Text("paused" if task.get("paused_by_watchdog") else "stopped", style="bold")
    if agent.get("saving"):
        return Text("saving", style="bold magenta")
    if agent.get("training"):
        return Text(f"step {figures.whole(agent.get('step'))}"[:12])
    return Text(plain(task.get("state") or "?")[:9])


def _right(text: str) -> Text:
    return Text(text, justify="right")


def title_line(status: Json, columns: int) -> Text:
    """Host, time, daemon."""
    host = status.get("host") or {}
    daemon = status.get("daemon") or {}
    at = number_or_none(status.get("time_unix_s"))
    clock = "" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
    left = Text("watchdog", style="bold")
    left.append(f"  {plain(host.get('name') or '')}  {clock}", style="")
    protection = daemon.get("protection") or {}
    if protection.get("on") is False:
        left.append("  protection is OFF", style="bold red")
    rest = f"up {_duration(daemon.get('uptime_s'))}" if daemon else ""
    pressure = number_or_none(host.get("pressure_some_avg10_percent"))
    if pressure is not None and pressure >= 1:
        rest = f"memory pressure {pressure:.0f} %  {rest}"
    gap = columns - left.cell_len - len(rest)
    if gap > 1:
        left.append(" " * gap + rest, style="dim")
    return left


def ceiling_rows(status: Json, columns: int, everything: bool, most: int) -> list[Text]:
    """A line a ceiling, nearest end first: label, bar with the forecast drawn ahead, figures."""
    shown, left_out = chosen(status, everything)
    # In the order of the list, but what is in danger is never what is left out.
    kept = sorted(range(len(shown)), key=lambda at: _nearness(shown[at]))[:most]
    left_out += len(shown) - len(kept)
    shown = [shown[at] for at in sorted(kept)]
    if not shown:
        return [Text("No limit is known yet.", style="dim")]
    wide = columns >= _WIDE
    labels = [plain(one.get("label") or one.get("kind") or "?") for one in shown]
    # The figures come first: they are what cannot be guessed from the rest.
    tiny = columns < _TINY
    left = columns - (_FIGURES_WIDE if wide else _FIGURES_TINY if tiny else _FIGURES)
    room = min(max(map(width, labels)), max(8 if tiny else 10, left // 2))
    bar_columns = max(4 if tiny else 8, min(48, left - room))
    lines = []
    for one, label in zip(shown, labels, strict=True):
        style = charts.TEXT_STYLES[Level.of(one)]
        name = shorten(label, room)
        line = Text(f"{Level.of(one).mark:2} ", style=style)
        line.append(name + " " * (room - width(name)) + " ", style=style)
        line.append_text(charts.bar(one, bar_columns))
        unit = str(one.get("unit") or "bytes")
        use = figures.of_limit(one.get("used"), one.get("limit"), unit)
        line.append(f" {figures.ratio(one.get('ratio')):>5}")
        if not tiny:
            line.append(f"  {use}")
        if figures.eta(one) != figures.NONE:
            end = figures.end(one) if wide else figures.end({**one, **_NO_INTERVAL})
            line.append(f"  {end}", style=style or "bold")
        line.truncate(columns)
        lines.append(line)
    if left_out:
        limits = "1 limit" if left_out == 1 else f"{left_out} limits"
        lines.append(Text(f"  and {limits} far away (a)", style="dim"))
    return lines


def card_rows(status: Json, columns: int, everything: bool, most: int) -> list[Text]:
    """A line a graphics card, as `watchdog status` writes it; what is wrong or near is kept."""
    gpus = objects(status, "gpus")
    if not gpus or most < 1:
        return []
    kept = sorted(range(len(gpus)), key=lambda at: (-card_level(gpus[at], status), at))
    shown = [gpus[at] for at in sorted(kept[:most])]
    lines: list[Text] = []
    for gpu, group in zip(
        shown, grouped_lines({**status, "gpus": shown}, columns, Look(), everything), strict=True
    ):
        style = charts.TEXT_STYLES[card_level(gpu, status)]
        for number, line in enumerate(group if everything else group[:2]):
            text = Text(line, style=style if not number or not everything else "dim")
            text.truncate(columns, overflow="ellipsis")
            lines.append(text)
    if len(gpus) > len(shown):
        lines.append(Text(f"  and {counted(len(gpus) - len(shown), 'card')} more", style="dim"))
    return lines


def incident_rows(status: Json, columns: int, most: int) -> list[Text]:
    """Open incidents, the gravest first; what cannot be watched; or that all is well."""
    lines: list[Text] = []
    incidents = sorted(objects(status, "incidents"), key=_gravity)
    for one in incidents:
        style = charts.TEXT_STYLES[Level.of(one)]
        mark = Level.of(one).mark
        who = ", ".join(plain(each.get("name") or "?") for each in (one.get("culprits") or [])[:2])
        text = Text(f"{mark} {plain(one.get('label') or '?')}: {plain(one.get('why') or '')}")
        text.stylize(style)
        if who:
            text.append(f"; {_whose(one)}: {who}")
        text.truncate(columns, overflow="ellipsis")
        lines.append(text)
        # What is wrong elsewhere as well comes before what to do about the first.
        room = len(incidents) + len(lines) // 2 < most
        for advice in (one.get("advice") or [])[: 1 if room else 0]:
            hint = Text(f"  {plain(advice)}", style="dim")
            hint.truncate(columns, overflow="ellipsis")
            lines.append(hint)
    for one in objects(status, "errors"):
        text = Text(f"not watched: {plain(one.get('message') or '')}", style="dim")
        text.truncate(columns, overflow="ellipsis")
        lines.append(text)
    if not lines:
        level, said = headline(status, now_unix_s=0.0)  # its age has a line of its own
        style = "green" if level <= Level.WATCH else "yellow"
        lines.append(Text(f"{level.word}: {plain(said)}.", style=style))
    return lines[:most]


def _whose(incident: Json) -> str:
    """What the culprits of an incident have to do with it."""
    if not is_condition(incident):
        return "grows"
    return "on it" if incident.get("ceiling") == "gpu_health" else "concerns"


def detail_title(task: Json, of_what: str) -> Text:
    """Whose the plot is and of what; both before the reason, which is cut first."""
    text = Text(plain(task.get("name") or "?"), style="bold")
    text.append(f"  pid {figures.whole(task.get('pid'))}", style="dim")
    text.append(f"  {of_what}", style="bold")
    why = task.get("why")
    if why:
        text.append(f"  {plain(why)}")
    return text


def agent_line(task: Json, now_unix_s: float) -> Text:
    """What is saved of it."""
    agent = task.get("agent")
    if not agent:
        return Text("No agent: it can be warned about and paused, not saved.", style="dim")
    parts = [plain(agent.get("framework") or "agent")]
    for key in ("epoch", "step"):
        if agent.get(key) is not None:
            parts.append(f"{key} {figures.whole(agent.get(key))}")
    loss = number_or_none(agent.get("loss"))
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    rescue = agent.get("rescue")
    if rescue:
        saved = number_or_none(rescue.get("saved_unix_s"))
        ago = "" if saved is None else f" {figures.age(now_unix_s - saved)}"
        parts.append(f"rescue of step {figures.whole(rescue.get('step'))}{ago}")
    else:
        parts.append("no rescue yet")
    return Text(", ".join(parts), style="dim")


def outcomes(result: Json) -> list[tuple[str, bool]]:
    """Each thing that was done, in a sentence, and whether it failed."""
    found: list[tuple[str, bool]] = []
    for one in result.get("requests") or []:
        name = plain(one.get("name") or "?")
        if one.get("status") == "done":
            found.append((f"{name}: saved step {figures.whole(one.get('step'))}.", False))
        else:
            found.append((f"{name}: {plain(one.get('detail') or one.get('status'))}", True))
    for one in result.get("resumed") or []:
        found.append((f"{plain(one.get('name') or '?')} goes on.", False))
    found += [(plain(text), True) for text in result.get("failures") or []]
    if "pids" in result and "name" in result:
        found.append((f"{plain(result['name'])} is paused; r lets it go on.", False))
    return found


def next_sort(sort: str) -> str:
    """The order after this one."""
    return SORTS[(SORTS.index(sort) + 1) % len(SORTS)]


def tightest(status: Mapping[str, Any], task: Json) -> Json | None:
    """The ceiling that this task is forecast to meet, else the fullest that can hit it."""
    pid = task.get("pid")
    above = [one for one in objects(dict(status), "ceilings") if pid in (one.get("tasks") or [])]
    foreseen = [one for one in above if number_or_none(one.get("eta_s")) is not None]
    if foreseen:
        return min(foreseen, key=lambda one: number_or_none(one.get("eta_s")) or 0.0)
    in_bytes = [one for one in above if one.get("unit") == "bytes"]
    return max(in_bytes, key=lambda one: number_or_none(one.get("ratio")) or 0.0, default=None)


def drawn(status: Json, tasks: Sequence[Json]) -> dict[Key, Key]:
    """
    By task the series that its time belongs to, where that is not its RAM.

    A trend of RAM beside the time at which a card is full tells of two things as if of one.
    """
    found = {}
    for task in tasks:
        if number_or_none(task.get("eta_s")) is None:
            continue
        ceiling = tightest(status, task)
        if ceiling is not None and str(ceiling.get("kind")).startswith("gpu_"):
            found[task_key(task)] = ceiling_key(ceiling)
    return found


def _nearness(ceiling: Json) -> tuple[int, float]:
    eta_s = number_or_none(ceiling.get("eta_s"))
    return -Level.of(ceiling), math.inf if eta_s is None else eta_s


def _duration(seconds: Any) -> str:
    known = number_or_none(seconds)
    return figures.UNKNOWN if known is None else format_duration(known)


def _gravity(incident: Json) -> tuple[int, float]:
    opened = number_or_none(incident.get("opened_unix_s")) or 0.0
    return -Level.of(incident), -opened
