"""
A status object as text: verdict, ceilings, incidents, tasks, what is not watched.

Pure: object, clock and width in, lines out. The object is whatever a daemon of
any version sent: what is missing or null is shown as unknown or left out.
"""

from __future__ import annotations

from watchdog_app.cli import figures
from watchdog_app.cli.color import Look, stage_mark
from watchdog_app.cli.grid import Grid
from watchdog_app.cli.task_table import folded, ordered, stage_rank, task_lines
from watchdog_app.cli.text import plain, width, wrap
from watchdog_app.units import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_BAR_COLUMNS = 12
_BAR, _USED, _TREND = 2, 3, 5  # cells of a ceiling's line
_RIGHT = {3, 4}
_MOST_LIMITS = 4  # group limits and others that are far away, shown without --all
_LONG = 10_000  # columns where nobody said how wide a line may be
_ALWAYS = ("ram", "swap")
_GROUPS = ("cgroup",)
_ROOMY = 0.5  # other ceilings are shown from here on


def render(
    status: Json,
    now_unix_s: float,
    columns: int | None = None,
    look: Look | None = None,
    *,
    everything: bool = False,
    sort: str = "urgency",
    most_tasks: int | None = None,
) -> list[str]:
    """
    The lines of `watchdog status`.

    Args:
        status: the status object of docs/status-json.md.
        now_unix_s: what the age of the reading is counted to.
        columns: of the terminal; None: nothing is shortened.
        look: colours and symbols.
        everything: idle interpreters and far ceilings as well.
        sort: one of `task_table.SORTS`.
        most_tasks: rows of the task table; the rest is counted.
    """
    look = look or Look()
    lines = [*_verdict(status, now_unix_s, columns, look), ""]
    ceilings = _ceilings(status, columns, look, everything)
    lines += [*ceilings, ""] if ceilings else []
    for incident in _list(status, "incidents"):
        lines += [*incident_lines(incident, now_unix_s, columns, look), ""]
    lines += _tasks(
        status, now_unix_s, columns, look, everything=everything, sort=sort, most=most_tasks
    )
    lines += _errors(status, columns, look)
    return lines


def worst_stage(status: Json) -> str:
    """The highest stage that any ceiling, task or incident of a status object is in."""
    every = [*_list(status, "ceilings"), *_list(status, "processes"), *_list(status, "incidents")]
    return max((str(one.get("stage") or "ok") for one in every), key=stage_rank, default="ok")


def reading_age_s(status: Json, now_unix_s: float) -> float | None:
    """Seconds since the daemon measured; None where it does not say."""
    at = figures.number(status.get("time_unix_s"))
    return None if at is None else max(0.0, now_unix_s - at)


def is_stale(status: Json, now_unix_s: float) -> bool:
    """The reading is much older than the daemon's own pace allows."""
    seconds = reading_age_s(status, now_unix_s)
    pace = figures.number((status.get("daemon") or {}).get("interval_s")) or 1.0
    return seconds is not None and seconds > max(10.0, 5 * pace)


def verdict(status: Json, now_unix_s: float) -> str:
    """One sentence: whether anything is about to run out, and how old that knowledge is."""
    if is_stale(status, now_unix_s):
        old = format_duration(reading_age_s(status, now_unix_s))
        return f"STALE: this reading is {old} old; the daemon is stopped or overloaded."
    worst = worst_stage(status)
    host = status.get("host") or {}
    if not status.get("ceilings") and figures.number(host.get("memory_total_bytes")) is None:
        return "UNKNOWN: the daemon has not measured yet."
    if stage_rank(worst) == 0:
        return "OK: nothing is about to run out."
    if worst == "watch":
        return "OK: something grows and is watched closely; it is no danger yet."
    near = _nearest(status, worst)
    what = plain(near.get("label") or near.get("name") or near.get("ceiling") or "a limit")
    when = figures.eta(near)
    text = f"{worst.upper()}: {what}"
    return f"{text}, {_when(when)}" if when != figures.NONE else f"{text} is close to its limit."


def _when(eta: str) -> str:
    return f"full in {eta}."


def _nearest(status: Json, worst: str) -> Json:
    """What to name in the verdict: the ceiling in the worst stage that ends soonest."""
    every = [*_list(status, "ceilings"), *_list(status, "incidents"), *_list(status, "processes")]
    candidates = [one for one in every if str(one.get("stage") or "ok") == worst]
    timed = [one for one in candidates if figures.number(one.get("eta_s")) is not None]
    return min(timed, key=lambda one: float(one["eta_s"])) if timed else candidates[0]


