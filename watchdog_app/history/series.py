"""
The journal's series: which points are stored, and which resources can limit which task.

At rest, one point every few minutes is stored, and one after each change. Near a limit, changes are
stored every second. In an alarm every sample is stored, and those of the minute before, so that a
replay shows how the alarm began. If a constant value changes, its last sample is stored, too: a
straight line between points stays correct.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.quantities import parse_pid

_RECENT = 60  # samples of each series kept in memory
_MOST_S = 300.0  # between two points of a constant series
_BAND_SHARE = 0.005  # a change is at least this share of the value ...
# ... and at least this much by unit: a temperature sensor varies by a degree between samples.
_BAND_LEAST = {"bytes": 1024.0 * 1024, "celsius": 2.0, "watts": 10.0, "ratio": 0.01}

_COLUMNS = ("kind", "ident", "name", "path", "pid", "unit")  # columns returned to a reader


class Pace(Enum):
    """How closely a series is stored; the value is the least time in seconds between two points."""

    CALM = 60.0  # temperature far from its limit: it follows the load all day
    REST = 5.0
    NEAR = 0.95
    ALARM = 0.0  # every sample


@dataclass(frozen=True, slots=True)
class Point:
    """One sample. `limit` belongs to a resource, `swap` to a task; None if it has none."""

    unix_s: float
    used: float
    limit: float | None = None
    swap: float | None = None


@dataclass(slots=True)
class _Series:
    """The last samples of one series."""

    kept: Point | None = None
    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=_RECENT))  # since `kept`


class Downsampler:
    """Selects the points to store for any number of series, each under a key of the caller."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}

    def add(self, key: Hashable, point: Point, unit: str, pace: Pace) -> list[Point]:
        """
        The points to store now that `point` was sampled, oldest first.

        Args:
            key: the series.
            point: later than the previous one. An earlier one (the clock was set back) restarts the
                series.
            unit: "bytes" or another.
            pace: how closely to store; an alarm also stores the skipped samples of the last minute.
        """
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series()
        kept = series.kept
        if kept is None or point.unix_s < kept.unix_s:
            series.recent.clear()
            series.kept = point
            return [point]
        if pace is Pace.ALARM:
            found = [*series.recent, point]
        elif self._has_moved(kept, point, unit) and point.unix_s - kept.unix_s >= pace.value:
            before = series.recent[-1] if series.recent else None
            stood = before is not None and not self._has_moved(kept, before, unit)
            found = [before, point] if before is not None and stood else [point]
        elif point.unix_s - kept.unix_s >= _MOST_S:
            found = [point]
        else:
            series.recent.append(point)
            return []
        series.recent.clear()
        series.kept = point
        return found

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Drop every series whose key is not among `keys`, because its task or resource is gone."""
        if len(self._series) > len(keys):
            for key in [key for key in self._series if key not in keys]:
                del self._series[key]

    @staticmethod
    def _has_moved(kept: Point, point: Point, unit: str) -> bool:
        band = max(_BAND_LEAST.get(unit, 0.0), _BAND_SHARE * abs(kept.used))
        return (
            abs(point.used - kept.used) > band
            or abs((point.swap or 0) - (kept.swap or 0)) > band
            or point.limit != kept.limit
        )


@dataclass(frozen=True, slots=True)
class SeriesPoints:
    """New points of one series. `ident` is the same after a restart of the daemon."""

    ident: str
    kind: str  # "task", or the kind of the resource
    name: str
    unit: str
    points: Sequence[Point]
    pid: int | None = None
    path: str | None = None
    resources: Sequence[str] = ()  # for a task: idents of the resources that can limit it


def add_series(db: sqlite3.Connection, item: SeriesPoints) -> None:
    """
    Write the points of one series.

    Args:
        db: the journal, in a transaction.
        item: the series with its new points.
    """
    last_ms, ident = round(item.points[-1].unix_s * 1000), sqlite_text(item.ident)
    path = None if item.path is None else sqlite_text(item.path)
    db.execute(
        "INSERT INTO series (ident, kind, pid, name, path, unit, last_unix_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ident) DO UPDATE SET"
        " name = excluded.name, path = excluded.path, last_unix_ms = excluded.last_unix_ms",
        (ident, item.kind, item.pid, sqlite_text(item.name), path, item.unit, last_ms),
    )
    (id_,) = db.execute("SELECT id FROM series WHERE ident = ?", (ident,)).fetchone()
    db.executemany(
        "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)",
        [
            (
                id_,
                round(p.unix_s * 1000),
                _sqlite_number(p.used),
                _sqlite_number(p.limit),
                _sqlite_number(p.swap),
            )
            for p in item.points
        ],
    )
    db.executemany(
        "INSERT OR IGNORE INTO hits SELECT ?, id FROM series WHERE ident = ?",
        [(id_, sqlite_text(resource)) for resource in item.resources],
    )


def read_series(
    db: sqlite3.Connection,
    task: str | None,
    since_unix_s: float | None,
    until_unix_s: float | None,
    limit: int,
) -> list[dict[str, Any]]:
    """
    The series with points in a time range: the task's first, then those of its resources.

    Args:
        task: pid, or part of a name or path; None: every series.
        limit: most points in total; the newest are kept.

    Returns:
        Per series `{kind, ident, name, path, pid, unit, points}`; points are `[unix_s, used, limit,
        swap]`, oldest first.
    """
    where, values = time_condition(since_unix_s, until_unix_s)
    chosen: list[int] | None = None
    if task is not None:
        condition, wanted = task_condition(task)
        chosen = [
            row[0]
            for row in db.execute(
                f"SELECT id FROM series WHERE kind = 'task' AND ({condition})"  # noqa: S608
                " ORDER BY last_unix_ms DESC LIMIT 200",
                wanted,
            )
        ]
        marks = ",".join("?" * len(chosen))
        chosen += [
            row[0]
            for row in db.execute(
                f"SELECT DISTINCT resource FROM hits WHERE task IN ({marks})",  # noqa: S608
                tuple(chosen),
            )
        ]
        where.append(f"series IN ({','.join('?' * len(chosen))})")
        values += chosen
    points: dict[int, list[list[float | None]]] = {}
    for id_, ms, used, top, swap in db.execute(
        f"SELECT series, unix_ms, used, limit_, swap FROM points"  # noqa: S608
        f" WHERE {' AND '.join(where)} ORDER BY unix_ms DESC LIMIT ?",
        (*values, limit),
    ):
        points.setdefault(id_, []).append([ms / 1000, used, top, swap])
    rows = db.execute("SELECT id, kind, ident, name, path, pid, unit FROM series")
    known = {id_: rest for id_, *rest in rows}
    return [
        {**dict(zip(_COLUMNS, known[id_], strict=True)), "points": points[id_][::-1]}
        for id_ in (chosen if chosen is not None else sorted(points))
        if id_ in points and id_ in known
    ]


def task_condition(task: str) -> tuple[str, list[Any]]:
    """
    SQL condition and values that select the rows of a task.

    Args:
        task: pid, or part of a name or path.
    """
    # SQLite's lower() folds only ASCII, and so does bytes.lower().
    pid, wanted = parse_pid(task), sqlite_text(task).encode("utf-8").lower().decode("utf-8")
    condition = "pid = ? OR (? AND (instr(lower(name), ?) OR instr(lower(path), ?)))"
    return condition, [pid, pid is None, wanted, wanted]


def time_condition(since: float | None, until: float | None) -> tuple[list[str], list[Any]]:
    """
    SQL conditions and values for a query by `unix_ms`.

    Args:
        since: seconds since 1970; None: from the beginning.
        until: seconds since 1970; None: to the end.
    """
    where, values = ["unix_ms >= ?"], [round((since or 0) * 1000)]
    if until is not None:
        where.append("unix_ms <= ?")
        values.append(round(until * 1000))
    return where, values


def sqlite_text(text: str) -> str:
    """A text for SQLite, which requires UTF-8: other bytes of a file name become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _sqlite_number(value: float | None) -> float | int | None:
    """Whole bytes as integers, which take six bytes on disk where a float takes eight."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
