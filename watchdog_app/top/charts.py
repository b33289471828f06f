"""
Charts made of characters: sparkline, bar with forecast, plot with forecast interval. Pure.

Uses the sixteen colours that every terminal has. Nothing depends on colour alone: a word or a mark
also shows the stage, and the forecast has its own character.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from rich.text import Text

from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Resource
from watchdog_app.top.glyphs import Canvas
from watchdog_app.top.past import SPAN_S, Point

_SPARK_GLYPHS = "▁▂▃▄▅▆▇█"
_BAR_FORECAST_S = 60.0  # time span of the forecast in the bar
_PAST, _CONE, _MEDIAN, _LIMIT = 4, 1, 2, 3
# No colour is readable as a letter on every background, so a badge has a background of its own.
BADGES = {"cyan": "black on cyan", "yellow": "black on yellow", "alarm": "bright_white on red"}
_BAR_STYLES = {"": "green", "alarm": "red"}
_PLOT_STYLES = {0: "", _PAST: "", _CONE: "magenta", _MEDIAN: "bold magenta", _LIMIT: "red"}
_MAX_FORECAST_S = 3600.0

Strip = tuple[Text, Sequence[Point], Resource | None]  # title, points, resource of the points


def text_style(level: Level) -> str:
    """Return the style of letters: the terminal's own colour, bold from a warning on."""
    return "bold" if level >= Level.WARNING else ""


def badge(level: Level) -> Text:
    """Return the mark of a level in two columns, on the level's colour."""
    # A style of the whole text would also apply to what is appended.
    return Text().append(f"{level.mark:2}", style=BADGES.get(level.color, ""))


def sparkline(points: Sequence[Point], columns: int) -> str:
    """
    Return the last 15 minutes of a series in `columns` characters, from its minimum to its maximum.

    The time scale is fixed and ends now, at the right; the time before the first point is blank. A
    series that changes by less than a hundredth of its value is a flat line: noise is not a trend.
    """
    if not points or columns < 1:
        return " " * max(0, columns)
    times, used = [point[0] for point in points], [point[1] for point in points]
    begin = times[-1] - SPAN_S
    edges = [bisect_left(times, begin + SPAN_S * cell / columns) for cell in range(columns)]
    values: list[float] = []
    for first, last in zip(edges, [*edges[1:], len(used)], strict=True):
        if first < last:
            values.append(max(used[first:last]))  # maximum in the cell
        elif values:
            values.append(values[-1])  # no point in the cell: repeat the previous value
    blank = " " * (columns - len(values))
    low, high = min(values), max(values)
    if high - low < 0.01 * max(abs(high), 1.0):
        return blank + _SPARK_GLYPHS[0] * len(values)
    top = len(_SPARK_GLYPHS) - 1
    return blank + "".join(
        _SPARK_GLYPHS[round((value - low) / (high - low) * top)] for value in values
    )


def bar(resource: Resource, columns: int) -> Text:
    """
    Return a bar of a resource's use, with the forecast for the next minute: `█████▒▒▒░░`.

    Solid is used now, shaded is the forecast growth in the next minute, light is free.
    """
    ratio, eta = resource.ratio, resource.eta_s
    if ratio is None or columns < 1:
        return Text(" " * max(0, columns))
    used = _filled_cells(ratio, columns)
    ahead = 0
    if eta is not None:
        reach = ratio + (1.0 - ratio) * min(1.0, _BAR_FORECAST_S / max(eta, 1e-9))
        ahead = max(1, _filled_cells(reach, columns) - used) if used < columns else 0
    color = resource.level.color
    text = Text()
    text.append("█" * used, style=_BAR_STYLES.get(color, color))
    text.append("▒" * ahead, style="yellow")
    text.append("░" * (columns - used - ahead), style="dim")
    return text


