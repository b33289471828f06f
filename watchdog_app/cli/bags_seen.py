"""
Airbags that run and those that are over, as their keepers wrote them down: no daemon is needed.
"""

from __future__ import annotations

import os

from watchdog_app.base.text.quantities import format_bytes, pid_in
from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from watchdog_app.airbag.record import BagRecord

    Json = dict[str, Any]

_STATES = {
    "copying": "being saved",
    "waiting": "has the reserve until its step ends",
    "leaving": "interrupted; has the reserve to end",
    "refusing": "refused more memory",
    "opened": "no limit of its own",
    "ending": "being ended",
}
_SAME_S = 10.0  # what the daemon noted of the same moment
_OURS = ("hold", "airbag ")


def line(bag: BagRecord) -> str:
    """One that runs: how full, and what to type where it is held."""
    from watchdog_app.airbag import report

    state = "" if bag.stage == "calm" else f", {_STATES.get(bag.stage, bag.stage)}"
    if bag.stage == "held":
        resume = f"watchdog limit {bag.pid} {report.next_limit(bag)}"
        state = f", stopped at its limit; to resume it: {resume}"
    return (
        f"{plain(bag.name)} (pid {bag.pid}): {format_bytes(bag.used_bytes)} of "
        f"{format_bytes(bag.limit_bytes)}, reserve {format_bytes(bag.reserve_bytes)}, "
        f"{bag.how}{state}"
    )


def every() -> list[BagRecord]:
    """Those that run, with what they hold now: keepers write that down every few seconds only."""
    from watchdog_app.airbag import groups, record

    found = record.every()
    for bag in found:
        if bag.group is not None:
            bag.used_bytes = groups.existing(bag).usage().held_bytes or bag.used_bytes
    return found


def running() -> list[str]:
    """Those that run, a line each."""
    return [line(bag) for bag in every()]


def explained(task: str | None, since_unix_s: float = 0.0) -> list[str]:
    """
    What is to be said of airbags: of those that run, and of the last that had to act.

    Args:
        task: pid or name; None: of all.
        since_unix_s: of those that are over only one that ended after it.
    """
    from watchdog_app.airbag import past, report

    found = [
        f"{bag.name} (pid {bag.pid}) {'is held' if bag.held else 'runs'}. {report.explained(bag)}"
        for bag in every()
        if _is(bag, task)
    ]
    for bag in past.every():
        if (bag.ended_unix_s or 0.0) > since_unix_s and _is(bag, task):
            said = report.past(bag)
            if said:
                found.append(f"{_when(bag)}: {said}")
                break
    return found


def entries(noted: list[Json], wanted: Json) -> list[Json]:
    """
    The history with what airbags did while no daemon ran, newest first.

    Args:
        noted: entries of the journal.
        wanted: as `Journal.history` takes them.
    """
    from watchdog_app.airbag import past, record

    known = [
        (each.get("pid"), float(each.get("unix_s") or 0.0))
        for each in noted
        if each.get("kind") == "death" or str(each.get("decision_kind") or "").startswith(_OURS)
    ]
    kinds, since, until = (
        wanted.get("kinds"),
        wanted.get("since_unix_s"),
        wanted.get("until_unix_s"),
    )
    more = [
        entry
        for bag in (*record.every(), *past.every())
        if _is(bag, wanted.get("task"))
        for entry in _entries(bag)
        if (kinds is None or entry["kind"] in kinds)
        and (since is None or entry["unix_s"] >= since)
        and (until is None or entry["unix_s"] <= until)
        and not any(pid == bag.pid and abs(at - entry["unix_s"]) < _SAME_S for pid, at in known)
    ]
    merged = sorted([*noted, *more], key=lambda each: -float(each.get("unix_s") or 0.0))
    return merged[: wanted.get("limit")]


def _entries(bag: BagRecord) -> Iterator[Json]:
    from watchdog_app.airbag import report

    about = {"pid": bag.pid, "start_time": bag.start_time, "name": bag.name}
    for event in bag.events:
        at, kind = event.get("unix_s"), str(event.get("kind"))
        if isinstance(at, int | float) and kind in ("held", "refusing", "opened", "ending", "calm"):
            text = str(event.get("text")).partition("\n")[0]
            word = "hold" if kind == "held" else f"airbag {kind}"
            yield {"kind": "decision", "unix_s": float(at), **about,
                   "decision_kind": word, "text": text}  # fmt: skip
    said = report.past(bag) if bag.ended_unix_s is not None else ""
    if said and bag.stage in ("held", "leaving", "ending", "refusing"):
        reason = report.cause_of_end(bag) or said.partition(". ")[0]
        yield {"kind": "death", "unix_s": bag.ended_unix_s, **about, "cause": "airbag",
               "certainty": "exact", "reason": reason, "text": said, "rescue": None}  # fmt: skip


def _is(bag: BagRecord, task: str | None) -> bool:
    if task is None:
        return True
    pid = pid_in(task)
    wanted = os.path.basename(task.strip()).casefold()
    return bag.pid == pid if pid is not None else bool(wanted) and wanted in bag.name.casefold()


def _when(bag: BagRecord) -> str:
    from watchdog_app.cli.history_text import when

    return when(bag.ended_unix_s)
