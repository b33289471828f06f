"""
A series on several time scales at once, in bounded memory.

Each scale keeps its last blocks. A block holds the lowest and highest value with their times. The
lowest values (floor) show the memory that a program keeps. The highest values (upper envelope)
reach the limit first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations, pairwise

Block = tuple[float, float, float, float]  # (time of lowest, lowest, time of highest, highest)
BASE_S = 0.25  # length of the shortest block: 2 to 3 samples at 10 Hz
LEVELS = 8  # blocks of 0.25 s to 32 s
BLOCKS = 8  # blocks per scale: windows of 2 s to 256 s


# Half a base block of tolerance, so that uneven sampling does not lengthen every block.
_ENOUGH_S = tuple(BASE_S * (1 << level) - 0.5 * BASE_S for level in range(LEVELS))
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
        point = (t, value, t, value)
        if self._base is None:
            self._base_start = t
        base = self._base = point if self._base is None else join(self._base, point)
        if t - self._base_start < BASE_S - 1e-6:
            return False
        self.levels[0].append(base)
        self._merge_up(base, t)
        self._base, self._base_start = point, t
        return True

    def _merge_up(self, block: Block, t: float) -> None:
        self._acc_end = t
        accs, starts = self._acc, self._acc_start
        for level in range(1, LEVELS):
            acc = accs[level]
            if acc is None:
                starts[level] = self._base_start
            accs[level] = merged = block if acc is None else join(acc, block)
            if t - starts[level] >= _ENOUGH_S[level]:
                self.levels[level].append(merged)
                accs[level] = None

    def window(self, level: int) -> list[Block]:
        """The blocks of one scale, oldest first, with the unfinished block if long enough."""
        blocks, acc = list(self.levels[level]), self._acc[level]
        length = self._acc_end - self._acc_start[level]
        if acc is not None and length >= _PARTIAL * BASE_S * (1 << level):
            blocks.append(acc)
        return blocks[-BLOCKS:]


def join(a: Block, b: Block) -> Block:
    """One block that covers two neighbours; `b` is the later one."""
    low = (b[0], b[1]) if b[1] < a[1] else (a[0], a[1])
    high = (b[2], b[3]) if b[3] >= a[3] else (a[2], a[3])
    return (*low, *high)


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
    if all(later - earlier > ignore for earlier, later in pairwise(values)):
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
        values: values of the points.
    """
    slopes = [
        (later - earlier) / (end - begin)
        for (begin, earlier), (end, later) in combinations(zip(times, values, strict=True), 2)
        if end > begin
    ]
    if not slopes:
        return 0.0
    slopes.sort()
    half = len(slopes) // 2
    return slopes[half] if len(slopes) % 2 else 0.5 * (slopes[half - 1] + slopes[half])
