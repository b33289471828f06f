"""
A series on several time scales at once, in bounded memory.

Each scale keeps its last blocks. A block holds the lowest and highest value with their times. The
lowest values (floor) show the memory that a program keeps. The highest values (upper envelope)
reach the limit first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

Block = tuple[float, float, float, float]  # (time of lowest, lowest, time of highest, highest)
BASE_S = 0.25  # length of the shortest block: 2 to 3 samples at 10 Hz
LEVELS = 8  # blocks of 0.25 s to 32 s
BLOCKS = 8  # blocks per scale: windows of 2 s to 256 s


# Half a base block of tolerance, so that uneven sampling does not lengthen every block.
_ENOUGH_S = tuple(BASE_S * (1 << level) - 0.5 * BASE_S for level in range(LEVELS))
_PAIRS = [
    [(i, j) for i in range(count) for j in range(i + 1, count)] for count in range(BLOCKS + 2)
]
_PARTIAL = 0.4  # share of its length from which an unfinished block counts


class Scales:
    """Blocks of one series; each scale has twice the block length of the previous."""

    __slots__ = ("_acc", "_acc_end", "_acc_start", "_base", "_base_start", "levels")

    def __init__(self) -> None:
        self.levels: list[deque[Block]] = [deque(maxlen=BLOCKS) for _ in range(LEVELS)]
        self._base: Block | None = None
        self._base_start = 0.0
        self._acc: list[Block | None] = [None] * LEVELS
        self._acc_start = [0.0] * LEVELS
        self._acc_end = 0.0

    def add(self, t: float, value: float) -> bool:
        """
        Add a sample.

        Args:
            t: time in seconds.
            value: level in the resource's unit.

        Returns:
            Whether the sample completed a block of the shortest scale.
        """
        base = self._base
        if base is None:
            self._base = (t, value, t, value)
            self._base_start = t
            return False
        if value < base[1]:
            base = self._base = (t, value, base[2], base[3])
        if value >= base[3]:
            base = self._base = (base[0], base[1], t, value)
        if t - self._base_start < BASE_S - 1e-6:
            return False
        self.levels[0].append(base)
        self._merge_up(base, t)
        self._base = (t, value, t, value)
        self._base_start = t
        return True

    def _merge_up(self, block: Block, t: float) -> None:
        start = self._base_start
        self._acc_end = t
        low, high = block[1], block[3]
        accs, starts = self._acc, self._acc_start
        for level in range(1, LEVELS):
            acc = accs[level]
            if acc is None:
                acc = block
                starts[level] = start
            elif low < acc[1] or high >= acc[3]:
                acc = join(acc, block)
            if t - starts[level] >= _ENOUGH_S[level]:
                self.levels[level].append(acc)
                accs[level] = None
            else:
                accs[level] = acc

    def window(self, level: int) -> list[Block]:
        """The blocks of one scale, oldest first, with the unfinished block if long enough."""
        blocks = list(self.levels[level])
        acc = self._acc[level]
        if acc is not None:
            length = BASE_S * (1 << level)
            if self._acc_end - self._acc_start[level] >= _PARTIAL * length:
                blocks.append(acc)
                if len(blocks) > BLOCKS:
                    del blocks[0]
        return blocks


def join(a: Block, b: Block) -> Block:
    """
    One block that covers two neighbours; `b` is the later one.

    Args:
        a: the earlier block.
        b: the later block.
    """
    if b[1] < a[1]:
        return b if b[3] >= a[3] else (b[0], b[1], a[2], a[3])
    return (a[0], a[1], b[2], b[3]) if b[3] >= a[3] else a


def concordance(values: Sequence[float], ignore: float, least: float = -1.0) -> float:
    """
    Kendall's concordance of a few values in order: how consistently they rise.

    Args:
        values: values, oldest first.
        ignore: differences up to this size count as equal.
        least: smallest value that the caller needs; below it, the result may be an upper bound.

    Returns:
        -1 (every pair falls) to 1 (every pair rises).
    """
    n = len(values)
    pairs = n * (n - 1) // 2
    if not pairs:
        return 0.0
    last = -math.inf
    for value in values:
        if value - last <= ignore:
            break
        last = value
    else:
        return 1.0
    most_downs = 0.5 * (1.0 - least) * pairs
    ups = downs = 0
    for i in range(n - 1):
        above, below = values[i] + ignore, values[i] - ignore
        for v in values[i + 1 :]:
            if v > above:
                ups += 1
            elif v < below:
                downs += 1
        if downs > most_downs:
            # The series is noise, not growth. Return early, so that idle series cost little.
            return (pairs - 2 * downs) / pairs
    return (ups - downs) / pairs


def sen_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """
    Sen's slope of a few points: the median over all pairs.

    Args:
        times: times of the points, not decreasing.
        values: values of the points, at most 9.
    """
    pairs = _PAIRS[len(values)]
    try:
        slopes = [(values[j] - values[i]) / (times[j] - times[i]) for i, j in pairs]
    except ZeroDivisionError:
        slopes = [
            (values[j] - values[i]) / (times[j] - times[i]) for i, j in pairs if times[j] > times[i]
        ]
    count = len(slopes)
    if not count:
        return 0.0
    slopes.sort()
    half = count >> 1
    return slopes[half] if count & 1 else 0.5 * (slopes[half - 1] + slopes[half])
