"""
A status that is too long for one message, made to fit: what matters least is left out. Pure.

Names and paths are what other programs say of themselves, and their sum has no bound that
would not cut what is true as well. So the whole is looked at only when it did not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from watchdog_app.base.text.plain import shortened
from watchdog_app.client.framing import MAX_LINE_BYTES
from watchdog_app.core.model.decisions import Stage

_ENVELOPE_BYTES = 16 * 1024  # the message around it, and the sentence about what is left out
_LARGE_ENTRY_BYTES = 8 * 1024  # an ordinary task has a tenth of it
_LARGE_PART_BYTES = 64 * 1024
_MOST_ITEMS = 16  # in a list of what was too large
_MOST_CHARS = 200
_MOST_FOREIGN_CHARS = 40  # each can take twelve bytes
_STAGES = {stage.name.lower(): -stage for stage in Stage}  # the worst first

Entry = Mapping[str, Any]
Rank = Callable[[Entry], tuple[Any, ...]]


def fitting(status: dict[str, Any], most_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """
    The same status with so many tasks, resources and incidents as one message holds.

    Those that are in danger or paused come first, then the largest. Long texts and lists of what
    is too large alone are cut. `errors` says how many are left out.

    Args:
        status: of docs/protocol.md.
        most_bytes: of the message.
    """
    found = dict(status)
    for name in ("host", "daemon", "hardware"):
        if _size(found[name]) > _LARGE_PART_BYTES:
            found[name] = _cut(found[name])
    rest = {name: value for name, value in found.items() if name not in _ORDER}
    left = most_bytes - _ENVELOPE_BYTES - _size(rest)
    missing = []
    for name, (share, rank, word) in _ORDER.items():
        kept, size = _kept(status[name], min(left, int(share * most_bytes)), rank)
        left -= size
        found[name] = kept
        if len(kept) < len(status[name]):
            missing.append(f"{len(status[name]) - len(kept)} of {len(status[name])} {word}")
    left_out = f" Left out: {', '.join(missing)}." if missing else ""
    message = f"The status is too long for one message: long texts in it are cut.{left_out}"
    found["errors"] = [
        *found["errors"],
        {"source": "status", "message": message, "remedy": None},
    ]
    return found


def _kept(entries: list[Entry], room: int, rank: Rank) -> tuple[list[Entry], int]:
    """What has room, the first by rank, in the order in which it was; and its bytes."""
    chosen: dict[int, Entry] = {}
    used = 0
    for index in sorted(range(len(entries)), key=lambda index: rank(entries[index])):
        entry = entries[index]
        size = _size(entry) + 1
        if size > _LARGE_ENTRY_BYTES:
            entry = _cut(entry)
            size = _size(entry) + 1
        if used + size <= room:
            chosen[index] = entry
            used += size
    return [chosen[index] for index in sorted(chosen)], used


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value, _MOST_CHARS if value.isascii() else _MOST_FOREIGN_CHARS)
    if isinstance(value, Mapping):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item) for item in value[:_MOST_ITEMS]]
    return value


def _of_task(entry: Entry) -> tuple[Any, ...]:
    paused = entry["state"] in ("paused", "held")
    return _STAGES.get(entry["stage"], 0), not paused, -(entry["ram_bytes"] or 0)


def _of_ceiling(entry: Entry) -> tuple[Any, ...]:
    # Those of one process each are many, that of the machine is one.
    return _STAGES.get(entry["stage"], 0), entry["kind"] == "rlimit_as", -(entry["ratio"] or 0)


def _of_incident(entry: Entry) -> tuple[Any, ...]:
    return entry["closed_unix_s"] is not None, _STAGES.get(entry["stage"], 0)


def _as_it_is(_: Entry) -> tuple[Any, ...]:
    return ()


# Of the whole, at most: what one of them does not use is left for those after it.
_ORDER: dict[str, tuple[float, Rank, str]] = {
    "errors": (1 / 16, _as_it_is, "errors"),
    "incidents": (1 / 8, _of_incident, "incidents"),
    "ceilings": (3 / 16, _of_ceiling, "ceilings"),
    "gpus": (1 / 8, _as_it_is, "cards"),
    "processes": (1.0, _of_task, "tasks"),
}
