"""Entries of the journal as lines: when, what kind, which task, what happened."""

from __future__ import annotations

import time

from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.base.text.terminal import Style, pad, plain, shorten, wrap
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Incident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_COLORS = {"incident": "yellow", "death": "alarm", "decision": "cyan"}
_KIND_COLUMNS = 8  # the longest kind
_NAME_COLUMNS = 24
_LEAST_TEXT = 30  # columns; on a narrower terminal the text goes below


def render(
    entries: list[Json], columns: int | None = None, style: Style | None = None
) -> list[str]:
    """
    A line an entry, longer texts folded under themselves.

    Args:
        entries: as the protocol's `history` returns them.
        columns: of the terminal; None: nothing is folded.
        style: colours and symbols.
    """
    style = style or Style()
    if not entries:
        return ["Nothing has happened in that time."]
    names = [shorten(_name(one), _NAME_COLUMNS, style.ellipsis) for one in entries]
    name_columns = max((len(name) for name in names), default=0)
    lines = []
    for entry, name in zip(entries, names, strict=True):
        kind = plain(entry.get("kind") or "?")
        left = f"{when(entry.get('unix_s'))}  {pad(kind, _KIND_COLUMNS)}  {pad(name, name_columns)}"
        painted = left.replace(kind, style.paint(kind, _COLORS.get(kind, "")), 1)
        limit = columns or 10_000
        text = sentence(entry)
        if len(left) + 2 + _LEAST_TEXT > limit:
            lines += [painted.rstrip(), *wrap(text, limit, first="    ")]
            continue
        first, *rest = wrap(text, limit, first=left + "  ", rest=" " * (len(left) + 2))
        lines += [painted + first[len(left) :], *rest]
    return lines


def when(unix_s: object) -> str:
    """Local date and time, to the second."""
    known = number_or_none(unix_s)
    if known is None:
        return "unknown time       "
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known))


def sentence(entry: Json) -> str:
    """What happened, from whatever an entry of its kind holds."""
    text = plain(next((entry[key] for key in _TEXTS if entry.get(key)), ""))
    say = _LEADS.get(str(entry.get("kind")))
    lead = say(entry) if say else ""
    return f"{lead}: {text}" if lead and text else lead or text or "no details"


def _incident(entry: Json) -> str:
    label = plain(entry.get("label") or entry.get("resource") or "a limit")
    if Incident.read(entry).is_fault:
        peak = Level.of_stage(entry.get("peak")).fault.lower()
        over = entry.get("closed_unix_s") is not None
        return f"{label} is over, was {peak}" if over else f"{label}, {peak}"
    if entry.get("closed_unix_s") is not None:
        return f"{label} is over, reached {plain(entry.get('peak') or '?')}"
    return f"{label} at {plain(entry.get('stage') or '?')}"


def _decision(entry: Json) -> str:
    return f"{plain(entry.get('decision_kind') or '')}{_times(entry)}"


def _outcome(entry: Json) -> str:
    what = plain(entry.get("decision_kind") or "")
    status = plain(entry.get("status") or "")
    seconds = number_or_none(entry.get("seconds"))
    took = "" if seconds is None else f" in {seconds:.2f} s"
    return f"{what} {status}{_times(entry)}{took}".strip()


def _times(entry: Json) -> str:
    """How often and when, of a series of saves."""
    count = number_or_none(entry.get("count"))
    if count is None or count < 2:
        return ""
    first, last = entry.get("first_unix_s"), entry.get("last_unix_s")
    begin, end = when(first), when(last)
    same_day = begin[:10] == end[:10]
    since = f"{begin[11:] if same_day else begin}{_at_step(entry.get('first_step'))}"
    until = f"{end[11:] if same_day else end}{_at_step(entry.get('last_step'))}"
    newest = ", the last one" if entry.get("kind") == "outcome" else ""
    return f" {count:.0f} times, from {since} to {until}{newest}"


def _at_step(step: object) -> str:
    known = number_or_none(step)
    return "" if known is None else f" (step {known:.0f})"


def _daemon(entry: Json) -> str:
    version = f" (watchdog {plain(entry['version'])})" if entry.get("version") else ""
    return f"{plain(entry.get('what') or '')}{version}"


_TEXTS = ("text", "reason", "why", "detail", "message")
_LEADS = {
    "incident": _incident,
    "decision": _decision,
    "outcome": _outcome,
    "daemon": _daemon,
}


def _name(entry: Json) -> str:
    named = (each.name for each in Incident.read(entry).contributors[:1])
    return plain(entry.get("name") or next(named, None) or "-")
