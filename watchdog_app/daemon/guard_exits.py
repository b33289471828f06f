"""
What an airbag has to do with the end of a program in it, as its keeper wrote that down.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from watchdog_app.airbag import past, report
from watchdog_app.airbag.record import BagRecord
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.exits import GuardEnd
from watchdog_app.core.model.machine import ProcessKey

_JUST_NOW_S = 30.0


def of(key: ProcessKey, group: str | None) -> GuardEnd | None:
    """
    The airbag of a process that has just ended; None: it was in none.

    Args:
        group: folder of its memory group, as last seen.
    """
    bag = past.of(key.pid, key.start_time, group)
    if bag is None:
        return None
    limit = "" if bag.follows_machine else f"{bag.limit_bytes >> 20}M"
    return GuardEnd(
        limit_bytes=bag.limit_bytes,
        next_limit=report.next_limit(bag) if report.full(bag) else limit,
        limit=limit,
        refused=bag.stage == "refusing" or _was_refused(bag),
        ended=report.cause_of_end(bag),
        held=report.held_at_end(bag),
        last_message=""
        if not bag.events
        else str(bag.events[-1].get("text", "")).partition("\n")[0],
        rescue=_rescue(bag, key.pid),
    )


def _was_refused(bag: BagRecord) -> bool:
    """Just now: a MemoryError gives back what it was about, and the airbag is calm again."""
    since = time.time() - _JUST_NOW_S
    return any(
        each.get("kind") == "refusing" and float(each.get("unix_s") or 0.0) > since
        for each in bag.events
    )


def newest(view: AgentState | None, bag: GuardEnd | None) -> RescueRecord | None:
    """The rescue to go on from: the agent's own, or a later one that was copied from outside."""
    own = None if view is None else view.rescue
    copied = None if bag is None else bag.rescue
    if copied is None or (own is not None and own.saved_unix_s >= copied.saved_unix_s - 1.0):
        return own
    return copied if own is None else replace(copied, by_lines=own.by_lines)


def _rescue(bag: BagRecord, pid: int) -> RescueRecord | None:
    for each in reversed(bag.rescues):
        path, step = each.get("path"), each.get("step")
        if each.get("pid") != pid or not isinstance(path, str) or not isinstance(step, int):
            continue
        size = each.get("bytes")
        at = bag.saved_unix_s or 0.0
        return RescueRecord(path, step, size if isinstance(size, int) else _size(path), 0.0, at)
    return None


def _size(path: str) -> int:
    """Of a rescue on disk; 0 where it is not there any more."""
    try:
        with os.scandir(path) as files:
            return sum(each.stat(follow_symlinks=False).st_size for each in files)
    except OSError:
        return 0
