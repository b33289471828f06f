"""Lines for the GPUs of a status: memory, load, temperature, power, problems. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import Style, Table, counted, plain, wrap
from watchdog_app.core.explain.selection import gpu_resources
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from watchdog_app.core.model.status import Gpu, Status

_BAR_COLUMNS = 12
# Columns of a GPU's line; the last four are on wide terminals only.
_NAME, _BAR, _RATIO, _BUSY, _HEAT, _POWER = 2, 3, 5, 6, 7, 8
_BANDWIDTH, _CLOCK, _FAN, _STATE = 9, 10, 11, 12
_RIGHT = {5, 6, 7, 8, 9, 10, 11}
# Column to leave out next, and the columns that the name keeps without that.
_FITS = (
    (None, 16), (_STATE, 16), (_FAN, 16), (_CLOCK, 16), (_BANDWIDTH, 10), (_BAR, 8), (_POWER, 8),
    (_RATIO, 6), (_NAME, 4), (_HEAT, 0), (_BUSY, 0),
)  # fmt: skip
# One GPU in detail: fields of the status in words. Rows of one label share a line; a row without a
# known figure is left out.
_DETAILS = (
    ("clocks", "graphics {graphics_clock_mhz} of {graphics_clock_max_mhz}"),
    ("clocks", "memory {memory_clock_mhz} of {memory_clock_max_mhz}"),
    ("clocks", "{performance_state}"),
    ("memory", "bandwidth {memory_utilization_percent} used"),
    ("memory", "{memory_reserved_bytes} kept by the driver"),
    ("cooling", "fan {fan_percent}"),
    ("cooling", "slows down at {slowdown_c}, switches off at {shutdown_c}"),
    ("PCIe", "generation {pcie_generation} of {pcie_generation_max}"),
    ("PCIe", "{pcie_width} of {pcie_width_max} lanes"),
    ("PCIe", "{pcie_rx_bytes_per_s} in, {pcie_tx_bytes_per_s} out"),
    ("ECC", "{ecc_corrected} corrected and {ecc_uncorrected} uncorrected errors"),
    ("ECC", "{ecc_corrected_aggregate} and {ecc_uncorrected_aggregate} in its life"),
    ("id", "{id}"),
    ("id", "{uuid}"),
)
_SIGNS = {"percent": " %", "c": " °C", "mhz": " MHz"}
# Shown on the line. The other reasons are normal while idle or at full load.
_THROTTLING = {
    "hardware_slowdown": "slowed down",
    "software_thermal": "clocked down for heat",
    "hardware_thermal": "clocked down for heat",
    "power_brake": "power brake",
}
_MOST_NAMES = 3
_OTHERS_SHARE = 0.05  # share of the memory that unwatched programs hold


def gpu_lines(
    status: Status, gpus: Sequence[Gpu], columns: int | None, style: Style, *, everything: bool
) -> list[list[str]]:
    """
    Return the lines by GPU: its line first, then its problems and remarks.

    If the terminal is too narrow, bar, power, ratio, name, temperature and load are dropped.

    Args:
        status: the last status.
        gpus: the GPUs of the status to show.
        columns: columns of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: whether to list unwatched programs and notes as well.
    """
    if not gpus:
        return []
    parents = {one.parent_id for one in status.gpus}
    rows = [_cells(gpu, style, has_parts=gpu.id in parents) for gpu in gpus]
    lines = _fit_table(rows, columns).lines(columns, style.ellipsis)
    groups = []
    for gpu, line in zip(gpus, lines, strict=True):
        group = [gpu.level.paint(line, style)]
        problems = "; ".join(_problems(gpu, status))
        remarks = [(problems, "bold" if gpu.level >= Level.WARNING else "")]
        notes = map(plain, gpu.notes) if everything else ()
        remarks += [(each, "dim") for each in (_other_programs(gpu, everything), *notes)]
        for text, name in remarks:
            parts = wrap(text, columns, first="      ") if text else []
            group += [style.paint(part, name) for part in parts]
        groups.append(group)
    return groups


def gpu_details(status: Status, columns: int | None, style: Style) -> list[str]:
    """
    Return every figure of each GPU, with an empty line between two of them.

    Args:
        status: the last status.
        columns: columns of the terminal; None: nothing is shortened.
        style: colours and symbols.
    """
    lines: list[str] = []
    groups = gpu_lines(status, status.gpus, columns, style, everything=True)
    for gpu, group in zip(status.gpus, groups, strict=True):
        lines += [*group, *_detail_lines(gpu, columns, style), ""]
    if not lines:
        return ["No GPU is watched here. Why: watchdog doctor --only driver"]
    driver = status.hardware.driver_version if status.hardware else None
    return [*lines, f"Driver {plain(driver)}"] if driver else lines[:-1]


def _fit_table(rows: list[list[str]], columns: int | None) -> Table:
    table = Table(rows, _RIGHT, gives_way=_NAME, gap=2)
    # A name may be shortened, because the power is more useful.
    for column, least in _FITS:
        if table.fits(columns, least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        table = Table(rows, _RIGHT, gives_way=_NAME, gap=1)
    return table


def _cells(gpu: Gpu, style: Style, *, has_parts: bool) -> list[str]:
    used, total = gpu.memory_used_bytes, gpu.usable_bytes
    ratio = used / total if used is not None and total else None
    memory, known = quantities.of_limit(used, total, "bytes"), ratio is not None
    if gpu.unified_memory:
        memory, known = f"RAM {memory}" if known else "shares RAM", False
    elif not known and has_parts:
        memory = "by instance"
    elif not known:
        memory = "memory N/A" if used is None else f"{quantities.format_bytes(used)} used"
    if gpu.state == "asleep":
        memory, known = "asleep", False
    elif gpu.state not in (None, "ok"):
        memory, known = plain(gpu.title or gpu.state).removeprefix("is ").upper(), False
    limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f}{limit} W"
    return [
        gpu.level.mark,
        gpu.label,
        plain(gpu.name or "?"),
        style.bar(ratio, _BAR_COLUMNS) if known else "",
        memory,
        quantities.ratio(ratio) if known else "",
        _if_known(gpu.utilization_percent, "% busy"),
        _if_known(gpu.temperature_c, "°C"),
        power,
        _if_known(gpu.memory_utilization_percent, "% bandwidth"),
        _if_known(gpu.graphics_clock_mhz, "MHz"),
        _if_known(gpu.fan_percent, "% fan"),
        plain(gpu.performance_state or ""),
    ]


def _if_known(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _detail_lines(gpu: Gpu, columns: int | None, style: Style) -> list[str]:
    """Return every other figure of a GPU, and its processes."""
    texts = {name: _detail(name, value) for name, value in gpu.to_json().items()}
    parts: dict[str, list[str]] = {}
    for label, template in _DETAILS:
        text = template.format_map(texts)
        known = text.count(quantities.UNKNOWN) < template.count("{")
        parts.setdefault(label, []).extend([text] if known else [])
    # A part of a GPU has no other figures, a GPU that does not answer has none.
    if gpu.parent_id is not None or gpu.state not in (None, "ok"):
        parts = {"id": parts["id"]}
    lines = []
    for label, each in parts.items():
        lines += wrap(", ".join(each) or quantities.UNKNOWN, columns, first=f"      {label:8} ")
    if not gpu.processes:
        return lines
    rows = [["     ", "PID", "PROGRAM", "GPU-MEM", "GPU%"]]
    for one in gpu.processes:
        name = one.name or ("not in this container" if one.foreign else quantities.UNKNOWN)
        memory = quantities.format_bytes(one.memory_bytes)
        used = quantities.whole(one.utilization_percent)
        rows.append(["     ", quantities.whole(one.pid), plain(name), memory, used])
    table = Table(rows, {1, 3, 4}, gives_way=rows[0].index("PROGRAM"))
    head, *rest = table.lines(columns, style.ellipsis)
    return [*lines, style.paint(head, "bold"), *rest]


def _detail(name: str, value: Any) -> str:
    """Format a figure by the unit that ends its name; `N/A`, never zero, if it is unknown."""
    if value is None or isinstance(value, str):
        return plain(value or quantities.UNKNOWN)
    if "_bytes" in name:
        return quantities.format_bytes(value) + ("/s" if name.endswith("_s") else "")
    return quantities.whole(value) + _SIGNS.get(name.rpartition("_")[2], "")


def _problems(gpu: Gpu, status: Status) -> list[str]:
    """Return current and predicted problems of a GPU, worst first."""
    if gpu.state not in (None, "ok"):
        return []  # the line names the state
    found = [one.end() for one in gpu_resources(gpu, status) if one.eta_s is not None]
    found += [_THROTTLING[reason] for reason in gpu.throttling or () if reason in _THROTTLING]
    found += [plain(gpu.title)] if gpu.title else []
    return list(dict.fromkeys(found))


def _other_programs(gpu: Gpu, everything: bool) -> str:
    """Name the programs that are not watched; empty: none, or they hold little memory."""
    others = [one for one in gpu.processes if one.task is None]
    held = sum(one.memory_bytes or 0 for one in others)
    total = gpu.memory_total_bytes
    if not others or not (everything or (total and held >= _OTHERS_SHARE * total)):
        return ""
    # A pid says something only where all are shown.
    labels = (
        plain(one.name or f"pid {quantities.whole(one.pid)}")
        for one in others
        if one.name or everything
    )
    names = list(dict.fromkeys(labels))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = ["..."]
    which = f" ({', '.join(names)})" if names else ""
    amount = f", {quantities.format_bytes(held)}" if held else ""
    return f"{counted(len(others), 'program')} that watchdog does not watch{which}{amount}"
