"""
The graphics cards of a status object as lines: memory, load, heat, power, what is wrong. Pure.
"""

from __future__ import annotations

from watchdog_app.base.json_values import number_or_none, objects
from watchdog_app.cli import figures, verdict
from watchdog_app.cli.color import Look
from watchdog_app.cli.grid import Grid
from watchdog_app.cli.text import counted, plain, wrap
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_BAR_COLUMNS = 12
_NAME, _BAR, _RATIO, _POWER = 2, 3, 5, 8  # cells of a card's line
_RIGHT = {5, 6, 7, 8}
# Worth a word on the line; the others are usual while idle or at full load.
_BRAKES = {
    "hardware_slowdown": "slowed down",
    "software_thermal": "clocked down for heat",
    "hardware_thermal": "clocked down for heat",
    "power_brake": "power brake",
}
_MOST_PIDS = 8
_LONG = 10_000  # columns where nobody said how wide a line may be
_OTHERS_SHARE = 0.05  # of a card's memory, held by programs that are not watched


def gpu_lines(status: Json, columns: int | None, look: Look, everything: bool) -> list[str]:
    """
    A line a card: number, name, memory, load, heat, power, and what is wrong or foreseen.

    For want of room the last goes to a line of its own; then power, ratio, bar and name go.
    """
    return [line for group in grouped_lines(status, columns, look, everything) for line in group]


def grouped_lines(
    status: Json, columns: int | None, look: Look, everything: bool
) -> list[list[str]]:
    """The same by card: its line first, then what is said of it."""
    gpus = objects(status, "gpus")
    if not gpus:
        return []
    levels = [card_level(gpu, status) for gpu in gpus]
    news = [_news(gpu, status) for gpu in gpus]
    labels = _labels(gpus)
    rows = [_cells(*each, look) for each in zip(gpus, levels, labels, strict=True)]
    wide = [[*row, "; ".join(words)] for row, words in zip(rows, news, strict=True)]
    grid = Grid(wide, _RIGHT, gives_way=_NAME, gap=2)
    inline = columns is None or grid.room(columns) >= min(grid.wanted(), 16)
    if not inline:
        grid = _narrowed(rows, columns or 0)
    groups = []
    for index, line in enumerate(grid.lines(columns, look.ellipsis)):
        found = [look.level(line, levels[index])]
        groups.append(found)
        remarks = _remarks(gpus[index], everything)
        if not inline and news[index]:
            found += [
                look.level(one, levels[index])
                for one in wrap("; ".join(news[index]), columns or _LONG, first="      ")
            ]
        for remark in remarks:
            found += [
                look.paint(one, "dim") for one in wrap(remark, columns or _LONG, first="      ")
            ]
    return groups


def _labels(gpus: list[Json]) -> list[str]:
    """`GPU 1`; of the parts of a card, which have one number and name, `GPU 1 part 0`."""
    parts: dict[str, int] = {}
    found = []
    for gpu in gpus:
        label = f"GPU {figures.whole(gpu.get('index'))}"
        whole = gpu.get("parent_uuid")
        if whole:
            number = parts.get(str(whole), 0)
            parts[str(whole)] = number + 1
            label += f" part {number}"
        found.append(label)
    return found


