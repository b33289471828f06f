"""
A series seen on many time scales at once, in bounded memory.

Each scale keeps its last few blocks, and of each block the lowest and the
highest value with their times: the floor is what a program retains, the upper
envelope is what meets the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Block = tuple[float, float, float, float]  # (time of lowest, lowest, time of highest, highest)

BASE_S = 0.25  # shortest block; 2 to 3 samples at 10 Hz
LEVELS = 8  # blocks of 0.25 s to 32 s
BLOCKS = 8  # windows of 2 s to 256 s
_PARTIAL = 0.4  # an unfinished block counts from this share of its length on


class Pyramid:
    """Blocks of doubling length over one series."""

    __slots__ = ("_acc", "_acc_end", "_acc_start", "_base", "_base_start", "levels")

    def __init__(self) -> None:
        self.levels: list[deque[Block]] = [deque(maxlen=BLOCKS) for _ in range(LEVELS)]
        self._base: Block | None = None
        self._base_start = 0.0
        self._acc: list[Block | None] = [None] * LEVELS
        self._acc_start = [0.0] * LEVELS
        self._acc_end = 0.0

    def add(self, t: float, value: float) -> bool:
        """Take a sample; True when it completed a block of the shortest scale."""
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
        for level in range(1, LEVELS):
            acc = self._acc[level]
            if acc is None:
                acc = block
                self._acc_start[level] = start
            elif block[1] < acc[1] or block[3] >= acc[3]:
                acc = join(acc, block)
            # Half a base block of slack: uneven sampling must not stretch every block by one.
            if t - self._acc_start[level] >= BASE_S * (1 << level) - 0.5 * BASE_S:
                self.levels[level].append(acc)
                self._acc[level] = None
            else:
                self._acc[level] = acc

    def window(self, level: int) -> list[Block]:
        """The blocks of one scale, oldest first, with the unfinished one if long enough."""
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
    """One block that spans two neighbours, `b` the later one."""
    low = (b[0], b[1]) if b[1] < a[1] else (a[0], a[1])
    high = (b[2], b[3]) if b[3] >= a[3] else (a[2], a[3])
    return (*low, *high)


def sen_slope(
    times: Sequence[float], values: Sequence[float], ignore: float, least: float = -1.0
) -> tuple[float, float]:
    """
    Sen's slope of a few points and how far they agree on its sign.

    Args:
        times: increasing, or equal.
        values: as many.
        ignore: differences up to this much are neither up nor down.
        least: concordance under which the slope does not matter.

    Returns:
        Median of the slopes between all pairs, 0.0 when the concordance is under `least`;
        Kendall's concordance, -1 to 1, or a bound on it that is under `least`.
    """
    n = len(values)
    pairs = n * (n - 1) // 2
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
            # Noise is told here, before any slope is worked out: rest has to be cheap.
            return 0.0, (pairs - 2 * downs) / pairs
    if not pairs:
        return 0.0, 0.0
    agreement = (ups - downs) / pairs
    if agreement < least:
        return 0.0, agreement
    slopes = [
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(n - 1)
        for j in range(i + 1, n)
        if times[j] > times[i]
    ]
    count = len(slopes)
    if not count:
        return 0.0, 0.0
    slopes.sort()
    half = count >> 1
    median = slopes[half] if count & 1 else 0.5 * (slopes[half - 1] + slopes[half])
    return median, agreement
