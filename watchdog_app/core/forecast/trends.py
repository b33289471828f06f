"""
Trends: the growth of one series in its own units, independent of any limit.

A trend has a span, a gain and a rate, and still continues. Whether it justifies an action is
decided in `evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise

from watchdog_app.base.records import dataclass
from watchdog_app.core.forecast.scales import BASE_S, Block, concordance, sen_slope

_LEAST, _LEAST_PEAKS = 0.5, 0.6  # least concordance of a trend
_LEAST_TURNS, _TURNS = 4, 8
_FAR_APART_S = 16.0  # least distance of peaks for `read_turns`: half the longest block
# Least concordance, and least final slope per mean slope, of a bend; below, it may be noise.
_BENDS, _STEEPER = 0.9, 1.1


class TrendKind(IntEnum):
    """The part of a series that a trend follows."""

    BOTH = 0  # floor and upper envelope of one scale, if both rise
    PEAKS = 1  # the upper envelope of one scale, if it rises along a line
    LINE = 2  # least squares line since the last change of slope


BOTH, PEAKS, LINE = TrendKind  # a global is read ten times faster than a member


@dataclass(slots=True)
class Trend:
    """Growth of a series over one span. Not frozen, because many are created per second."""

    kind: TrendKind
    start_t: float
    gain: float  # growth of the floor over the span; for PEAKS of the envelope
    level: float  # present upper envelope, which reaches the limit first
    slope: float  # growth per second, above 0
    recent: float = 1.0  # slope of the last third as a share of the mean slope
    agreement: float = 1.0  # Kendall's concordance, at most 1
    misfit: float = 0.0  # largest distance from the line, as a share of the gain
    # Time and value of a recent floor, to check that the growth continues. For PEAKS: time of the
    # last peak, and the longest time to the next one.
    reference: tuple[float, float] = (0.0, 0.0)
    # Present slope and its growth per second, if the growth accelerates over the whole span.
    bend: tuple[float, float] | None = None
    amplitude: float = 0.0  # mean height of a swing within a block, as a share of the gain

    def time_to(self, room: float) -> float:
        """Seconds until the series has grown by `room`; more room never gives less time."""
        if self.bend is None:
            return room / self.slope
        speed, acceleration = self.bend
        return 2.0 * room / (speed + math.sqrt(speed * speed + 2.0 * acceleration * room))


def rises(blocks: Sequence[Block], index: int) -> bool:
    """
    Cheap filter: False for most windows without growth.

    Args:
        blocks: at least two blocks, oldest first.
        index: 1 for the floors, 3 for the upper envelope.
    """
    return blocks[-1][index] > blocks[0][index] and blocks[-2][index] > blocks[1][index]


def read_scale(
    blocks: list[Block], whole: Sequence[Block], scale: int, ignore: float
) -> list[Trend]:
    """
    The trends of one scale; empty if it does not rise.

    Args:
        blocks: blocks, oldest first, with the unfinished one; at least 5.
        whole: finished blocks only.
        scale: index of the scale.
        ignore: differences up to this size count as equal.
    """
    peaks = both = None
    # The unfinished block may still get its peak, unless it is already the highest.
    same = blocks[-1] is whole[-1] or blocks[-1][3] > whole[-1][3]
    if scale >= 3 and len(whole) >= 5:
        peaks = _read_peaks(blocks if same else whole, whole, scale, ignore)
    if rises(blocks, 1) and blocks[-1][3] > blocks[0][3]:
        both = _read_both(blocks, ignore, peaks if same else None)
    return [trend for trend in (peaks, both) if trend is not None]


def _read_both(blocks: list[Block], ignore: float, peaks: Trend | None) -> Trend | None:
    """Growth of floor and upper envelope together; `peaks`: the envelope's trend, if known."""
    low_times, floors, high_times, tops = zip(*blocks, strict=True)
    agree_low = concordance(floors, ignore, _LEAST)
    if agree_low < _LEAST:
        return None
    agree_high = peaks.agreement if peaks else concordance(tops, ignore, _LEAST)
    if agree_high < _LEAST:
        return None
    low = sen_slope(low_times, floors)
    high = peaks.slope if peaks else sen_slope(high_times, tops)
    if low <= 0.0 or high <= 0.0:
        return None
    # An envelope that rises much faster than its floor is a burst on top of the growth.
    slope = low if high > 2.0 * low else 0.5 * (high + low)
    first, last = blocks[-3], blocks[-1]
    recent = (last[3] - first[3]) / max(1e-6, last[2] - first[2]) / slope
    agreement = agree_high if agree_high < agree_low else agree_low
    start_t = low_times[0] if low_times[0] < high_times[0] else high_times[0]
    # A single spike is not the envelope: take the second highest of three blocks.
    level = sorted(tops[-3:])[1] if recent > 0.0 else last[3]
    trend = Trend(BOTH, start_t, last[1] - floors[0], level, slope, recent, agreement)
    trend.reference = blocks[-2][0], blocks[-2][1]
    if agreement >= _BENDS and recent >= _STEEPER:
        trend.bend = _read_bend(blocks)
    return trend


