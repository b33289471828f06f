"""
The journal's series: points of tasks and of resources, and which resources can hit which task.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchdog_app.base.text.quantities import pid_in
from watchdog_app.history.downsampling import Point


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


def add_series(db: sqlite3.Connection, ids: dict[str, int], item: SeriesPoints) -> None:
    """Write the points of one series; `ids` is the caller's memory of the rows' numbers."""
    last_ms = round(item.points[-1].unix_s * 1000)
    id_ = _series_id(db, ids, item, last_ms)
    db.executemany(
        "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?)",
        [
            (id_, round(p.unix_s * 1000), _small(p.used), _small(p.limit), _small(p.swap))
            for p in item.points
        ],
    )
    db.execute("UPDATE series SET last_unix_ms = ? WHERE id = ?", (last_ms, id_))
    for resource in item.resources:
        db.execute(
            "INSERT OR IGNORE INTO hits SELECT ?, id FROM series WHERE ident = ?",
            (id_, _stored(resource)),
        )


def _series_id(
    db: sqlite3.Connection, ids: dict[str, int], item: SeriesPoints, last_ms: int
) -> int:
    id_ = ids.get(item.ident)
    if id_ is None:
        ident = _stored(item.ident)
        db.execute(
            "INSERT INTO series (ident, kind, pid, name, path, unit, last_unix_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ident) DO UPDATE"
            " SET name = excluded.name, path = excluded.path",
            (
                ident,
                item.kind,
                item.pid,
                to_column(item.name),
                to_column(item.path),
                item.unit,
                last_ms,
            ),
        )
        row = db.execute("SELECT id FROM series WHERE ident = ?", (ident,)).fetchone()
        id_ = int(row[0])
        ids[item.ident] = id_
    return id_


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
    where, values = between(since_unix_s, until_unix_s)
    chosen: list[int] | None = None
    if task is not None:
        wanted = folded(task)
        pid = pid_in(task)
        numbers = [pid, *pids]
        marks = ",".join("?" * len(numbers))
        chosen = [
            row[0]
            for row in db.execute(
                f"SELECT id FROM series WHERE kind = 'task' AND (pid IN ({marks})"  # noqa: S608
                " OR (? AND (ident = ? OR instr(lower(name), ?) OR instr(lower(path), ?))))"
                " ORDER BY last_unix_ms DESC LIMIT 200",
                (*numbers, pid is None, _stored(task), wanted, wanted),
            )
        ]
        marks = ",".join("?" * len(chosen))
        chosen += [
            row[0]
            for row in db.execute(
                f"SELECT DISTINCT ceiling FROM hits WHERE task IN ({marks})",  # noqa: S608
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
    found: list[dict[str, Any]] = []
    for id_ in chosen if chosen is not None else sorted(points):
        row = db.execute(
            "SELECT kind, ident, name, path, pid, unit FROM series WHERE id = ?", (id_,)
        ).fetchone()
        if id_ in points and row is not None:
            kind, ident, name, path, pid, unit = row
            found.append(
                {
                    "kind": kind,
                    "ident": ident,
                    "name": from_column(name),
                    "path": from_column(path),
                    "pid": pid,
                    "unit": unit,
                    "points": points[id_][::-1],
                }
            )
    return found


def between(since: float | None, until: float | None) -> tuple[list[str], list[Any]]:
    """Conditions and values for a query over `unix_ms`."""
    where, values = ["unix_ms >= ?"], [round((since or 0) * 1000)]
    if until is not None:
        where.append("unix_ms <= ?")
        values.append(round(until * 1000))
    return where, values


def to_column(text: str | None) -> str | None:
    """SQLite's texts are UTF-8; the names of files are not always."""
    return None if text is None else text.encode("utf-8", "surrogatepass").decode("latin-1")


def from_column(text: str | None) -> str | None:
    """What was given to `to_column`."""
    return None if text is None else text.encode("latin-1").decode("utf-8", "surrogatepass")


def _stored(ident: str) -> str:
    """As it is, unless the name of a group or a folder in it is no UTF-8, which SQLite's are."""
    return ident.encode("utf-8", "backslashreplace").decode("utf-8")


def folded(text: str) -> str:
    """A column's text as SQLite's lower() makes it: ASCII alone is folded."""
    return text.encode("utf-8", "surrogatepass").lower().decode("latin-1")


def _small(value: float | None) -> float | int | None:
    """Whole bytes as whole numbers: six bytes on disk where a fraction takes eight."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