def _narrowed(rows: list[list[str]], columns: int) -> Grid:
    grid = Grid(rows, _RIGHT, gives_way=_NAME, gap=2)
    # A name may be cut short: it says less than what the card draws.
    for column, least in ((None, 10), (_BAR, 8), (_POWER, 8), (_RATIO, 6), (_NAME, 0)):
        if grid.room(columns) >= min(grid.wanted(), least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        grid = Grid(rows, _RIGHT, gives_way=_NAME, gap=1)
    return grid


def _cells(gpu: Json, level: Level, label: str, look: Look) -> list[str]:
    used, total = number_or_none(gpu.get("memory_used_bytes")), _total(gpu)
    known = used is not None and bool(total)
    ratio = used / total if used is not None and total else None
    memory = figures.of_limit(used, total, "bytes") if known else "memory N/A"
    if gpu.get("unified_memory"):
        memory, known = "shares RAM", False
    if gpu.get("state") == "asleep":
        memory, known = "asleep", False
    elif gpu.get("state") != "ok" and (title := verdict.card_title(gpu)):
        memory, known = title.removeprefix("is ").upper(), False
    busy = number_or_none(gpu.get("utilization_percent"))
    celsius = number_or_none(gpu.get("temperature_c"))
    watts = number_or_none(gpu.get("power_w"))
    limit = number_or_none(gpu.get("power_limit_w"))
    power = "" if watts is None else f"{watts:.0f} W" if limit is None else (
        f"{watts:.0f}/{limit:.0f} W"
    )  # fmt: skip
    return [
        level.mark,
        label,
        plain(gpu.get("name") or "?"),
        look.bar(ratio, _BAR_COLUMNS) if known else "",
        memory,
        figures.ratio(ratio) if known else "",
        "" if busy is None else f"{busy:.0f} % busy",
        "" if celsius is None else f"{celsius:.0f} °C",
        power,
    ]


def _news(gpu: Json, status: Json) -> list[str]:
    """What is wrong with a card, or foreseen, the worst first."""
    state = str(gpu.get("state") or "ok")
    if state != "ok":
        return [] if state == "asleep" or verdict.card_title(gpu) else [plain(state)]
    found = [
        figures.end(ceiling)
        for ceiling in _ceilings(gpu, status)
        if number_or_none(ceiling.get("eta_s")) is not None
    ]
    reasons = gpu.get("throttle_reasons")
    for reason in reasons if isinstance(reasons, list) else []:
        word = _BRAKES.get(str(reason))
        if word is not None and word not in found:
            found.append(word)
    if title := verdict.card_title(gpu):
        found.append(title)
    return found


def card_level(gpu: Json, status: Json) -> Level:
    """The worst level of the card, its resources and its incidents."""
    incidents = [one for one in objects(status, "incidents") if one.get("subject") == gpu.get("id")]
    return max(Level.of(one) for one in (gpu, *_ceilings(gpu, status), *incidents))


def _ceilings(gpu: Json, status: Json) -> list[Json]:
    gpu_id = gpu.get("id")
    if not isinstance(gpu_id, str) or not gpu_id:
        return []
    return [
        one
        for one in objects(status, "ceilings")
        if one.get("kind") in ("gpu_memory", "temperature")
        and str(one.get("subject")) in (gpu_id, f"{gpu_id}/slowdown", f"{gpu_id}/shutdown")
    ]


def _remarks(gpu: Json, everything: bool) -> list[str]:
    remarks = []
    others = [one for one in objects(gpu, "processes") if one.get("task") is None]
    held = sum(number_or_none(one.get("memory_bytes")) or 0 for one in others)
    total = number_or_none(gpu.get("memory_total_bytes"))
    if others and (everything or (total and held >= _OTHERS_SHARE * total)):
        amount = f", {figures.size(held)}" if held else ""
        pids = ", ".join(figures.whole(one.get("pid")) for one in others[:_MOST_PIDS])
        which = f" (pid {pids}{', ...' if len(others) > _MOST_PIDS else ''})" if everything else ""
        remarks.append(
            f"{counted(len(others), 'program')} that watchdog does not watch{which}{amount}"
        )
    if everything:
        notes = gpu.get("notes")
        remarks += [plain(note) for note in (notes if isinstance(notes, list) else [])]
        for one in objects(gpu, "xids")[-3:]:
            meaning = f", {plain(one['meaning'])}" if one.get("meaning") else ""
            remarks.append(f"Xid {figures.whole(one.get('code'))}{meaning}")
    return remarks


def _total(gpu: Json) -> float | None:
    """What programs can have: without what the driver keeps for itself."""
    total = number_or_none(gpu.get("memory_total_bytes"))
    kept = number_or_none(gpu.get("memory_reserved_bytes")) or 0
    return None if total is None else total - kept
