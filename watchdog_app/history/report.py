"""
One HTML file about the end of a task, or about one that runs: text, chart, timeline, trace. Pure.

The file needs no network and runs no script. Its Content-Security-Policy allows its own style
sheet only. All texts are untrusted and escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from watchdog_app.base.text.plain import capitalize_first, clean
from watchdog_app.base.text.quantities import format_bytes, format_duration, number_or_none
from watchdog_app.base.text.terminal import plain, plain_block
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Incident
from watchdog_app.core.replay.trace import EMBEDDED_BEGIN, EMBEDDED_END
from watchdog_app.history.saves import evidence_of

Json = Mapping[str, Any]
Point = tuple[float, float]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900.0, 300.0, 100.0, 30.0
_SMALL = 0.1  # of the resource: a smaller task is drawn alone
_WORD_WIDTH = 90.0  # of the longest, on a phone
_HEADING_CHARS = 60  # a longer line that ends in a colon is a sentence
_WORDS = {"warned": "warning", "saved": "saved", "paused": "paused", "resumed": "resumed"}
_POLICY = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
# Notifications about what has an entry of its own.
_TWICE = ("rescued", "rescue_failed", "paused", "pause_failed", "resumed", "resolved", "exited")
_WARNED = "You were warned"
_STAGES = {"ok": "Less danger", "watch": "Possible danger", "pause": "Danger, at the very end"}
_DONE = {"checkpoint": "Saved", "pause": "Paused", "resume": "Running again"}
_NOT_DONE = {"checkpoint": "Not saved", "pause": "Not paused", "resume": "Still paused"}
_NOUNS = {"checkpoint": "A save", "pause": "A pause", "resume": "A resume"}


class Event(NamedTuple):
    """A row of the timeline."""

    at: str
    text: str


class Report(NamedTuple):
    """What a page shows."""

    title: str
    text: str  # paragraphs, separated by blank lines; a line that ends in ":" is a heading
    plot: Json | None  # as `explain` answers it
    events: Sequence[Event]
    about: str  # versions, and when the page was made


def page(report: Report) -> str:
    """The page as HTML text."""
    style = Path(__file__).with_suffix(".css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    first, *rest = [part for part in report.text.strip().split("\n\n") if part.strip()] or [""]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(plain(report.title))}</title><style>{style}</style></head><body>",
        f"<h1>{_text(plain(report.title))}</h1>",
        *_paragraph(first),
        *(_chart(report.plot) if report.plot else ()),
        *(line for part in rest for line in _paragraph(part)),
    ]
    if report.events:
        parts.append("<h2>Timeline</h2><table>")
        for event in report.events:
            cells = "".join(f"<td>{_text(plain(each))}</td>" for each in event)
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</table>")
    if report.plot:
        parts += _trace(report.plot)
    return "\n".join([*parts, f"<footer><p>{_text(report.about)}</p></footer></body></html>", ""])


def running_plot(series: Sequence[Json], begin_unix_s: float, end_unix_s: float) -> Json | None:
    """
    The plot of a task that runs, from its series; None: it has none.

    Args:
        series: the task's and those of its resources, as the protocol's `series`.
        begin_unix_s: the first moment to show.
        end_unix_s: the last moment to show.
    """
    own = next((each for each in series if each.get("kind") == "task"), None)
    if own is None:
        return None
    points = list(own.get("points") or ())
    if points:  # one that does not change has no points
        points.append([end_unix_s, *points[-1][1:]])
    resources = [each for each in series if each.get("unit") == "bytes" and each is not own]
    nearest = max(resources, key=_final_ratio, default=None)
    return {
        "begin_unix_s": begin_unix_s,
        "end_unix_s": end_unix_s,
        "name": own.get("name"),
        "points": points,
        "resource": nearest
        and {
            "kind": nearest["kind"],
            "label": nearest.get("name"),
            "limit": (_last(nearest) or [None] * 3)[2],
            "points": nearest.get("points"),
        },
        "marks": [],
    }


def _last(series: Json) -> Sequence[Any] | None:
    points = series.get("points")
    return points[-1] if points else None


def _final_ratio(series: Json) -> float:
    _, used, limit, *_rest = _last(series) or (None, None, None)
    return used / limit if used and limit else 0.0


def _text(text: object) -> str:
    return escape(plain_block(text))


def _paragraph(part: str) -> Iterator[str]:
    """A heading with its list, or lines of text; indented commands stay as they are typed."""
    head, *lines = part.split("\n")
    is_heading = head.endswith(":") and len(head) <= _HEADING_CHARS
    yield f"<h2>{_text(head[:-1])}</h2>" if is_heading else f"<p>{_text(head)}</p>"
    commands = [line for line in lines if line.startswith("  ") and " && " in line]
    if commands:
        yield f"<pre>{_text(chr(10).join(line.strip() for line in lines))}</pre>"
    elif lines and all(line.startswith("  ") for line in lines):
        yield "<ul>" + "".join(f"<li>{_text(line.strip())}</li>" for line in lines) + "</ul>"
    else:
        yield from (f"<p>{_text(line.strip())}</p>" for line in lines)


# The chart


class _Scale(NamedTuple):
    begin: float
    end: float
    top: float

    def x(self, unix_s: float) -> float:
        share = (unix_s - self.begin) / (self.end - self.begin)
        return _LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - 10)

    def y(self, value: float) -> float:
        return (_HEIGHT - _BOTTOM) - min(1.0, value / self.top) * (_HEIGHT - _BOTTOM - 20)

    def path(self, points: Iterable[Point]) -> str:
        return " ".join(f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in points)


def _chart(plot: Json) -> Iterator[str]:
    """The memory of the task, the resource with its limit, forecasts and events as SVG."""
    resource = plot.get("resource") or {}
    own, above = _points(plot.get("points")), _points(resource.get("points"))
    begin, end = number_or_none(plot.get("begin_unix_s")), number_or_none(plot.get("end_unix_s"))
    if begin is None or end is None or len(own) < 2:
        return
    begin = min(max(begin, own[0][0]), end - 1.0)
    limit = number_or_none(resource.get("limit"))
    most = max(value for _, value in own)
    if above and most < _SMALL * max(value for _, value in above):
        above = []  # with it the task would be a line at the bottom
    most = max(value for _, value in (*own, *above))
    drawn = limit is not None and limit <= 3 * most
    top = max(most, limit or 0.0, 1.0) if drawn else max(most, 1.0)
    marks = [each for each in plot.get("marks") or () if begin <= each["unix_s"] <= end + 1]
    forecasts = [
        each
        for each in marks
        if drawn and each.get("eta_s") is not None and each.get("used") is not None
    ]
    # A little room at the right, for forecasts beyond the end.
    scale = _Scale(begin, end + 0.08 * (end - begin), 1.05 * top)
    name = clean(str(plot.get("name") or "the task"))
    label = clean(str(resource["label"])) if resource.get("label") else ""
    label_text = f"Memory of {name} over {format_duration(end - begin)}"
    yield f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{_text(label_text)}">'
    for value in (0.0, scale.top / 2.1, scale.top / 1.05):
        y = scale.y(value)
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        amount = format_bytes(value) if value else "0"
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(amount)}</text>'
    for each in forecasts:
        yield from _forecast(each, scale, limit or 0.0)
    if drawn and limit is not None:
        y = scale.y(limit)
        yield f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield f'<polyline class="resource" points="{scale.path(p for p in above if p[0] >= begin)}"/>'
    yield f'<polyline class="task" points="{scale.path(p for p in own if p[0] >= begin)}"/>'
    named: dict[str, float] = {}  # the last place of each word
    for each in marks:
        yield from _mark(each, scale, named)
    began = f"{format_duration(end - begin)} before"
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{_text(began)}</text></svg>'
    words = [f"Blue: {name}."]
    words += [f"Dashed: {label}."] if above else []
    if limit is not None:
        far = "" if drawn else " It is far above."
        of = "" if above or not label else f" of {label}"
        words.append(f"Limit{of}: {format_bytes(limit)}{' (red)' if drawn else ''}.{far}")
    words += ["Orange: forecast with its 80 % interval."] if forecasts else []
    yield f'<p class="dim">{_text(" ".join(words))}</p>'


def _forecast(mark: Json, scale: _Scale, limit: float) -> Iterator[str]:
    at, used = mark["unix_s"], mark["used"]
    x0, y0, y1 = scale.x(at), scale.y(used), scale.y(limit)
    low, median = (at + (mark.get(key) or 0.0) for key in ("low_s", "eta_s"))
    high = scale.end if mark.get("high_s") is None else at + mark["high_s"]
    xs = [scale.x(each) for each in (low, median, high)]
    band = f"{x0:.1f},{y0:.1f} {xs[0]:.1f},{y1:.1f} {xs[2]:.1f},{y1:.1f}"
    yield f'<polygon class="band" points="{band}"/>'
    yield f'<line class="forecast" x1="{x0:.1f}" y1="{y0:.1f}" x2="{xs[1]:.1f}" y2="{y1:.1f}"/>'


def _mark(mark: Json, scale: _Scale, named: dict[str, float]) -> Iterator[str]:
    """A line with its word, unless the same word stands where this one would."""
    x = scale.x(mark["unix_s"])
    word = _WORDS.get(str(mark.get("kind")), "the end")
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{_HEIGHT - _BOTTOM}"/>'
    if x - named.get(word, -_WORD_WIDTH) < _WORD_WIDTH:
        return
    named[word] = x
    row = {"warning": 24, "saved": 45, "paused": 66, "resumed": 87}.get(word, _HEIGHT - 8)
    yield f'<text x="{x - 4:.1f}" y="{row}" text-anchor="end">{word}</text>'


def _points(value: Any) -> list[Point]:
    found: list[Point] = []
    for point in value or ():
        at, used = number_or_none(point[0]), number_or_none(point[1])
        if at is not None and used is not None and (not found or at > found[-1][0]):
            found.append((at, used))
    return found


def _trace(plot: Json) -> Iterator[str]:
    """The series as CSV text that `watchdog replay` reads."""
    resource = plot.get("resource") or {}
    limit = number_or_none(resource.get("limit"))
    own = _points(plot.get("points"))
    begin = own[0][0] if own else 0.0  # before it, others used the resource
    rows: dict[float, str] = {}
    for point in resource.get("points") or ():
        at, used = number_or_none(point[0]), number_or_none(point[1])
        known = number_or_none(point[2]) if len(point) > 2 else None
        if at == plot.get("end_unix_s") and used == known:
            continue  # drawn, but not measured
        if at is not None and used is not None and (known or limit) is not None:
            since = max(0.0, at - begin)  # the last value before the task is its first
            rows[since] = f"{since:.3f},{used:.0f},{known or limit:.0f}"
    if rows:
        yield "<details><summary>Trace of the resource; watchdog replay plays this file</summary>"
        yield (
            EMBEDDED_BEGIN
            + "\n".join(["t,used,limit", *rows.values()])
            + EMBEDDED_END
            + "</details>"
        )


def sentences(entries: Iterable[Json], subject: str) -> list[tuple[float, str]]:
    """
    Time and sentence of what happened, the oldest first.

    Args:
        entries: entries of the journal, the newest first.
        subject: name of the task that all is about; others are named.
    """
    found = []
    oldest_first = list(entries)[::-1]
    dangers = {each.get("reason") for each in oldest_first if each.get("kind") == "incident"}
    for entry in oldest_first:
        text = _sentence(entry)
        if text.startswith(_WARNED) and entry.get("reason") in dangers:
            text = f"{_WARNED}."  # the danger says of what
        if text:
            name = str(entry.get("name") or "")
            own = name in ("", subject) or name in text
            found.append((entry["unix_s"], text if own else f"{name}: {text}"))
    return found


def _sentence(entry: Json) -> str:
    kind, action = entry.get("kind"), str(entry.get("decision_kind"))
    reason = str(entry.get("reason") or "")
    if kind == "incident":
        return _incident(entry, reason)
    if kind == "decision" and action == "notify":
        topic = evidence_of(entry).get("topic")
        told = _WARNED if topic == "warning" else "You were told"
        return "" if topic in _TWICE else f"{told}: {reason}"
    if kind == "decision":  # what watchdog decides has an outcome
        by = str(entry.get("by")).replace("the cli", "the command line")
        return "" if by == "watchdog" else f"{_NOUNS.get(action, action)} was asked for by {by}."
    if kind == "outcome":
        return "" if action == "notify" else _outcome(entry, action)
    if kind == "daemon":
        what = str(entry.get("what"))
        return capitalize_first(what if what.startswith("the ") else f"watchdog has {what}")
    return str(entry.get("text") or reason)


def _incident(entry: Json, reason: str) -> str:
    label, stage = str(entry.get("label") or "a limit"), str(entry.get("stage"))
    if Incident.read(entry).is_fault:
        how = Level.from_stage(entry.get("peak")).fault.capitalize()
    else:
        how = _STAGES.get(stage, "Danger")
    if entry.get("closed_unix_s") is not None:
        return f"The danger is over: {label}"
    return f"{how}: {label}: {reason}" if reason else f"{how}: {label}"


def _outcome(entry: Json, action: str) -> str:
    detail = str(entry.get("detail") or "")
    done = entry.get("status") == "done"
    if done and (method := evidence_of(entry).get("method")):
        detail = detail.replace(f" ({method})", "")  # a name of the kernel's
    count = number_or_none(entry.get("count")) or 1
    often = f" {count:.0f} times, the last time at" if done and count > 1 else ""
    lead = (_DONE if done else _NOT_DONE).get(action, action) + often
    if done and action == "checkpoint":
        detail = detail.replace(" saved: ", ": ", 1)
    return f"{lead} {detail[:1].lower()}{detail[1:]}" if often else f"{lead}: {detail}"