def _verdict(status: Json, now_unix_s: float, columns: int | None, look: Look) -> list[str]:
    worst = worst_stage(status)
    stale = is_stale(status, now_unix_s)
    if stale:
        worst = "warn"
    mark = stage_mark(worst)
    text = f"{mark} " if stage_rank(worst) > 1 else ""
    color = "green" if stage_rank(worst) < 2 else ""
    first = wrap(verdict(status, now_unix_s), columns or _LONG, first=text)
    painted = [look.paint(one, color) if color else look.stage(one, worst) for one in first]
    daemon = status.get("daemon") or {}
    processes = _list(status, "processes")
    agents = sum(1 for one in processes if one.get("agent"))
    parts = [f"watchdog {plain(daemon.get('version') or '?')}"]
    name = (status.get("host") or {}).get("name")
    if name:
        parts.append(f"on {plain(name)}")
    uptime = figures.number(daemon.get("uptime_s"))
    if uptime is not None:
        parts.append(f"up {format_duration(uptime)}")
    seconds = reading_age_s(status, now_unix_s)
    if seconds is not None and not stale:
        parts.append(f"read {figures.age(seconds)}")
    parts.append(f"{_count(len(processes), 'task')}, {agents} with an agent")
    line = look.dot.join(parts)
    if columns is not None and name and width(line) > columns:
        line = look.dot.join(one for one in parts if not one.startswith("on "))
    return painted + [look.paint(one, "dim") for one in wrap(line, columns or _LONG)]


