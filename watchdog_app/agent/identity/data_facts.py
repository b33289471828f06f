"""Batches of a data set: how many, how large, of how many rows; and a sample among others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Steps of a tf.data pipeline that leave the number and the order of its batches as they are.
_KEEPS_BATCHES = ("Prefetch", "Map", "Options", "Cache", "Model", "Assert")


@dataclass(frozen=True, slots=True)
class Batches:
    """Each None where nobody knows it."""

    count: int | None = None  # of a whole pass
    size: int | None = None  # rows of each
    rows: int | None = None  # of a whole pass, in an order that batches do not change


def batches(dataset: Any) -> Batches:
    """What is known of a DataLoader, a tf.data pipeline or any iterable. Never raises."""
    return Batches(_length(dataset), *_size_and_rows(dataset))


def same_sample(drawn: int, before: int, size: int) -> tuple[int, str]:
    """
    Where a pass stands in batches of another size.

    Args:
        drawn: batches of it that are trained.
        before, size: rows of a batch then and now.

    Returns:
        Whole batches of the new size that are trained, and what is to be said.
    """
    rows = drawn * before
    now = rows // size
    again = rows - now * size
    text = (
        f"batches are of {size} rows now (were {before}): goes on after {rows} rows, at batch {now}"
    )
    return now, f"{text}; {again} rows are trained again." if again else f"{text}."


def first_batch(before: int, size: int) -> str:
    """What is said where the same sample cannot be found."""
    return f"batches are of {size} rows now (were {before}): begins at the first batch."


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # the user's own classes raise what they like
        return None


def _size_and_rows(dataset: Any) -> tuple[int | None, int | None]:
    try:
        if hasattr(dataset, "_inputs"):
            return _of_pipeline(dataset)
        size = getattr(dataset, "batch_size", None)
        rows = _length(getattr(dataset, "dataset", None))
        return (size, rows) if isinstance(size, int) else (None, rows)
    except Exception:  # as above
        return None, None


def _of_pipeline(dataset: Any) -> tuple[int | None, int | None]:
    """Nothing is known where its end is no plain batch()."""
    while True:
        kind, inputs = type(dataset).__name__, dataset._inputs()
        if len(inputs) != 1:
            return None, None
        if "Batch" in kind and hasattr(dataset, "_batch_size"):
            rows = int(inputs[0].cardinality())
            return int(dataset._batch_size), rows if rows >= 0 else None
        if not any(word in kind for word in _KEEPS_BATCHES):
            return None, None
        dataset = inputs[0]
