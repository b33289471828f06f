"""
Which samples of a series are worth keeping: pure, one `Thinner` for all series.

At rest a point every few minutes is enough, and one whenever the value moved;
near a resource moves are kept second by second, and in an alarm every sample,
with the minute before, so that a replay sees how it began. Where the value
stood still and then moved, the last sample of the standstill is kept too: a
straight line between points stays true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from enum import Enum

_RECENT = 60  # samples of each series held in memory
_MOST_S = 300.0  # between two points of a series that stands still
_BAND_SHARE = 0.005  # a move is this share of the value ...
# ... and at least this much by unit: a sensor of heat wavers by a degree from look to look.
_BAND_LEAST = {"bytes": 1024.0 * 1024, "celsius": 2.0, "watts": 10.0, "ratio": 0.01}


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
    kept: Point | None = None
    recent: deque[Point] = field(default_factory=lambda: deque(maxlen=_RECENT))  # after `kept`


class Thinner:
    """Decides for any number of series, each under a key of the caller's choice."""

    def __init__(self) -> None:
        self._series: dict[Hashable, _Series] = {}

    def offer(self, key: Hashable, point: Point, unit: str, pace: Pace) -> list[Point]:
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
        elif self._moved(kept, point, unit) and point.unix_s - kept.unix_s >= pace.value:
            before = series.recent[-1] if series.recent else None
            stood = before is not None and not self._moved(kept, before, unit)
            found = [before, point] if before is not None and stood else [point]
        elif point.unix_s - kept.unix_s >= _MOST_S:
            found = [point]
        else:
            series.recent.append(point)
            return []
        series.recent.clear()
        series.kept = point
        return found

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Drop every series whose key is not among `keys`: its task or resource is gone."""
        if len(self._series) > len(keys):
            for key in [key for key in self._series if key not in keys]:
                del self._series[key]

    @staticmethod
    def _moved(kept: Point, point: Point, unit: str) -> bool:
        band = max(_BAND_LEAST.get(unit, 0.0), _BAND_SHARE * abs(kept.used))
        return (
            abs(point.used - kept.used) > band
            or abs((point.swap or 0) - (kept.swap or 0)) > band
            or point.limit != kept.limit
        )