def _ceilings(status: Json, columns: int | None, look: Look, everything: bool) -> list[str]:
    shown, left_out = _chosen(status, everything)
    if not shown:
        return []
    rows = [_ceiling_cells(one, look) for one in shown]
    grid = Grid(rows, _RIGHT, gives_way=1, gap=2)
    for column, least in (
        (None, 24),
        (_TREND, 20),
        (_BAR, 12),
        (_USED, 8),
    ):  # what goes for want of room
        if columns is None or grid.room(columns) >= min(grid.wanted(), least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        grid = Grid(rows, _RIGHT, gives_way=1, gap=1)
    lines = [
        look.stage(line, one.get("stage"))
        for line, one in zip(grid.lines(columns, look.ellipsis), shown, strict=True)
    ]
    if left_out:
        lines.append(
            look.paint(f"and {_count(left_out, 'limit')} far away; --all shows them", "dim")
        )
    return lines


def _ceiling_cells(ceiling: Json, look: Look) -> list[str]:
    unit = str(ceiling.get("unit") or "bytes")
    slope = figures.rate(ceiling.get("slope_per_s")) if unit == "bytes" else figures.UNKNOWN
    if ceiling.get("regime") == "unknown":
        slope = figures.UNKNOWN  # too few samples: not the same as steady
    eta = figures.eta(ceiling)
    return [
        stage_mark(ceiling.get("stage")),
        plain(ceiling.get("label") or ceiling.get("kind") or "?"),
        look.bar(figures.number(ceiling.get("ratio")), _BAR_COLUMNS),
        figures.of_limit(ceiling.get("used"), ceiling.get("limit"), unit),
        figures.ratio(ceiling.get("ratio")),
        {"0": "steady", figures.UNKNOWN: ""}.get(slope, slope),
        "" if eta == figures.NONE else f"full in {eta}",
    ]


def _chosen(status: Json, everything: bool) -> tuple[list[Json], int]:
    """The ceilings worth a line, and how many are left out."""
    host = status.get("host") or {}
    ceilings = _list(status, "ceilings")
    first = [one for one in ceilings if one.get("kind") == "ram"]
    if not first and figures.number(host.get("memory_total_bytes")) is not None:
        first = [_host_ceiling("ram", "RAM", host, "memory_total_bytes", "memory_available_bytes")]
    swap = _host_ceiling("swap", "swap", host, "swap_total_bytes", "swap_free_bytes")
    if swap["limit"]:
        first.append(swap)
    rest = [one for one in ceilings if one.get("kind") not in _ALWAYS]
    rest.sort(key=lambda one: (-stage_rank(one.get("stage")), -(_ratio(one) or 0)))
    if everything:
        return first + rest, 0
    chosen: list[Json] = []
    far = 0
    for one in rest:
        near = stage_rank(one.get("stage")) > 0
        worth = one.get("kind") in _GROUPS or (_ratio(one) or 0) >= _ROOMY
        if near or (worth and len(chosen) < _MOST_LIMITS and one.get("kind") != "ram_swap"):
            chosen.append(one)
        else:
            far += 1
    return first + chosen, far


def _host_ceiling(kind: str, label: str, host: Json, total: str, free: str) -> Json:
    limit, left = figures.number(host.get(total)), figures.number(host.get(free))
    used = None if limit is None or left is None else limit - left
    known = used is not None and limit
    return {
        "kind": kind,
        "label": label,
        "used": used,
        "limit": limit,
        "unit": "bytes",
        "ratio": used / limit if known and used is not None and limit else None,
        "slope_per_s": _swap_slope(host) if kind == "swap" else None,
    }


def _swap_slope(host: Json) -> float | None:
    into = figures.number(host.get("swap_out_bytes_per_s"))
    back = figures.number(host.get("swap_in_bytes_per_s"))
    return None if into is None or back is None else into - back


def incident_lines(incident: Json, now_unix_s: float, columns: int | None, look: Look) -> list[str]:
    """An open incident: stage, why, who grows, what to do."""
    limit = columns or _LONG
    stage = incident.get("stage")
    since = figures.number(incident.get("opened_unix_s"))
    calm = stage_rank(stage) < stage_rank("warn")  # open until it has been calm for a while
    head = "~ CALMER" if calm else f"{stage_mark(stage)} {plain(stage).upper()}"
    head += f"  {plain(incident.get('label') or incident.get('ceiling') or '?')}"
    if since is not None:
        head += f", opened {figures.age(now_unix_s - since)}"
    if calm and incident.get("peak"):
        head += f", reached {plain(incident['peak'])}"
    lines = [look.stage(one, stage) for one in wrap(head, limit, rest="   ")]
    if incident.get("why"):
        lines += wrap(plain(incident["why"]), limit, first="   ")
    for culprit in _list(incident, "culprits")[:3]:
        text = f"{plain(culprit.get('name') or '?')} (pid {figures.whole(culprit.get('pid'))})"
        text += f" {figures.rate(culprit.get('slope_bytes_per_s'))}"
        share = figures.ratio(culprit.get("share"))
        if share != figures.UNKNOWN:
            text += f", {share} of the growth"
        lines += wrap(text, limit, first="   ", rest="     ")
    for advice in [] if calm else incident.get("advice") or []:
        lines += wrap(plain(advice), limit, first="   > ")
    return lines


def _tasks(
    status: Json,
    now_unix_s: float,
    columns: int | None,
    look: Look,
    *,
    everything: bool,
    sort: str,
    most: int | None,
) -> list[str]:
    processes = ordered(_list(status, "processes"), sort)
    shown, hidden = (processes, []) if everything else folded(processes)
    lines = []
    if shown:
        lines += task_lines(shown[:most], now_unix_s, columns, look)
        if most is not None and len(shown) > most:
            lines.append(look.paint(f"and {_count(len(shown) - most, 'more task')}", "dim"))
    elif not hidden:
        lines.append("No Python process is running here that you may see.")
    if hidden:
        known = [figures.number(one.get("ram_bytes")) or 0 for one in hidden]
        text = f"and {len(hidden)} small idle Python process{'es' if len(hidden) > 1 else ''}, "
        text += f"{figures.size(sum(known))} together; --all shows them"
        lines += [look.paint(one, "dim") for one in wrap(text, columns or _LONG)]
    return lines


def _errors(status: Json, columns: int | None, look: Look) -> list[str]:
    lines = []
    for error in _list(status, "errors"):
        text = plain(error.get("message") or "?")
        if error.get("remedy"):
            text += f" {plain(error['remedy'])}"
        found = wrap(text, columns or _LONG, first="! ")
        lines += [look.paint(one, "yellow") for one in found]
    return ["", *lines] if lines else []


def _list(holder: Json, key: str) -> list[Json]:
    return [one for one in holder.get(key) or [] if isinstance(one, dict)]


def _ratio(ceiling: Json) -> float | None:
    return figures.number(ceiling.get("ratio"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
