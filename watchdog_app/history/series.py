"""
The journal's series: which points are kept, and which resources can hit which task.

At rest a point every few minutes is enough, and one whenever the value moved. Near a limit moves
are kept second by second. In an alarm every sample is kept, with the minute before: a replay sees
how it began. Where the value stood still and then moved, the last sample of the standstill is kept
too: a straight line between points stays true.
"""

from __future__ import annotations

import math
import sqlite3
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from watchdog_app.base.text.quantities import parse_pid

_RECENT = 60  # samples of each series held in memory
_MOST_S = 300.0  # between two points of a series that stands still
_BAND_SHARE = 0.005  # a move is this share of the value ...
# ... and at least this much by unit: a sensor of heat wavers by a degree from look to look.
_BAND_LEAST = {"bytes": 1024.0 * 1024, "celsius": 2.0, "watts": 10.0, "ratio": 0.01}

_COLUMNS = ("kind", "ident", "name", "path", "pid", "unit")  # columns that a reader gets


class Pace(Enum):
    """How closely a series is kept; the value is the least time between two points of it."""

    CALM = 60.0  # heat far from its limit: it follows the load, all day
    REST = 5.0
    NEAR = 0.95
    ALARM = 0.0  # every sample


@dataclass(frozen=True, slots=True)
class Point:
    """One value worth keeping. `limit` is a resource's, `swap` a task's; None where it has none."""

    unix_s: float
    used: float
    limit: float | None = None
    swap: float | None = None


@dataclass(slots=True)
class _Series:
    """The points of one series that were seen last."""

    kept: Point | None = None
    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=_RECENT))  # after `kept`


class Downsampler:
    """Decides for any number of series, each under a key of the caller's choice."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}

    def add(self, key: Hashable, point: Point, unit: str, pace: Pace) -> list[Point]:
        """
        The points to keep now that `point` was sampled, oldest first.

        Args:
            key: of the series.
            point: later than the one offered before; an earlier one (the clock was set back)
                starts the series anew.
            unit: "bytes" or another.
            pace: how closely; an alarm also keeps what was left out of the last minute.
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
        """Drop every series whose key is not among `keys`: its task or resource is gone."""
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
    """New points of one series. `ident` stays its own over restarts of the daemon."""

    ident: str
    kind: str  # "task", or the kind of the resource
    name: str
    unit: str
    points: Sequence[Point]
    pid: int | None = None
    path: str | None = None
    resources: Sequence[str] = ()  # of a task: idents of the resources that can hit it


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
    *,
    pids: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """
    Series with points in the given time, the task's own first, then its resources'.

    Args:
        task: pid, or part of a name or path; None: every series.
        limit: most points in all; the newest are kept.
        pids: others that the task had before.

    Returns:
        For each `{kind, ident, name, path, pid, unit, points}`; points are
        `[unix_s, used, limit, swap]`, oldest first.
    """
    where, values = time_condition(since_unix_s, until_unix_s)
    chosen: list[int] | None = None
    if task is not None:
        condition, wanted = task_condition(task, pids)
        chosen = [
            row[0]
            for row in db.execute(
                f"SELECT id FROM series WHERE kind = 'task' AND ({condition} OR ident = ?)"  # noqa: S608
                " ORDER BY last_unix_ms DESC LIMIT 200",
                (*wanted, sqlite_text(task)),
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


def task_condition(task: str, pids: Sequence[int] = ()) -> tuple[str, list[Any]]:
    """
    Condition and values for the rows of a task.

    Args:
        task: pid, or part of a name or path.
        pids: others that the task had before.
    """
    # SQLite's lower() folds ASCII alone, and so does that of bytes.
    pid, wanted = parse_pid(task), sqlite_text(task).encode("utf-8").lower().decode("utf-8")
    marks = ",".join("?" * (1 + len(pids)))
    condition = f"pid IN ({marks}) OR (? AND (instr(lower(name), ?) OR instr(lower(path), ?)))"
    return condition, [pid, *pids, pid is None, wanted, wanted]


def time_condition(since: float | None, until: float | None) -> tuple[list[str], list[Any]]:
    """
    Conditions and values for a query over `unix_ms`.

    Args:
        since: seconds of the epoch; None: from the beginning.
        until: seconds of the epoch; None: to the end.
    """
    where, values = ["unix_ms >= ?"], [round((since or 0) * 1000)]
    if until is not None:
        where.append("unix_ms <= ?")
        values.append(round(until * 1000))
    return where, values


def sqlite_text(text: str) -> str:
    """As it is; bytes of a file's name that are no UTF-8, as SQLite's texts are, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _sqlite_number(value: float | None) -> float | int | None:
    """Whole bytes as whole numbers: six bytes on disk where a fraction takes eight."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
