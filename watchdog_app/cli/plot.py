"""
Plot the last minutes of a task in the terminal: its memory, the resource with its limit, and
events. Pure.

Uses Braille dots if the terminal has them, else ASCII characters. The plot is readable without
colours: the task is a thick line, the resource is dashed, the limit is dotted. Each event has a
letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_bytes, format_duration, number_or_none
from watchdog_app.base.text.terminal import Style, plain, shorten, width
from watchdog_app.top.glyphs import Canvas

Json = dict[str, Any]
Point = tuple[float, float]
Mark = tuple[float, str]  # time, kind

MIN_POINTS = 3
_MIN_COLUMNS, _MAX_COLUMNS = 40, 100
_ROWS = 10
_DASH, _DASH_ON = 8, 4  # period and length of a dash in dots
_RESOURCE, _LIMIT, _TASK, _MARK = 1, 2, 3, 4
_COLORS = {0: "", _RESOURCE: "dim", _LIMIT: "red", _TASK: "green", _MARK: "alarm"}
# Without Braille dots each line has its own character.
_PLAIN = {0: " ", _RESOURCE: ".", _LIMIT: "-", _TASK: "*", _MARK: "|"}
_LETTERS = {"saved": "S", "warned": "W", "paused": "P", "resumed": "R", "death": "X"}
# of two events in the same column, the later kind in this list moves aside
_ORDER = ("death", "saved", "warned", "paused", "resumed")


def plot(past: Json, columns: int | None, style: Style) -> list[str]:
    """
    Return the lines of the plot; empty if there are too few points.

    Args:
        past: `plot` of the protocol's `explain`; `unit` can name another unit than bytes.
        columns: width of the terminal; None: unknown.
        style: colours and symbols.
    """
    own = _parse_points(past.get("points"))
    begin, end = number_or_none(past.get("begin_unix_s")), number_or_none(past.get("end_unix_s"))
    wide = min(columns or 80, _MAX_COLUMNS)
    resource = past.get("resource") or {}
    above, limit = _parse_points(resource.get("points")), number_or_none(resource.get("limit"))
    # A task that dies quickly has few points. Its resource was then sampled more often.
    if len(own) < 2 or max(len(own), len(above)) < MIN_POINTS:
        return []
    if begin is None or end is None or wide < _MIN_COLUMNS:
        return []
    # If the task began late in the plotted time, start the plot there. Otherwise most of it would
    # be blank.
    if own[0][0] - begin > 0.25 * (end - begin):
        begin = own[0][0]
    begin = min(begin, end - 1.0)
    marks = _marks_within(past.get("marks"), begin, end)
    # A limit far above the values would flatten the lines. The legend names it instead.
    most = max(value for _, value in (*own, *above))
    drawn = limit is not None and limit <= 3 * most
    top = max(most, limit or 0.0) if drawn else most
    unit = past.get("unit") or "bytes"
    labels = [_format_amount(top, unit), _format_amount(top / 2, unit), "0"]
    margin = max(map(len, labels)) + 1
    canvas = Canvas(wide - margin, _ROWS)
    if drawn and limit is not None:
        height = _dot_height(limit, top, canvas)
        for x in range(0, canvas.width, 3):
            canvas.dot(x, height, _LIMIT)
    _draw_series(canvas, above, _RESOURCE, (begin, end), top)
    _draw_series(canvas, own, _TASK, (begin, end), top)
    lines = _render_rows(canvas, labels, margin, style)
    lines += _render_axis(marks, (begin, end), margin, canvas.columns, style)
    return [*lines, *_render_legend(past, marks, drawn, wide, style)]


def _draw_series(
    canvas: Canvas, series: Sequence[Point], layer: int, span: tuple[float, float], top: float
) -> None:
    begin, end = span
    before: tuple[int, int] | None = None
    for at, value in series:
        x = round(max(0.0, at - begin) / (end - begin) * (canvas.width - 1))
        here = x, _dot_height(value, top, canvas)
        _draw_segment(canvas, before or here, here, layer)
        before = here
    if before is not None and before[0] < canvas.width - 1:
        _draw_segment(canvas, before, (canvas.width - 1, before[1]), layer)


def _draw_segment(canvas: Canvas, begin: tuple[int, int], end: tuple[int, int], layer: int) -> None:
    """Draw a line segment: two dots thick for the task, with gaps for the resource."""
    (x0, y0), (x1, y1) = begin, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    for step in range(steps + 1):
        x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
        if layer != _RESOURCE or (x + y) % _DASH < _DASH_ON:
            canvas.dot(x, y, layer)
        if layer == _TASK:
            canvas.dot(x, y - 1, layer)


def _dot_height(value: float, top: float, canvas: Canvas) -> int:
    return round(value / max(top, 1.0) * (canvas.height - 1))


def _render_rows(canvas: Canvas, labels: list[str], margin: int, style: Style) -> list[str]:
    lines = []
    tick, bar = ("┤", "│") if style.unicode else ("+", "|")
    for number, cells in enumerate(canvas.cells()):
        label = {0: labels[0], (_ROWS - 1) // 2: labels[1], _ROWS - 1: labels[2]}.get(number, "")
        left = f"{label:>{margin - 1}}{tick if label else bar}"
        drawn = style.paint(left, "dim")
        for layer, group in groupby(cells, key=itemgetter(1)):
            run = "".join(char for char, _ in group)
            shown = run if style.unicode else _PLAIN[layer] * len(run)
            drawn += style.paint(shown, _COLORS[layer])
        lines.append(drawn.rstrip())
    return lines


def _render_axis(
    marks: Sequence[Mark], span: tuple[float, float], margin: int, columns: int, style: Style
) -> list[str]:
    """Return the line of event letters and the line of times."""
    begin, end = span
    cells = [" "] * columns
    for at, kind in sorted(marks, key=lambda mark: _ORDER.index(mark[1])):
        place = round((min(at, end) - begin) / (end - begin) * (columns - 1))
        while place and cells[place] not in (" ", _LETTERS[kind]):
            place -= 1  # move left, next to an event of another kind
        cells[place] = _LETTERS[kind]
    first = f"-{format_duration(end - begin)}"
    times = f"{first} {'the end':>{columns - len(first) - 1}}"
    letters = "".join(cells).rstrip()
    return [" " * margin + style.paint(letters, "bold"), " " * margin + style.paint(times, "dim")]


def _render_legend(
    past: Json, marks: Sequence[Mark], drawn: bool, columns: int, style: Style
) -> list[str]:
    """Describe the lines and the letters of the plot."""
    own, above, dotted = ("⣤⣤⣤", "⠒ ⠒", "⠁⠈ ⠁") if style.unicode else ("*", ".", "-")
    name = shorten(plain(past.get("name") or "the task"), 30, style.ellipsis)
    words = [f"{own} {name}"]
    resource = past.get("resource") or {}
    limit = number_or_none(resource.get("limit"))
    if resource.get("label"):
        label = shorten(plain(resource["label"]), columns - 8, style.ellipsis)
        words.append(f"{above} {label}")
    if limit is not None:
        unit = past.get("unit") or "bytes"
        amount = format_bytes(limit) if unit == "bytes" else f"{limit:.4g} {unit}"
        words.append(
            f"{dotted} its limit, {amount}" if drawn else f"its limit of {amount} is far above"
        )
    used = {kind for _, kind in marks}
    words += [
        f"{_LETTERS[kind]} {'the end' if kind == 'death' else kind}"
        for kind in _ORDER
        if kind in used
    ]
    lines, line = [], ""
    for word in words:
        if line and width(line) + 3 + width(word) > columns - 2:
            lines.append(line)
            line = ""
        line += f"   {word}" if line else word
    return [f"  {each}" for each in [*lines, line]]


def _marks_within(value: Any, begin_unix_s: float, end_unix_s: float) -> list[Mark]:
    """Return the events within the plotted time; the legend explains no others."""
    known = [one for one in value or () if isinstance(one, dict) and one.get("kind") in _LETTERS]
    timed = [(number_or_none(one.get("unix_s")), one["kind"]) for one in known]
    return [
        (at, kind) for at, kind in timed if at is not None and begin_unix_s <= at <= end_unix_s + 1
    ]


def _parse_points(value: Any) -> list[Point]:
    """Parse points (unix_s, used), oldest first; skip invalid and out-of-order points."""
    found: list[Point] = []
    for point in value if isinstance(value, list) else []:
        if isinstance(point, list) and len(point) >= 2:
            at, used = number_or_none(point[0]), number_or_none(point[1])
            if at is not None and used is not None and (not found or at >= found[-1][0]):
                found.append((at, used))
    return found


def _format_amount(value: float, unit: str) -> str:
    return quantities.format_bytes(value, compact=True) if unit == "bytes" else f"{value:.4g}"
