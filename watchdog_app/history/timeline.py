"""Entries of the journal as sentences for people who do not know its words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from watchdog_app.base.text.plain import capitalize_first
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Incident
from watchdog_app.history.saves import evidence_of

Json = Mapping[str, Any]

# Notifications about what has an entry of its own.
_TWICE = ("rescued", "rescue_failed", "paused", "pause_failed", "resumed", "resolved", "exited")
_WARNED = "You were warned"
_STAGES = {"ok": "Less danger", "watch": "Possible danger", "pause": "Danger, at the very end"}
_DONE = {"checkpoint": "Saved", "pause": "Paused", "resume": "Running again"}
_NOT_DONE = {"checkpoint": "Not saved", "pause": "Not paused", "resume": "Still paused"}
_NOUNS = {"checkpoint": "A save", "pause": "A pause", "resume": "A resume"}


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
