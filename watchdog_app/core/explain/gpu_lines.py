"""Lines for the GPUs of a status: memory, load, temperature, power, problems. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import Style, Table, counted, plain, wrap
from watchdog_app.core.explain.selection import gpu_resources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from watchdog_app.core.model.status import Gpu, Status

_BAR_COLUMNS = 12
_NAME, _BAR, _RATIO, _POWER = 2, 3, 5, 8  # columns of a GPU's line
_RIGHT = {5, 6, 7, 8}
# Shown on the line. The other reasons are normal while idle or at full load.
_THROTTLING = {
    "hardware_slowdown": "slowed down",
    "software_thermal": "clocked down for heat",
    "hardware_thermal": "clocked down for heat",
    "power_brake": "power brake",
}
_MOST_PIDS = 8
_LONG = 10_000  # columns if the line width is not limited
_OTHERS_SHARE = 0.05  # share of the memory that unwatched programs hold


def gpu_lines(status: Status, columns: int | None, style: Style, everything: bool) -> list[str]:
    """
    Return a line for each GPU: index, name, memory, load, temperature, power, problems.

    If the terminal is too narrow, the problems move to a line of their own. Then power, ratio, bar
    and name are dropped.

    Args:
        status: the last status.
        columns: columns of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: whether to list unwatched programs, notes and driver events as well.
    """
    groups = grouped_lines(status, status.gpus, columns, style, everything=everything)
    return [line for group in groups for line in group]


def grouped_lines(
    status: Status, gpus: Sequence[Gpu], columns: int | None, style: Style, *, everything: bool
) -> list[list[str]]:
    """
    Return the lines by GPU: its line first, then remarks.

    Args:
        status: the last status.
        gpus: the GPUs of the status to show.
        columns: columns of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: see `gpu_lines`.
    """
    if not gpus:
        return []
    news = [_problems(gpu, status) for gpu in gpus]
    labels = _labels(gpus)
    rows = [_cells(gpu, label, style) for gpu, label in zip(gpus, labels, strict=True)]
    wide = [[*row, "; ".join(words)] for row, words in zip(rows, news, strict=True)]
    table = Table(wide, _RIGHT, gives_way=_NAME, gap=2)
    inline = table.fits(columns, 16)
    if not inline:
        table = _fit_table(rows, columns or 0)
    groups = []
    for index, line in enumerate(table.lines(columns, style.ellipsis)):
        color = gpus[index].level.color
        remarks = [(each, "dim") for each in _remarks(gpus[index], everything)]
        if not inline and news[index]:
            remarks.insert(0, ("; ".join(news[index]), color))
        groups.append(
            [style.paint(line, color)]
            + [
                style.paint(part, name)
                for text, name in remarks
                for part in wrap(text, columns or _LONG, first="      ")
            ]
        )
    return groups


def _labels(gpus: Sequence[Gpu]) -> list[str]:
    """Return `GPU 1`, or `GPU 1 part 0` for partitions, which share index and name."""
    parts: dict[str, int] = {}
    found = []
    for gpu in gpus:
        label = f"GPU {quantities.whole(gpu.index)}"
        if gpu.parent_id:
            number = parts.get(gpu.parent_id, 0)
            parts[gpu.parent_id] = number + 1
            label += f" part {number}"
        found.append(label)
    return found


def _fit_table(rows: list[list[str]], columns: int) -> Table:
    table = Table(rows, _RIGHT, gives_way=_NAME, gap=2)
    # A name may be shortened, because the power is more useful.
    for column, least in ((None, 10), (_BAR, 8), (_POWER, 8), (_RATIO, 6), (_NAME, 0)):
        if table.fits(columns, least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        table = Table(rows, _RIGHT, gives_way=_NAME, gap=1)
    return table


def _cells(gpu: Gpu, label: str, style: Style) -> list[str]:
    used, total = gpu.memory_used_bytes, gpu.usable_bytes
    ratio = used / total if used is not None and total else None
    memory = "memory N/A" if ratio is None else quantities.of_limit(used, total, "bytes")
    known = ratio is not None
    if gpu.unified_memory:
        memory, known = "shares RAM", False
    if gpu.state == "asleep":
        memory, known = "asleep", False
    elif gpu.state != "ok" and gpu.title:
        memory, known = plain(gpu.title).removeprefix("is ").upper(), False
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    if gpu.power_w is not None and gpu.power_limit_w is not None:
        power = f"{gpu.power_w:.0f}/{gpu.power_limit_w:.0f} W"
    busy = gpu.utilization_percent
    return [
        gpu.level.mark,
        label,
        plain(gpu.name or "?"),
        style.bar(ratio, _BAR_COLUMNS) if known else "",
        memory,
        quantities.ratio(ratio) if known else "",
        "" if busy is None else f"{busy:.0f} % busy",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
        power,
    ]


def _problems(gpu: Gpu, status: Status) -> list[str]:
    """Return current and predicted problems of a GPU, worst first."""
    title = plain(gpu.title)
    if (gpu.state or "ok") != "ok":
        return [] if gpu.state == "asleep" or title else [plain(gpu.state)]
    found = [one.end() for one in gpu_resources(gpu, status) if one.eta_s is not None]
    for reason in gpu.throttling or ():
        word = _THROTTLING.get(reason)
        if word is not None and word not in found:
            found.append(word)
    return [*found, title] if title else found


def _remarks(gpu: Gpu, everything: bool) -> list[str]:
    remarks = []
    others = [one for one in gpu.processes if one.task is None]
    held = sum(one.memory_bytes or 0 for one in others)
    total = gpu.memory_total_bytes
    if others and (everything or (total and held >= _OTHERS_SHARE * total)):
        amount = f", {quantities.format_bytes(held)}" if held else ""
        pids = ", ".join(quantities.whole(one.pid) for one in others[:_MOST_PIDS])
        which = f" (pid {pids}{', ...' if len(others) > _MOST_PIDS else ''})" if everything else ""
        remarks.append(
            f"{counted(len(others), 'program')} that watchdog does not watch{which}{amount}"
        )
    if everything:
        remarks += map(plain, gpu.notes)
        for one in gpu.events[-3:]:
            meaning = f", {plain(one.text)}" if one.text else ""
            remarks.append(f"Xid {quantities.whole(one.code)}{meaning}")
    return remarks
