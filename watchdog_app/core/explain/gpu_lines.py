"""Lines for the GPUs of a status: memory, load, temperature, power, problems. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import Style, Table, counted, plain, wrap
from watchdog_app.core.explain.selection import gpu_resources
from watchdog_app.core.model.levels import Level

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
_OTHERS_SHARE = 0.05  # share of the memory that unwatched programs hold


def gpu_lines(
    status: Status, gpus: Sequence[Gpu], columns: int | None, style: Style, *, everything: bool
) -> list[list[str]]:
    """
    Return the lines by GPU: its line first, then its problems and remarks.

    If the terminal is too narrow, bar, power, ratio and name are dropped.

    Args:
        status: the last status.
        gpus: the GPUs of the status to show.
        columns: columns of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: whether to list unwatched programs and notes as well.
    """
    if not gpus:
        return []
    rows = [_cells(gpu, style) for gpu in gpus]
    lines = _fit_table(rows, columns).lines(columns, style.ellipsis)
    groups = []
    for gpu, line in zip(gpus, lines, strict=True):
        group = [gpu.level.paint(line, style)]
        problems = "; ".join(_problems(gpu, status))
        remarks = [(problems, "bold" if gpu.level >= Level.WARNING else "")]
        remarks += [(each, "dim") for each in _remarks(gpu, everything)]
        for text, name in remarks:
            parts = wrap(text, columns, first="      ") if text else []
            group += [style.paint(part, name) for part in parts]
        groups.append(group)
    return groups


def _fit_table(rows: list[list[str]], columns: int | None) -> Table:
    table = Table(rows, _RIGHT, gives_way=_NAME, gap=2)
    # A name may be shortened, because the power is more useful.
    for column, least in ((None, 10), (_BAR, 8), (_POWER, 8), (_RATIO, 6), (_NAME, 0)):
        if table.fits(columns, least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        table = Table(rows, _RIGHT, gives_way=_NAME, gap=1)
    return table


def _cells(gpu: Gpu, style: Style) -> list[str]:
    used, total = gpu.memory_used_bytes, gpu.usable_bytes
    ratio = used / total if used is not None and total else None
    memory = "memory N/A" if ratio is None else quantities.of_limit(used, total, "bytes")
    known = ratio is not None
    if gpu.unified_memory:
        memory, known = "shares RAM", False
    if gpu.state == "asleep":
        memory, known = "asleep", False
    elif gpu.state not in (None, "ok"):
        memory, known = plain(gpu.title or gpu.state).removeprefix("is ").upper(), False
    limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f}{limit} W"
    busy = gpu.utilization_percent
    return [
        gpu.level.mark,
        gpu.label,
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
    if gpu.state not in (None, "ok"):
        return []  # the line names the state
    found = [one.end() for one in gpu_resources(gpu, status) if one.eta_s is not None]
    found += [_THROTTLING[reason] for reason in gpu.throttling or () if reason in _THROTTLING]
    found += [plain(gpu.title)] if gpu.title else []
    return list(dict.fromkeys(found))


def _remarks(gpu: Gpu, everything: bool) -> list[str]:
    remarks = []
    others = [one for one in gpu.processes if one.task is None]
    held = sum(one.memory_bytes or 0 for one in others)
    total = gpu.memory_total_bytes
    if others and (everything or (total and held >= _OTHERS_SHARE * total)):
        amount = f", {quantities.format_bytes(held)}" if held else ""
        pids = ", ".join(quantities.whole(one.pid) for one in others)
        which = f" (pid {pids})" if everything else ""
        remarks.append(
            f"{counted(len(others), 'program')} that watchdog does not watch{which}{amount}"
        )
    if everything:
        remarks += map(plain, gpu.notes)
    return remarks
