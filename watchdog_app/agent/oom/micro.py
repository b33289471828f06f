"""
Divide a batch into parts that fit, with a size learned from out-of-memory errors.

    micro = MicroBatches()
    while True:
        try:
            for part in micro.parts(len(batch)): ...
            break
        except MemoryError:
            if not micro.halve(len(batch)): raise

The size stays: a size that did not fit is not tried again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from watchdog_app.agent.contain import print_message
from watchdog_app.agent.identity.data_facts import flatten
from watchdog_app.agent.oom import watch

T = TypeVar("T")

FIELD = "micro_batch"  # key of the size in the meta of a rescue


class MicroBatches:
    """The number of samples that go through the model at once."""

    def __init__(self) -> None:
        self.size: int | None = None  # None: whole batches fit, as far as known

    def divides(self, count: int) -> bool:
        """Whether a batch of `count` samples needs more than one part."""
        return self.size is not None and count > self.size

    def parts(self, count: int) -> list[slice]:
        """
        Divide a batch of `count` samples into as few parts as fit.

        The sizes differ by at most one sample, because the framework compiles each size separately.
        """
        if self.size is None or count <= self.size:
            return [slice(0, count)]
        number = math.ceil(count / self.size)
        base, larger = divmod(count, number)
        sizes = [base + 1] * larger + [base] * (number - larger)
        ends = [sum(sizes[: index + 1]) for index in range(number)]
        return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def halve(self, count: int) -> bool:
        """Halve the size after parts of a batch of `count` did not fit; False at one sample."""
        largest = count if self.size is None else min(self.size, count)
        if largest <= 1:
            return False
        self.size = math.ceil(largest / 2)
        return True

    def describe(self, count: int) -> str:
        """A text for the user: how batches of `count` samples are trained from now on."""
        parts = self.parts(count)
        largest = parts[0].stop - parts[0].start
        return (
            f"batches of {count} go through in {len(parts)} parts of up to {largest} from here "
            "on, with their gradients added up: the size of a step stays the same"
        )

    def restore_size(self, meta: Any) -> None:
        """Restore the size from the meta of a rescue of this training."""
        size = meta.get(FIELD)
        if isinstance(size, int) and not isinstance(size, bool) and size >= 1:
            self.size = size


def run_in_parts(
    micro: MicroBatches, count: int | None, attempt: Callable[[list[slice]], T], undo: Any
) -> T:
    """
    Run `attempt` on a batch in as few parts as fit, and return its result.

    Args:
        micro: size of the parts; this function halves it after an out-of-memory error.
        count: samples of the batch; None if it cannot be divided.
        attempt: processes the whole batch in the given parts.
        undo: called before each new attempt.

    Raises:
        Exception: the error of `attempt`, if it is not out of memory or no smaller part exists.
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


def sample_count(batch: Any, tensor: Any) -> int | None:
    """
    The number of samples in a batch; None if its leaves differ or one has no samples.

    Args:
        batch: tuples, lists and dicts of tensors.
        tensor: the class of the framework's tensors.
    """
    # TensorFlow's `ndim` is None or -1 if the rank is unknown.
    sizes = {
        int(each.shape[0]) if isinstance(each, tensor) and (each.ndim or 0) > 0 else None
        for each in flatten(batch)
        if each is not None
    }
    return sizes.pop() if len(sizes) == 1 else None


def slice_batch(batch: Any, part: slice) -> Any:
    """A batch of the same structure with only the samples of one part."""
    if isinstance(batch, dict):
        return {key: slice_batch(each, part) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(slice_batch(each, part) for each in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(slice_batch(each, part) for each in batch)
    return None if batch is None else batch[part]


def call_with_batch(function: Callable[..., T], batch: Any) -> T:
    """Call `function` with the members of a tuple or list, or with another batch as is."""
    return function(*batch) if isinstance(batch, (list, tuple)) else function(batch)


def check_reduction(reduction: str) -> None:
    """
    Check the name of a loss reduction.

    Raises:
        ValueError: `reduction` is neither "mean" nor "sum".
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", not {reduction!r}')


def weighted_parts(
    batch: Any, parts: list[slice], reduction: str, weight: Callable[..., Any] | None
) -> Iterator[tuple[Any, float]]:
    """
    The parts of a batch, each with the factor of its loss in the loss of the batch.

    Args:
        batch: a batch that `slice_batch` accepts.
        parts: slices that together cover the batch.
        reduction: reduction of the loss over the samples, "mean" or "sum".
        weight: takes the arguments of the loss and returns the divisor of its mean; None: the
            number of samples.
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
