"""
What the live view remembers: the last 15 minutes of each task and each resource. Pure.

Points are (time in s of the epoch, used, limit or None), oldest first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.core.model.status import Resource, Status, Task

SPAN_S = 900.0
_MOST_POINTS = 1200

Point = tuple[float, float, float | None]
Key = tuple[str, str]  # ("task", "PID:START") or (kind of a resource, its subject)


class Past:
    """Series by task and by resource, bounded in time and number."""

    def __init__(self) -> None:
        self._series: dict[Key, deque[Point]] = {}
        self._filled: set[Key] = set()

    def add(self, status: Status) -> None:
        """Take over one status; series that are not in it any more are dropped."""
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
        self._filled &= seen

    def fill(self, key: Key, points: Iterable[Iterable[Any]]) -> None:
        """
        Put what the journal knows before what was seen.

        Args:
            points: as the protocol's `series` has them: [unix_s, used, limit, ...].
        """
        self._filled.add(key)  # known or not: nobody is asked twice
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
        series.extendleft(reversed(before[-_MOST_POINTS:]))
        self._trim(series)

    def filled(self, key: Key) -> bool:
        """Whether the journal was asked already."""
        return key in self._filled

    def of(self, key: Key) -> list[Point]:
        """A series; empty where it is not known."""
        return list(self._series.get(key, ()))

    def _append(self, key: Key, now: float, used: float | None, limit: float | None) -> Key:
        series = self._series.setdefault(key, deque())
        if used is not None and (not series or now > series[-1][0]):
            series.append((now, used, limit))
            self._trim(series)
        return key

    def _trim(self, series: deque[Point]) -> None:
        while series and (series[0][0] < series[-1][0] - SPAN_S or len(series) > _MOST_POINTS):
            series.popleft()


def task_key(task: Task) -> Key:
    """Identity of a task, over reuse of its pid."""
    return "task", f"{task.pid}:{task.start_time}"


def resource_key(resource: Resource) -> Key:
    """Identity of a resource."""
    return resource.kind, resource.subject
