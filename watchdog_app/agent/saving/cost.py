"""What the next save will cost: guessed at first, measured from then on, rather too much."""

from __future__ import annotations

from collections import deque

# A save that nobody has measured: a slow disk of a laptop, and opening, syncing and renaming.
_DEFAULT_BYTES_PER_S = 100e6
_DEFAULT_FIXED_S = 0.1

_RECENT = 3
# The fastest that a saved byte is believed to be: a write cache that took a few MiB in no time
# says nothing about gigabytes.
_FASTEST_BYTES_PER_S = 1e9


class SaveCost:
    """Seconds that a save of so many bytes takes, never less than the recent ones took."""

    def __init__(self) -> None:
        self._rehearsal: tuple[int, float] | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT)

    def rehearsed(self, nbytes: int, seconds: float) -> None:
        """A few bytes were written the way a save writes."""
        self._rehearsal = (nbytes, seconds)

    def measured(self, nbytes: int, seconds: float) -> None:
        """A save took this long."""
        self._recent.append((nbytes, seconds))

    def predict(self, nbytes: int) -> float:
        """Seconds for `nbytes`: the worst that the recent saves, or the rehearsal, promise."""
        if self._recent:
            return max(_scaled(nbytes, size, seconds) for size, seconds in self._recent)
        guess = _DEFAULT_FIXED_S + nbytes / _DEFAULT_BYTES_PER_S
        if self._rehearsal is not None:
            size, seconds = self._rehearsal
            # The rehearsal is mostly fixed cost: it can make the guess worse, hardly better.
            guess = max(guess, seconds + (nbytes - size) / _DEFAULT_BYTES_PER_S)
        return guess


def _scaled(nbytes: int, size: int, seconds: float) -> float:
    """What `seconds` for `size` bytes means for `nbytes`: never less, more by the measured rate."""
    more = nbytes - size
    if more <= 0:
        return seconds
    rate = min(size / seconds if seconds > 0 else _FASTEST_BYTES_PER_S, _FASTEST_BYTES_PER_S)
    return seconds + more / max(rate, 1.0)
