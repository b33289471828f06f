"""Size, number and rows of the batches of a data set, and a signature to recognize a batch."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.rescue.identity.run import RunIdentity

# Steps of a tf.data pipeline that keep the number and the order of its batches.
_KEEPS_BATCHES = ("Prefetch", "Map", "Options", "Cache", "Model", "Assert")


_SAMPLED = 1024  # values taken from each tensor of a batch

FIRST_BATCH = (
    "the first batch of this epoch is not the one it was: the data, its order or its augmentation "
    "has changed. {} batches of it are left out all the same."
)


@dataclass(frozen=True, slots=True)
class Batches:
    """Counts of a data set; each is None if unknown."""

    count: int | None = None  # batches per pass
    size: int | None = None  # rows per batch
    rows: int | None = None  # rows per pass, in an order that does not depend on the batch size


def batches(dataset: Any) -> Batches:
    """The counts of a DataLoader, a tf.data pipeline or any iterable. Never raises."""
    return Batches(_length(dataset), *_size_and_rows(dataset))


def batch_signature(batch: Any) -> tuple[list[str], str] | None:
    """Element type and rank of each tensor of a batch, and a checksum; None: it has no tensors."""
    try:
        found = list(_tensors(batch))
        kinds = [f"{_name_of(each.dtype)} of rank {len(each.shape)}" for each in found]
        checksum = 0
        for each in found:
            checksum = zlib.crc32(_sample_bytes(each), checksum)
    except Exception:  # the batch is of an unsupported kind
        return None
    return (kinds, f"{checksum:08x}") if found else None


def position_at_size(drawn: int, before: int, size: int) -> tuple[int, str]:
    """
    Where a pass continues after the batch size changed.

    Args:
        drawn: trained batches of the pass.
        before, size: rows of a batch then and now.

    Returns:
        The number of trained batches of the new size, and a message.
    """
    rows = drawn * before
    now = rows // size
    again = rows - now * size
    text = f"{_resized(before, size)}: continues after {rows} rows, at batch {now}"
    return now, f"{text}; {again} rows are trained again." if again else f"{text}."


def first_batch_text(before: int, size: int) -> str:
    """The message for a data set in which the same sample cannot be found."""
    return f"{_resized(before, size)}: begins at the first batch."


def _resized(before: int, size: int) -> str:
    return f"batches are of {size} rows now (were {before})"


def _tensors(batch: Any) -> Iterator[Any]:
    yield from (
        each for each in flatten(batch) if hasattr(each, "dtype") and hasattr(each, "shape")
    )


def flatten(value: Any) -> Iterator[Any]:
    """The leaves of nested dicts, lists and tuples, in a stable order."""
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
    """Some values and the shape of a tensor, as bytes."""
    flat = tensor.reshape(-1) if hasattr(tensor, "reshape") else _flat(tensor)
    size = len(flat)
    some = flat[:: max(1, size // _SAMPLED)][:_SAMPLED]
    some = some.detach().cpu().tolist() if hasattr(some, "detach") else some
    some = some.numpy() if hasattr(some, "numpy") else some
    return repr((tuple(tensor.shape), list(some))).encode()


def _flat(tensor: Any) -> Any:
    import tensorflow as tf  # loaded already: the tensor is TensorFlow's

    return tf.reshape(tensor, [-1])


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # a class of the user may raise any exception
        return None


def _size_and_rows(dataset: Any) -> tuple[int | None, int | None]:
    try:
        if hasattr(dataset, "_inputs"):
            return _pipeline_size_and_rows(dataset)
        size = getattr(dataset, "batch_size", None)
        rows = _length(getattr(dataset, "dataset", None))
        return (size, rows) if isinstance(size, int) else (None, rows)
    except Exception:  # see `_length`
        return None, None


def _pipeline_size_and_rows(dataset: Any) -> tuple[int | None, int | None]:
    """Rows per batch and per pass; None if the pipeline does not end in a plain batch()."""
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


def gather(framework: str, version: str, **readers: Callable[[], Any]) -> RunIdentity:
    """
    The identity of a training. Never raises: a part that cannot be read is omitted.

    Args:
        framework: its name in messages.
        version: the framework's version.
        readers: a function for each of the other fields of `RunIdentity`.
    """
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except Exception:  # noqa: S112 - objects of the program or other versions may raise
            continue
    statements = code.statements(_program())
    return RunIdentity(
        framework,
        version,
        statements=[text for text, _, _ in statements],
        lines=[(first, last) for _, first, last in statements],
        **found,
    )


def _program() -> str | None:
    """The path of the program's source; None in a notebook or at a prompt."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return path if isinstance(path, str) else None
