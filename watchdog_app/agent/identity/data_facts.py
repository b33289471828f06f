"""Batches of a data set: how many, how large, of how many rows; and a sample among others."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Steps of a tf.data pipeline that leave the number and the order of its batches as they are.
_KEEPS_BATCHES = ("Prefetch", "Map", "Options", "Cache", "Model", "Assert")


_SAMPLED = 1024  # values of each tensor of a batch

FIRST_BATCH = (
    "the first batch of this epoch is not the one it was: the data, its order or its augmentation "
    "has changed. {} batches of it are left out all the same."
)


@dataclass(frozen=True, slots=True)
class Batches:
    """Each None where nobody knows it."""

    count: int | None = None  # of a whole pass
    size: int | None = None  # rows of each
    rows: int | None = None  # of a whole pass, in an order that batches do not change


def batches(dataset: Any) -> Batches:
    """What is known of a DataLoader, a tf.data pipeline or any iterable. Never raises."""
    return Batches(_length(dataset), *_size_and_rows(dataset))


def batch_signature(batch: Any) -> tuple[list[str], str] | None:
    """Element type and rank of each tensor of a batch, and a checksum; None: it has no tensors."""
    try:
        found = list(_tensors(batch))
        kinds = [f"{_name_of(each.dtype)} of rank {len(each.shape)}" for each in found]
        checksum = 0
        for each in found:
            checksum = zlib.crc32(_sample_bytes(each), checksum)
    except Exception:  # of another kind than it looks
        return None
    return (kinds, f"{checksum:08x}") if found else None


def position_at_size(drawn: int, before: int, size: int) -> tuple[int, str]:
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
    text = f"{_resized(before, size)}: continues after {rows} rows, at batch {now}"
    return now, f"{text}; {again} rows are trained again." if again else f"{text}."


def first_batch_text(before: int, size: int) -> str:
    """What is said where the same sample cannot be found."""
    return f"{_resized(before, size)}: begins at the first batch."


def _resized(before: int, size: int) -> str:
    return f"batches are of {size} rows now (were {before})"


def _tensors(batch: Any) -> Iterator[Any]:
    yield from (
        each for each in flatten(batch) if hasattr(each, "dtype") and hasattr(each, "shape")
    )


def flatten(value: Any) -> Iterator[Any]:
    """What dicts, lists and tuples hold, in a steady order."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from flatten(value[key])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flatten(each)
    else:
        yield value


def _name_of(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def _sample_bytes(tensor: Any) -> bytes:
    """Some of its values and its shape, as bytes."""
    flat = tensor.reshape(-1) if hasattr(tensor, "reshape") else _flat(tensor)
    size = len(flat)
    some = flat[:: max(1, size // _SAMPLED)][:_SAMPLED]
    some = some.detach().cpu().tolist() if hasattr(some, "detach") else some
    some = some.numpy() if hasattr(some, "numpy") else some
    return repr((tuple(tensor.shape), list(some))).encode()


def _flat(tensor: Any) -> Any:
    import tensorflow as tf  # whose tensor it is

    return tf.reshape(tensor, [-1])


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # the user's own classes raise what they like
        return None


def _size_and_rows(dataset: Any) -> tuple[int | None, int | None]:
    try:
        if hasattr(dataset, "_inputs"):
            return _pipeline_size_and_rows(dataset)
        size = getattr(dataset, "batch_size", None)
        rows = _length(getattr(dataset, "dataset", None))
        return (size, rows) if isinstance(size, int) else (None, rows)
    except Exception:  # as above
        return None, None


def _pipeline_size_and_rows(dataset: Any) -> tuple[int | None, int | None]:
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
