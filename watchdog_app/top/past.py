"""
The data behind the trends: the last 15 minutes of each task and each resource. Pure.

Points are (Unix time in s, used, limit or None), oldest first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.core.model.status import Resource, Status, Task

SPAN_S = 900.0
_MAX_POINTS = 1200

Point = tuple[float, float, float | None]
Key = tuple[str, str]  # ("task", "PID:START") or (kind of the resource, its subject)


class SeriesHistory:
    """Series by task and by resource, bounded in time and number."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[Point]] = {}
        self._requested: set[Key] = set()

    def add(self, status: Status) -> None:
        """Append the readings of a status; drop the series that the status no longer has."""
        now = status.time_unix_s
        if now is None:
            return
        seen: set[Key] = set()
        for task in status.tasks:
            seen.add(self._append(task_key(task), now, task.ram_bytes, None))
        for resource in status.resources:
            key = resource_key(resource)
            seen.add(self._append(key, now, resource.used, resource.limit))
        for gone in self._series.keys() - seen:
            del self._series[gone]
        self._requested &= seen

    def prepend(self, key: Key, points: Iterable[Iterable[Any]]) -> None:
        """
        Insert points from the journal before the existing points.

        Args:
            key: the series; ignored if the series is unknown.
            points: points as the protocol's `series` has them: [unix_s, used, limit, ...].
        """
        self._requested.add(key)  # even without points: one request is enough
        series = self._series.get(key)
        if series is None:
            return
        begin = series[0][0] if series else math.inf
        before: list[Point] = []
        for point in points:
            values = list(point)
            at, used = (number_or_none(each) for each in (*values[:2], None, None)[:2])
            if at is not None and used is not None and at < begin:
                limit = number_or_none(values[2]) if len(values) > 2 else None
                before.append((at, used, limit))
        series.extendleft(reversed(before[-_MAX_POINTS:]))
        self._trim(series)

    def is_requested(self, key: Key) -> bool:
        """Return whether the journal was already asked for the series."""
        return key in self._requested

    def points(self, key: Key) -> list[Point]:
        """Return the points of a series; empty for an unknown key."""
        return list(self._series.get(key, ()))

    def _append(self, key: Key, now: float, used: float | None, limit: float | None) -> Key:
        series = self._series.setdefault(key, deque())
        if used is not None and (not series or now > series[-1][0]):
            series.append((now, used, limit))
            self._trim(series)
        return key

    def _trim(self, series: deque[Point]) -> None:
        while series and (series[0][0] < series[-1][0] - SPAN_S or len(series) > _MAX_POINTS):
            series.popleft()


def task_key(task: Task) -> Key:
    """Return the key of a task, unique even if its pid is reused."""
    return "task", f"{task.pid}:{task.start_time}"


def resource_key(resource: Resource) -> Key:
    """Return the key of a resource."""
    return resource.kind, resource.subject
