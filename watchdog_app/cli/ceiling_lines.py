"""
The ceilings of a status object as lines with bars: which are worth one, and what they say. Pure.
"""

from __future__ import annotations

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.cli import figures
from watchdog_app.cli.color import Look
from watchdog_app.cli.grid import Grid
from watchdog_app.cli.text import counted, plain
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_BAR_COLUMNS = 12
_BAR, _USED, _TREND = 2, 3, 5  # cells of a ceiling's line
_RIGHT = {3, 4}
_MOST_LIMITS = 4  # group limits and others that are far away, shown without --all
_ALWAYS = ("ram", "swap")
_SHOWN = ("cgroup", "battery", "gpu_allocator")
_QUIET = ("temperature", "power")  # far from their limits they are nobody's concern
_ROOMY = 0.5  # other ceilings are shown from here on


def ceiling_lines(status: Json, columns: int | None, look: Look, everything: bool) -> list[str]:
    """
    A line a ceiling: label, bar, use, trend, time to exhaustion. What goes first for want of
    room is the trend, then the bar.
    """
    shown, left_out = chosen(status, everything)
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
        look.level(line, Level.of(one))
        for line, one in zip(grid.lines(columns, look.ellipsis), shown, strict=True)
    ]
    if left_out:
        lines.append(
            look.paint(f"and {counted(left_out, 'limit')} far away; --all shows them", "dim")
        )
    return lines


def _ceiling_cells(ceiling: Json, look: Look) -> list[str]:
    unit = str(ceiling.get("unit") or "bytes")
    slope = figures.movement(ceiling.get("slope_per_s"), unit)
    if ceiling.get("regime") == "unknown":
        slope = figures.UNKNOWN  # too few samples: not the same as steady
    eta = figures.eta(ceiling)
    return [
        Level.of(ceiling).mark,
        plain(ceiling.get("label") or ceiling.get("kind") or "?"),
        look.bar(_filled(ceiling), _BAR_COLUMNS),
        figures.of_limit(ceiling.get("used"), ceiling.get("limit"), unit),
        "" if unit == "ratio" else figures.ratio(ceiling.get("ratio")),
        {"0": "steady", figures.UNKNOWN: ""}.get(slope, slope),
        "" if eta == figures.NONE else figures.end(ceiling),
    ]


def _filled(ceiling: Json) -> float | None:
    """What the bar shows: of a battery what is left, of all others what is used."""
    used = number_or_none(ceiling.get("used"))
    if ceiling.get("kind") == "battery" and used is not None:
        return max(0.0, 1.0 - used)
    return number_or_none(ceiling.get("ratio"))


def chosen(status: Json, everything: bool) -> tuple[list[Json], int]:
    """The ceilings worth a line, and how many are left out."""
    host = status.get("host") or {}
    ceilings = objects(status, "ceilings")
    first = [one for one in ceilings if one.get("kind") == "ram"]
    if not first and number_or_none(host.get("memory_total_bytes")) is not None:
        first = [_host_ceiling("ram", "RAM", host, "memory_total_bytes", "memory_available_bytes")]
    swap = _host_ceiling("swap", "swap", host, "swap_total_bytes", "swap_free_bytes")
    if swap["limit"]:
        first.append(swap)
    rest = [one for one in ceilings if one.get("kind") not in _ALWAYS]
    rest.sort(key=lambda one: (-Level.of(one), -(_ratio(one) or 0)))
    if everything:
        return first + rest, 0
    chosen: list[Json] = []
    far = 0
    for one in rest:
        near = Level.of(one) > Level.OK
        if one.get("kind") == "gpu_memory" and status.get("gpus"):
            continue  # on the line of its card
        if one.get("kind") in _QUIET and not near:
            continue
        worth = one.get("kind") in _SHOWN or (_ratio(one) or 0) >= _ROOMY
        if near or (worth and len(chosen) < _MOST_LIMITS and one.get("kind") != "ram_swap"):
            chosen.append(one)
        else:
            far += 1
    return first + chosen, far


def _host_ceiling(kind: str, label: str, host: Json, total: str, free: str) -> Json:
    limit, left = number_or_none(host.get(total)), number_or_none(host.get(free))
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
    into = number_or_none(host.get("swap_out_bytes_per_s"))
    back = number_or_none(host.get("swap_in_bytes_per_s"))
    return None if into is None or back is None else into - back


def _ratio(ceiling: Json) -> float | None:
    return number_or_none(ceiling.get("ratio"))
