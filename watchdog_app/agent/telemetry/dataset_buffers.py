"""
The memory that the buffers of a tf.data pipeline will take when full, read from its structure.

A shuffle buffer that fills looks like a leak until it stops. If it does not fit, the training dies
before the first step. Both are known beforehand: the number of elements and the bytes of each. This
module does not iterate and reads no data. A pipeline whose elements have no known size (strings,
ragged shapes) gives no forecast. Memory that functions of a pipeline allocate is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import tensorflow as tf

# Measured with TensorFlow 2.21: each tensor is an allocation with its own header.
_OVERHEAD_BYTES = 180
_MOST_PARTS = 500  # parts of a pipeline to visit
_INFINITE = -1
_MOST_BYTES = 2**52
_LEAST_BYTES = 32 * 2**20  # smaller growth does not matter

_filled_bytes = 0  # of the largest pipeline that this process has begun

# Steps that pass on their input tensors, so that two buffers share one copy.
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
# Steps that may end before their input ends.
_CUTTING = frozenset({"_DirectedInterleaveDataset", "_ShardDataset", "_TakeDataset", "_ZipDataset"})
_BATCHING = frozenset({"_BatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset"})
# Steps that keep the first dimension.
_ROW_FOR_ROW = frozenset({"_MapDataset", "_ParallelMapDataset", "_IgnoreErrorsDataset"}) | _SHARING


class Growth(NamedTuple):
    """Memory that a pipeline or one of its buffers will take; `at_most`: it may be less."""

    bytes: int
    what: str
    at_most: bool


def announced_growth(dataset: Any) -> Growth | None:
    """
    The growth to announce now that a pipeline begins; None: too little or unknown.

    A pipeline reuses memory that an earlier pipeline of this process freed, and the process does
    not grow. If most of a later pipeline's memory exceeds the freed memory, only that excess is
    announced. Otherwise the whole is announced as an upper bound.
    """
    global _filled_bytes
    found = growth(dataset)
    if found is None or found.bytes < _LEAST_BYTES:
        return None
    beyond = found.bytes - _filled_bytes
    _filled_bytes = max(_filled_bytes, found.bytes)
    if 2 * beyond < found.bytes or found.at_most:
        return found._replace(at_most=True)
    return found._replace(bytes=beyond)


def growth(dataset: Any) -> Growth | None:
    """
    The memory that the buffers of `dataset` will take; None if none or unknown.

    Args:
        dataset: a tf.data.Dataset before its first iteration.
    """
    if not hasattr(dataset, "_inputs"):
        return None
    held = sorted(_walk(dataset), key=lambda each: each.bytes, reverse=True)
    sure = [each for each in held if not each.at_most]
    # Count only the certain growth, unless it is the smaller part.
    certain = sum(each.bytes for each in sure)
    counted = sure if 2 * certain >= sum(each.bytes for each in held) else held
    total = sum(each.bytes for each in counted)
    if not 0 < total < _MOST_BYTES:
        return None
    names = [counted[0].what]
    if len(counted) > 1 and counted[1].bytes > total // 10:
        names.append(counted[1].what.partition(" of ")[0])
    return Growth(total, " and ".join(names), counted is held and len(sure) < len(held))


def _walk(dataset: Any) -> Iterator[Growth]:
    """The growth of every buffer, from the end of the pipeline to its start."""
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
        # One source after another: the first one's buffers are empty when the next one's fill.
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
    unit = "examples" if batch_rows(source) is None else "batches"
    if name == "CacheDataset":
        if _tensor_setting(part, "_filename") or available < 0:
            return None
        return Growth(available * each, f"the cache in memory of {available:,} {unit}", cut)
    count = _tensor_setting(part, "_buffer_size")
    if not isinstance(count, int) or count < 0:  # chosen by TensorFlow, or the whole data set
        count = available if name == "_ShuffleDataset" else 0
    if available >= 0:
        count = min(count, available)
    if count <= 0:
        return None
    kind = "shuffle" if name == "_ShuffleDataset" else "prefetch"
    return Growth(count * each, f"the {kind} buffer of {count:,} {unit}", not known)


def _element_bytes(dataset: Any) -> int | None:
    """Bytes of one element with its overhead; None if its specification has no size."""
    total = 0
    rows = batch_rows(dataset)
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


def batch_rows(dataset: Any) -> int | None:
    """Examples per element, if the elements are batches of a known size."""
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
    """A setting of a pipeline step that was given as a tensor; None if it has none."""
    held = getattr(part, name, None)
    if held is None or not hasattr(held, "numpy"):
        return None
    value = held.numpy()
    return value if isinstance(value, bytes) else int(value)
