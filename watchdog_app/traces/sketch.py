"""A played trace drawn in characters, for a terminal."""

from __future__ import annotations

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.decisions import Stage
from watchdog_app.traces.play import Played, reached

_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*#"
_ROWS = 8
_LEGEND = {"r": "r checkpoint due", "W": "W notice stands", "H": "H pause, the last resort"}
_MARKS = ((Stage.HOLD, "H"), (Stage.WARN, "W"), (Stage.RESCUE, "r"))


def sketch(played: Played, columns: int, unicode_: bool = True) -> list[str]:
    """
    Lines of at most `columns`: the level over time, the limit on top, the open stages below.

    Below the level: W where a notice stands, r where only a silent checkpoint is due, H where
    pausing is the last resort.
    """
    moments = played.moments
    bars = _BARS if unicode_ else _ASCII_BARS
    limit = max(m.limit for m in moments)
    label = _figure(limit, played.trace.unit)
    margin = len(label) + 2
    width = max(10, min(columns - margin, 100))
    first, last = moments[0].t, moments[-1].t
    span = max(last - first, 1e-9)
    tops = [0.0] * width
    marks = [" "] * width
    seen = [False] * width
    for m in moments:
        at = min(width - 1, int((m.t - first) / span * width))
        share = m.used / limit if limit > 0 else 0.0
        tops[at] = max(tops[at], min(1.0, max(0.0, share))) if seen[at] else min(1.0, max(0, share))
        seen[at] = True
        for stage, mark in _MARKS:
            if reached(m.assessment, stage):
                if marks[at] == " " or _rank(mark) > _rank(marks[at]):
                    marks[at] = mark
                break
    for at in range(1, width):
        if not seen[at]:
            tops[at], marks[at] = tops[at - 1], marks[at - 1]
    lines = []
    for row in range(_ROWS, 0, -1):
        cells = []
        for top in tops:
            filled = top * _ROWS - (row - 1)
            index = round(max(0.0, min(1.0, filled)) * (len(bars) - 1))
            cells.append(bars[index])
        name = label if row == _ROWS else "0" if row == 1 else ""
        lines.append(f"{name:>{len(label)}} |{''.join(cells).rstrip()}")
    lines.append(f"{'':>{len(label)}} |{''.join(marks).rstrip()}")
    end = f"{span:.0f} s"
    lines.append(f"{'':>{len(label)}}  0{end:>{max(1, width - 1)}}")
    there = [words for mark, words in _LEGEND.items() if mark in marks]
    if there:
        lines += [line[:columns] for line in _in_columns(there, columns)]
    return lines


def _in_columns(words: list[str], columns: int) -> list[str]:
    line = ", ".join(words)
    return [line] if len(line) <= columns else words


def _rank(mark: str) -> int:
    return "rWH".find(mark)


def _figure(value: float, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else f"{value:.4g} {unit}"