def plot(
    points: Sequence[Point],
    limit: float | None,
    forecast: Resource | None,
    size: tuple[int, int],
) -> list[Text]:
    """
    Plot the past of a series and the interval of its forecast, in `size` characters.

    Args:
        points: points of the last 15 minutes; the last one is now.
        limit: limit of the resource; None: unknown, the axis ends at the highest value.
        forecast: resource with the time to exhaustion; None: no forecast.
        size: columns and rows.
    """
    columns, rows = size
    if not points or columns < 20 or rows < 4:
        return [Text("Not enough has been seen yet." if columns >= 29 else "")]
    now, used, _ = points[-1]
    eta = low = high = None
    if forecast is not None:
        eta, low, high = forecast.eta_s, forecast.eta_low_s, forecast.eta_high_s
    begin = points[0][0]
    past_s = max(now - begin, 30.0)
    # Show the most likely exhaustion, and as much of the interval as fits within an hour.
    ahead_s = 0.0
    if eta is not None:
        ahead_s = min(max(eta * 1.1, min(high or eta, 1.6 * eta)), _MAX_FORECAST_S)
    top = max([each for _, each, _ in points] + ([limit] if limit else []))
    labels = [_format_axis_bytes(top), _format_axis_bytes(top / 2), _format_axis_bytes(0.0)]
    margin = max(len(label) for label in labels) + 1
    canvas = Canvas(columns - margin, rows - 1)
    scale_x = (canvas.width - 1) / (past_s + ahead_s)
    scale_y = (canvas.height - 1) / max(top, 1.0)

    def place(at: float, value: float) -> tuple[int, int]:
        return round((at - now + past_s) * scale_x), round(value * scale_y)

    if limit:
        for x in range(0, canvas.width, 3):
            canvas.dot(x, round(limit * scale_y), _LIMIT)
    if eta is not None and limit and limit > used:
        for end, layer in ((low, _CONE), (high, _CONE), (eta, _MEDIAN)):
            if end is not None:
                canvas.line(place(now, used), place(now + max(end, 0.0), limit), layer)
    before: tuple[int, int] | None = None
    for at, value, _ in points:
        here = place(at, value)
        canvas.line(before or here, here, _PAST)
        before = here
    lines = []
    for number, cells in enumerate(canvas.cells()):
        label = {0: labels[0], (rows - 1) // 2: labels[1], rows - 2: labels[2]}.get(number, "")
        line = Text(f"{label:>{margin - 1}}┤" if label else " " * (margin - 1) + "│", style="dim")
        for char, layer in cells:
            line.append(char, style=_PLOT_STYLES[layer])
        lines.append(line)
    lines.append(_time_axis(margin, canvas.columns, past_s, ahead_s))
    return lines


def side_by_side(strips: Sequence[Strip], size: tuple[int, int]) -> list[Text]:
    """
    Return plots side by side, each below its title.

    Args:
        strips: title, points and, for the plot of a resource, the resource.
        size: columns and rows of all plots with their titles.
    """
    columns = (size[0] - 2 * (len(strips) - 1)) // len(strips)
    lines = [Text() for _ in range(size[1])]
    for number, (title, points, resource) in enumerate(strips):
        limit = None if resource is None else resource.limit
        drawn = [title, *plot(points, limit, resource, (columns, size[1] - 1))]
        for line, cells in zip(lines, drawn, strict=False):
            cells.truncate(columns, overflow="ellipsis")
            line.pad_right(number * (columns + 2) - line.cell_len)
            line.append_text(cells)
    return lines


def _time_axis(margin: int, columns: int, past_s: float, ahead_s: float) -> Text:
    at = round(columns * past_s / (past_s + ahead_s))
    begin = f"-{format_duration(past_s)}"
    end = f"+{format_duration(ahead_s)}" if ahead_s else ""
    now = "now"
    cells = [" "] * (margin + columns)
    _write_at(cells, margin, begin)
    _write_at(cells, margin + columns - len(end), end)
    place = min(max(margin + at - 1, margin + len(begin) + 1), len(cells) - len(end) - len(now) - 1)
    if place > margin + len(begin):
        _write_at(cells, place if end else len(cells) - len(now), now)
    return Text("".join(cells), style="dim")


def _write_at(cells: list[str], at: int, text: str) -> None:
    for number, char in enumerate(text):
        if 0 <= at + number < len(cells):
            cells[at + number] = char


def _filled_cells(ratio: float, columns: int) -> int:
    """Return the number of filled cells: 0 only for an empty bar, all only for a full one."""
    if ratio <= 0:
        return 0
    return min(columns if ratio >= 1 else columns - 1, max(1, math.floor(ratio * columns)))


def _format_axis_bytes(value: float) -> str:
    return format_bytes(value).replace(" ", "").replace("iB", "") if value else "0"
