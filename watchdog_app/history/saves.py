"""
Merges consecutive saves of one training into one entry of the history. Pure.

Near its end a training is saved once a second. Each save is a decision and an outcome in the
journal. The journal keeps them all; clients get one entry per series.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.decisions import DecisionKind

Entry = Mapping[str, Any]

MOST_ROWS = 20_000  # rows read for one answer
_GAP_S = 300.0  # a longer gap between two saves separates two series
_BY_A_PERSON = "request-"  # prefix of the id of a person's request
_SAVE = DecisionKind.CHECKPOINT.value
_NOTICE = DecisionKind.NOTIFY.value


@dataclass(slots=True)
class _Series:
    """Saves of one training with the same result, requests without outcome, or any single entry."""

    newest: Entry
    oldest: Entry
    count: int = 1
    requests: list[Entry] = field(default_factory=list)  # of the counted saves, newest first

    def entries(self) -> Iterator[Entry]:
        if self.count == 1:
            yield self.newest
            yield from self.requests
            return
        reason = {"reason": self.requests[0].get("reason")} if self.requests else {}
        yield {
            **reason,
            **self.newest,
            "count": self.count,
            "first_unix_s": self.oldest["unix_s"],
            "last_unix_s": self.newest["unix_s"],
            "first_step": _step(self.oldest),
            "last_step": _step(self.newest),
        }


def fold_saves(entries: Iterable[Entry], limit: int) -> list[dict[str, Any]]:
    """
    At most `limit` entries, newest first, with each series of saves as one entry.

    That entry is the newest outcome with `count`, `first_unix_s`, `last_unix_s`, `first_step` and
    `last_step`. For requests without an outcome it is the newest request.

    Args:
        entries: newest first; read only as far as needed.
        limit: most entries to return.
    """
    found: list[_Series] = []
    growing: dict[Any, _Series] = {}  # by training and result
    asked: dict[Any, _Series] = {}  # by id of a request: the series that holds its outcome
    for entry in entries:
        at, key = entry["unix_s"], _series_key(entry)
        full = len(found) >= limit
        if full and not any(
            series.oldest["unix_s"] - at <= _GAP_S
            for series in (*growing.values(), *asked.values())
        ):
            break
        if key is None and _ends_series(entry):
            growing = {each: growing[each] for each in growing if each[0] != entry.get("pid")}
        request_of = asked.pop(entry.get("id"), None) if entry["kind"] == "decision" else None
        series = growing.get(key)
        if request_of is not None:
            request_of.requests.append(entry)
            continue
        if series is not None and series.oldest["unix_s"] - at <= _GAP_S:
            series.oldest = entry
            series.count += 1
        elif full:
            continue
        else:
            series = _Series(entry, entry)
            found.append(series)
            if key is not None:
                growing[key] = series
        if key is not None and entry["kind"] == "outcome":
            asked[entry.get("decision")] = series
    told = [dict(entry) for series in found for entry in series.entries()]
    return sorted(told, key=lambda entry: -float(entry["unix_s"]))[:limit]


def _series_key(entry: Entry) -> tuple[object, ...] | None:
    """The key that all saves of a series share; None: the entry is not an automatic save."""
    pid, name = entry.get("pid"), entry.get("name")
    if entry.get("decision_kind") != _SAVE or pid is None:
        return None
    by_a_person = str(entry.get("decision")).startswith(_BY_A_PERSON)
    if entry["kind"] == "outcome" and not by_a_person:
        # The rescue's folder: each process of a training has its own.
        path = evidence_of(entry).get("path")
        folder = os.path.dirname(path) if isinstance(path, str) else None
        return (pid, name, entry.get("status"), folder)
    if entry["kind"] == "decision" and entry.get("by") == "watchdog":
        return (pid, name, None, None)
    return None


def _step(entry: Entry) -> int | None:
    step = evidence_of(entry).get("step")
    return step if isinstance(step, int) else None


def evidence_of(entry: Entry) -> Mapping[str, Any]:
    """The evidence of an entry of the journal; empty: it has none."""
    found = entry.get("evidence")
    return found if isinstance(found, Mapping) else {}


def _ends_series(entry: Entry) -> bool:
    """Whether the entry ends a series: the training was paused, resumed, or died."""
    if entry["kind"] == "exit":
        return True
    return entry["kind"] in ("decision", "outcome") and entry.get("decision_kind") not in (
        _SAVE,
        _NOTICE,
    )
