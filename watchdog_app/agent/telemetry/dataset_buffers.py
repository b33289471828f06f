"""
What the buffers of a tf.data pipeline will hold once they are full, read from its structure.

A shuffle buffer that fills looks like a leak until it stops, and one that does
not fit dies before the first step. Both are known beforehand: so many elements,
of so many bytes each. Nothing is iterated over and no data is looked at; a
pipeline whose elements have no known size (strings, ragged shapes) foretells
nothing. What the functions of a pipeline make inside themselves is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import tensorflow as tf

# Measured with TensorFlow 2.21: each tensor is an allocation with a head of its own.
_OVERHEAD_BYTES = 180
_MOST_PARTS = 500  # of a pipeline: no more are looked at
_INFINITE = -1
_MOST_BYTES = 2**52
_LEAST_BYTES = 32 * 2**20  # smaller growth decides nothing

_filled_bytes = 0  # by the pipelines of an earlier training of this process, at most

# These hand on the tensors that they were given, so that two buffers hold one copy.
_SHARING = frozenset(
    {
        "CacheDataset",
        "_OptionsDataset",
        "_PrefetchDataset",
        "_RepeatDataset",
        "_ShardDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
    }
)
# These may end before what they read has been read to its end.
_CUTTING = frozenset({"_DirectedInterleaveDataset", "_ShardDataset", "_TakeDataset", "_ZipDataset"})
_BATCHING = frozenset({"_BatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset"})
# The first dimension is what it was.
_ROW_FOR_ROW = frozenset({"_MapDataset", "_ParallelMapDataset", "_IgnoreErrorsDataset"}) | _SHARING


class Growth(NamedTuple):
    """Memory that a pipeline or a buffer of it will take; `at_most`: or less, nobody knows."""

    bytes: int
    what: str
    at_most: bool


class BufferForecast:
    """
    The growth that the pipelines of one training will bring, as they begin.

    Memory that an earlier pipeline of this process gave back is used again without the process
    growing: of a later one what goes beyond that is announced, where it is the larger part, and
    else the whole as the most that it can be.
    """

    def __init__(self) -> None:
        self.waiting: list[Growth] = []  # of pipelines that began since the last `mark_filled`

    def add_dataset(self, dataset: Any) -> Growth | None:
        """What to announce now that `dataset` begins too; None: nothing new."""
        found = growth(dataset)
        if found is None:
            return None
        self.waiting.append(found)
        total = sum(each.bytes for each in self.waiting)
        if total < _LEAST_BYTES:
            return None
        largest = max(self.waiting, key=lambda each: each.bytes)
        beyond = total - _filled_bytes
        if 2 * beyond < total or any(each.at_most for each in self.waiting):
            return Growth(total, largest.what, True)
        return Growth(beyond, largest.what, False)

    def mark_filled(self) -> None:
        """The first step is done, or the training: what was waiting is there."""
        global _filled_bytes
        total = sum(each.bytes for each in self.waiting)
        if total >= _LEAST_BYTES:
            _filled_bytes = max(_filled_bytes, total)
        self.waiting = []


def growth(dataset: Any) -> Growth | None:
    """
    What the buffers of `dataset` will take; None where that is nothing, or not known.

    Args:
        dataset: a tf.data.Dataset that is not iterated over yet.
    """
    if not hasattr(dataset, "_inputs"):
        return None
    held = sorted(_walk(dataset), key=lambda each: each.bytes, reverse=True)
    sure = [each for each in held if not each.at_most]
    # What is certain counts, unless it is the smaller part.
    certain = sum(each.bytes for each in sure)
    counted = sure if 2 * certain >= sum(each.bytes for each in held) else held
    total = sum(each.bytes for each in counted)
    if not 0 < total < _MOST_BYTES:
        return None
    names = [counted[0].what]
    if len(counted) > 1 and counted[1].bytes > total // 10:
        names.append(counted[1].what.partition(" of ")[0])
    return Growth(total, " and ".join(names), counted is held and len(sure) < len(held))


def batch_size(dataset: Any) -> int | None:
    """Examples in each element of a tf.data pipeline; None: not batches of a known size."""
    return _batch_rows(dataset)


def _walk(dataset: Any) -> Iterator[Growth]:
    """All that is held, in the order of the pipeline from its end."""
    waiting = [(dataset, 0, False, False)]
    for _ in range(_MOST_PARTS):
        if not waiting:
            return
        part, above, cut, in_turn = waiting.pop()
        name = type(part).__name__
        sources = list(part._inputs())
        own = _buffer_of(part, sources[0], cut) if len(sources) == 1 else None
        if own is not None:
            if own.bytes > above:
                yield own._replace(bytes=own.bytes - above, at_most=own.at_most or in_turn)
            above = max(above, own.bytes)
        passed = above if name in _SHARING else 0
        cut = cut or name in _CUTTING
        # One source after the other: the first one's buffers are empty when the next one's fill.
        in_turn = in_turn or name == "_ConcatenateDataset"
        waiting.extend((source, passed, cut, in_turn) for source in sources)


def _buffer_of(part: Any, source: Any, cut: bool) -> Growth | None:
    name = type(part).__name__
    if name not in ("_ShuffleDataset", "_PrefetchDataset", "CacheDataset"):
        return None
    each = _element_bytes(source)
    if each is None:
        return None
    available = int(source.cardinality())
    known = available >= 0 or available == _INFINITE
    unit = "examples" if _batch_rows(source) is None else "batches"
    if name == "CacheDataset":
        if _tensor_setting(part, "_filename") or available < 0:
            return None
        return Growth(available * each, f"the cache in memory of {available:,} {unit}", cut)
    count = _tensor_setting(part, "_buffer_size")
    if not isinstance(count, int) or count < 0:  # chosen by TensorFlow, or all there is
        count = available if name == "_ShuffleDataset" else 0
    if available >= 0:
        count = min(count, available)
    if count <= 0:
        return None
    kind = "shuffle" if name == "_ShuffleDataset" else "prefetch"
    return Growth(count * each, f"the {kind} buffer of {count:,} {unit}", not known)


def _element_bytes(dataset: Any) -> int | None:
    """Bytes of one element with its overhead; None where its specification does not tell."""
    total = 0
    rows = _batch_rows(dataset)
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or not spec.dtype.size:
            return None
        shape = spec.shape.as_list()
        if shape and shape[0] is None:
            shape[0] = rows
        if None in shape:
            return None
        total += prod(shape) * spec.dtype.size + _OVERHEAD_BYTES
    return total


def _batch_rows(dataset: Any) -> int | None:
    """Examples in each element, where the elements are batches of a known size."""
    for _ in range(_MOST_PARTS):
        name = type(dataset).__name__
        if name in _BATCHING:
            size = _tensor_setting(dataset, "_batch_size")
            return size if isinstance(size, int) else None
        sources = dataset._inputs()
        if name not in _ROW_FOR_ROW or len(sources) != 1:
            return None
        dataset = sources[0]
    return None


def _tensor_setting(part: Any, name: str) -> Any:
    """A setting of a part of a pipeline that was given as a tensor; None where there is none."""
    held = getattr(part, name, None)
    if held is None or not hasattr(held, "numpy"):
        return None
    value = held.numpy()
    return value if isinstance(value, bytes) else int(value)
