"""
A batch in parts: how large they may be, as far as errors of memory have taught.

    micro = MicroBatches()
    while True:
        try:
            for part in micro.parts(len(batch)): ...
            break
        except MemoryError:
            if not micro.halve(len(batch)): raise

The size is kept: what did not fit once is not tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from watchdog_app.agent.contain import print_message
from watchdog_app.agent.oom import watch

T = TypeVar("T")

FIELD = "micro_batch"  # in what is saved with a rescue


class MicroBatches:
    """The samples that go through the model at once."""

    def __init__(self) -> None:
        self.size: int | None = None  # None: whole batches fit, as far as is known

    def divides(self, count: int) -> bool:
        """Whether a batch of `count` samples goes in more than one part."""
        return self.size is not None and count > self.size

    def parts(self, count: int) -> list[slice]:
        """
        A batch of `count` samples in as few parts as fit, of sizes that differ by one at most:
        each size is compiled anew.
        """
        if self.size is None or count <= self.size:
            return [slice(0, count)]
        number = math.ceil(count / self.size)
        base, larger = divmod(count, number)
        sizes = [base + 1] * larger + [base] * (number - larger)
        ends = [sum(sizes[: index + 1]) for index in range(number)]
        return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def halve(self, count: int) -> bool:
        """The parts of a batch of `count` did not fit; False when they were single samples."""
        largest = count if self.size is None else min(self.size, count)
        if largest <= 1:
            return False
        self.size = math.ceil(largest / 2)
        return True

    def describe(self, count: int) -> str:
        """In words: how a batch of `count` goes from here on."""
        parts = self.parts(count)
        largest = parts[0].stop - parts[0].start
        return (
            f"batches of {count} go through in {len(parts)} parts of up to {largest} from here "
            "on, with their gradients added up: the size of a step stays the same"
        )

    def restore_size(self, meta: Any) -> None:
        """Begin with the size that a rescue of this training knew."""
        size = meta.get(FIELD)
        if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
            self.size = size


def run_in_parts(
    micro: MicroBatches, count: int | None, attempt: Callable[[list[slice]], T], undo: Any
) -> T:
    """
    What `attempt` returns, for a batch of `count` in as few parts as fit.

    Args:
        micro: learns what fits.
        count: samples of the batch; None where it cannot be divided.
        attempt: does all of the batch, in the parts it is given.
        undo: called before each new attempt.

    Raises:
        Exception: whatever `attempt` raised, where it was not of memory or nothing smaller is left.
    """
    while True:
        try:
            return attempt([slice(None)] if count is None else micro.parts(count))
        except Exception as error:
            if count is None or not watch.is_out_of_memory(error) or not micro.halve(count):
                raise
            watch.drop_frames(error)
        undo()
        watch.release_memory()
        print_message(f"memory ran out in a training step; {micro.describe(count)}.")


def sample_count(batch: Any, rows: Callable[[Any], int | None]) -> int | None:
    """The samples in all leaves of a batch; None where they differ or something has none."""
    sizes = {rows(each) for each in leaves(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def leaves(batch: Any) -> list[Any]:
    """What the tuples, lists and dicts of a batch hold, without None."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [leaf for each in batch for leaf in leaves(each)]
    return [] if batch is None else [batch]


def slice_batch(batch: Any, part: slice) -> Any:
    """The same structure with the samples of one part."""
    if isinstance(batch, dict):
        return {key: slice_batch(each, part) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(slice_batch(each, part) for each in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(slice_batch(each, part) for each in batch)
    return None if batch is None else batch[part]


def call_with_batch(function: Callable[..., T], batch: Any) -> T:
    """With the members of a tuple or list as arguments, with anything else as one."""
    return function(*batch) if isinstance(batch, (list, tuple)) else function(batch)


def check_reduction(reduction: str) -> None:
    """
    Refuse what is no reduction of a loss.

    Raises:
        ValueError: it is neither "mean" nor "sum".
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", not {reduction!r}')


def weighted_parts(
    batch: Any, parts: list[slice], reduction: str, weight: Callable[..., Any] | None
) -> Iterator[tuple[Any, float]]:
    """
    The parts of a batch, each with what its loss counts for in that of the batch.

    Args:
        batch: as `slice_batch` takes it.
        parts: that together are all of it.
        reduction: of the loss over the samples, "mean" or "sum".
        weight: what a mean divides by, given what the loss is; None: the samples.
    """
    whole = None if weight is None or reduction == "sum" else float(call_with_batch(weight, batch))
    for where in parts:
        part = slice_batch(batch, where)
        if reduction == "sum":
            share = 1.0
        elif weight is None:
            share = (where.stop - where.start) / parts[-1].stop
        else:
            share = float(call_with_batch(weight, part)) / whole if whole else 0.0
        yield part, share
