"""
A status that is too long for one message, made to fit: what matters least is left out. Pure.

Names and paths are what other programs say of themselves. No limit on each of them bounds their
sum without cutting what is true, so the whole is shortened only when it did not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from watchdog_app.base.text.plain import shortened
from watchdog_app.client.jsonrpc import MAX_LINE_BYTES

_ENVELOPE_BYTES = 16 * 1024  # the message around it, and the sentence about what is left out
_LARGE_ENTRY_BYTES = 8 * 1024  # an ordinary task has a tenth of it
_LARGE_PART_BYTES = 64 * 1024
_MOST_ITEMS = 16  # in a list of what was too large
_MOST_CHARS = 200
_MOST_FOREIGN_CHARS = 40  # each can take twelve bytes
_STAGES = ("ok", "watch", "warn", "save", "pause")

Entry = Mapping[str, Any]
Rank = Callable[[Entry], tuple[Any, ...]]
# The share of the message that each list may take at most, what comes first in it, and its noun.
# What one of them leaves free is free for those after it.
_LISTS: dict[str, tuple[float, Rank, str]] = {
    "problems": (1 / 16, lambda _: (), "problems"),
    "incidents": (
        1 / 8,
        lambda each: (each["closed_unix_s"] is not None, _urgency(each)),
        "incidents",
    ),
    # Those of one process each are many, that of the machine is one.
    "resources": (
        3 / 16,
        lambda each: (_urgency(each), each["kind"] == "rlimit_as", -(each["ratio"] or 0)),
        "resources",
    ),
    "gpus": (1 / 8, lambda _: (), "GPUs"),
    "tasks": (
        1.0,
        lambda each: (
            _urgency(each),
            each["state"] not in ("paused", "stopped"),
            -(each["ram_bytes"] or 0),
        ),
        "tasks",
    ),
}


def fit(status: dict[str, Any], most_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """
    The same status with so many tasks, resources and incidents as one message holds.

    Those that are in danger or paused come first, then the largest. Long texts and lists of what
    is too large alone are cut. `problems` says how many are left out.

    Args:
        status: as `core.model.status.Status` encodes it.
        most_bytes: of the message.
    """
    found = dict(status)
    for name in ("host", "daemon", "hardware"):
        if _size(found[name]) > _LARGE_PART_BYTES:
            found[name] = _cut(found[name])
    rest = {name: value for name, value in found.items() if name not in _LISTS}
    left = most_bytes - _ENVELOPE_BYTES - _size(rest)
    missing = []
    for name, (share, rank, word) in _LISTS.items():
        kept, size = _kept(status[name], min(left, int(share * most_bytes)), rank)
        left -= size
        found[name] = kept
        if len(kept) < len(status[name]):
            missing.append(f"{len(status[name]) - len(kept)} of {len(status[name])} {word}")
    left_out = f" Left out: {', '.join(missing)}." if missing else ""
    message = f"The status is too long for one message: long texts in it are cut.{left_out}"
    found["problems"] = [
        *found["problems"],
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


def _urgency(entry: Entry) -> int:
    return -_STAGES.index(entry["stage"])


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
