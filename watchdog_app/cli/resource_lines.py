"""The resources of a status as lines with bars. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import Style, Table, counted, plain
from watchdog_app.core.explain.selection import listed_resources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Resource, Status

_BAR_COLUMNS = 12
_LABEL, _BAR, _USED, _TREND = 1, 2, 3, 5  # cells of a line
_RIGHT = {3, 4}


def resource_lines(
    status: Status, columns: int | None, style: Style, everything: bool
) -> list[str]:
    """
    A line a resource: label, bar, use, trend, time to exhaustion.

    For want of room the trend goes first, then the bar.

    Args:
        status: the last one.
        columns: of the terminal; None: nothing is shortened.
        style: colours and symbols.
        everything: resources that are far from their limits as well.
    """
    shown, left_out = listed_resources(status, everything)
    if not shown:
        return []
    rows = [_cells(one, style) for one in shown]
    table = Table(rows, _RIGHT, gives_way=_LABEL, gap=2)
    for column, least in ((None, 24), (_TREND, 20), (_BAR, 12), (_USED, 8)):
        if columns is None or table.room(columns) >= min(table.wanted(), least):
            break
        for row in rows if column is not None else []:
            row[column or 0] = ""
        table = Table(rows, _RIGHT, gives_way=_LABEL, gap=1)
    lines = [
        style.paint(line, one.level.color)
        for line, one in zip(table.lines(columns, style.ellipsis), shown, strict=True)
    ]
    if left_out:
        text = f"and {counted(left_out, 'limit')} far away; --all shows them"
        lines.append(style.paint(text, "dim"))
    return lines


def _cells(one: Resource, style: Style) -> list[str]:
    unit = one.unit or "bytes"
    slope = quantities.movement(one.slope_per_s, unit)
    if one.growth == "unknown":
        slope = quantities.UNKNOWN  # too few samples: not the same as steady
    filled = one.ratio
    if unit == "ratio" and one.used is not None:  # of a battery the bar shows what is left
        filled = max(0.0, 1.0 - one.used)
    return [
        one.level.mark,
        plain(one.label or one.kind or "?"),
        style.bar(filled, _BAR_COLUMNS),
        quantities.of_limit(one.used, one.limit, unit),
        "" if unit == "ratio" else quantities.ratio(one.ratio),
        {"0": "steady", quantities.UNKNOWN: ""}.get(slope, slope),
        one.end(),
    ]