def _read_bend(blocks: list[Block]) -> tuple[float, float] | None:
    """(present slope, its growth per second) if every third is steeper than the previous."""
    last = len(blocks) - 1
    marks = [blocks[i] for i in (0, round(last / 3), round(2 * last / 3), last)]
    times = [0.5 * (b[0] + b[2]) for b in marks]
    values = [0.5 * (b[1] + b[3]) for b in marks]
    slopes = [(values[i + 1] - values[i]) / max(1e-6, times[i + 1] - times[i]) for i in range(3)]
    if not (0.1 * slopes[2] < slopes[0] and 1.1 * slopes[0] < slopes[1] < slopes[2] / 1.1):
        return None
    span = times[3] - times[0]
    acceleration = (slopes[2] - slopes[0]) / max(1e-6, 2.0 * span / 3.0)
    return slopes[2] + acceleration * span / 6.0, acceleration


def _read_peaks(
    used: Sequence[Block], whole: Sequence[Block], scale: int, ignore: float
) -> Trend | None:
    """Growth of the upper envelope of the blocks `used`."""
    if not rises(used, 3):
        return None
    _, _, times, values = zip(*used, strict=True)
    gain = values[-1] - values[0]
    if gain <= ignore:
        return None
    agreement = concordance(values, ignore, _LEAST_PEAKS)
    if agreement < _LEAST_PEAKS:
        return None
    third = max(2, len(values) // 3)
    rise = values[-1] - values[-1 - third]
    block_s = BASE_S * (1 << scale)
    trend = _line_of_peaks(times, values, rise / max(1e-6, times[-1] - times[-1 - third]))
    if trend is not None:
        trend.agreement, trend.reference = agreement, (times[-1], 2.0 * block_s)
        # The height of the blocks, less the part due to steady growth.
        height = sum([b[3] - b[1] for b in whole]) / len(whole)
        trend.amplitude = max(0.0, height - trend.slope * block_s) / gain
    return trend


def _line_of_peaks(
    times: Sequence[float], values: Sequence[float], late_slope: float
) -> Trend | None:
    """
    The trend of the line through some peaks; None: the line does not rise.

    Args:
        times: times of the peaks, oldest first.
        values: heights of the peaks; the last is above the first.
        late_slope: slope of the last peaks only.
    """
    slope = sen_slope(times, values)
    if slope <= 0.0:
        return None
    gain = values[-1] - values[0]
    offsets = sorted([v - slope * (t - times[0]) for t, v in zip(times, values, strict=True)])
    middle = offsets[len(offsets) // 2]
    return Trend(
        PEAKS,
        start_t=times[0],
        gain=gain,
        level=max(values[-1], values[-2]),
        slope=slope,
        recent=late_slope / slope,
        misfit=max(offsets[-1] - middle, middle - offsets[0]) / gain,
    )


def read_turns(
    peaks: Sequence[tuple[float, float]], troughs: Sequence[tuple[float, float]]
) -> Trend | None:
    """
    The trend of peaks that are too far apart for any scale, such as validations over a slow leak.

    Args:
        peaks: (time, value) of the peaks, oldest first.
        troughs: (time, value) of the troughs between them.
    """
    last = list(peaks)[-_TURNS:]
    if len(last) < _LEAST_TURNS or not troughs:
        return None
    times, values = [t for t, _ in last], [v for _, v in last]
    gaps = sorted(b - a for a, b in pairwise(times))
    period = gaps[len(gaps) // 2]
    gain = values[-1] - values[0]
    # The scales cover shorter periods. Peaks without a steady period predict nothing.
    if period < _FAR_APART_S or gaps[-1] > 2.0 * gaps[0] or gain <= 0.0:
        return None
    late_slope = (values[-1] - values[-2]) / (times[-1] - times[-2])
    trend = _line_of_peaks(times, values, late_slope)
    if trend is not None:
        trend.agreement, trend.reference = concordance(values, 0.0), (times[-1], 2.0 * period)
        inner = [v for t, v in troughs if t > times[0]] or [troughs[-1][1]]
        height = sum(values) / len(values) - sum(inner) / len(inner)
        trend.amplitude = max(0.0, height) / gain
    return trend
