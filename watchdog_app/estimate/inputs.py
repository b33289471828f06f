"""The shape of one example: from a given shape, a dataset or the model."""

from __future__ import annotations

import re
from typing import Any

from watchdog_app.estimate.record import EstimateError, InputSpec

_SHAPE = re.compile(r"[0-9]+(\s*[,x]\s*[0-9]+)*\s*,?")
_NUMBER = re.compile(r"[0-9]+")
_MAX_PARTS = 100  # datasets in a pipeline to search at most
_NEEDS_SHAPE = (
    "The model does not tell what one example is. Name it without the batch: "
    "input_shape=(224, 224, 3), on the command line --input 224,224,3; "
    "whole numbers (tokens) as --input 128:int64."
)


def specs_from_shape(shape: Any) -> list[InputSpec]:
    """
    Read the inputs from the shape of one example, or a list of several; each may be (shape, type).

    Raises:
        EstimateError: it is not a shape.
    """
    if isinstance(shape, int):
        shape = (shape,)
    if all(isinstance(each, int) for each in shape):
        return [_make_spec(tuple(shape))]
    found = []
    for each in shape:
        if len(each) == 2 and isinstance(each[1], str):
            found.append(_make_spec(tuple(each[0]), each[1]))
        else:
            found.append(_make_spec(tuple(each)))
    return found


def specs_from_keras(model: Any, shape: Any = None) -> list[InputSpec]:
    """
    Read a Keras model's own inputs; `shape` fills their open dimensions.

    Raises:
        EstimateError: a dimension is open and not given.
    """
    own = getattr(model, "inputs", None) or []
    own = own if isinstance(own, list | tuple) else [own]
    given = specs_from_shape(shape) if shape is not None else []
    if not own:
        if not given:
            raise EstimateError(_NEEDS_SHAPE)
        return [each._replace(dtype=each.dtype or "float32") for each in given]
    found = []
    for at, each in enumerate(own):
        dims = tuple(each.shape)[1:]
        if at < len(given) and len(given[at].shape) == len(dims):
            dims = given[at].shape
        if None in dims:
            raise EstimateError(
                f"Input {at + 1} of the model has the shape {dims}: None can be anything. "
                "Name it without the batch: input_shape=(...), on the command line --input ..."
            )
        dtype = given[at].dtype if at < len(given) else ""
        found.append(InputSpec(tuple(int(size) for size in dims), dtype or type_name(each.dtype)))
    return found


def specs_from_torch(module: Any, shape: Any = None) -> list[InputSpec]:
    """
    Read the inputs from a shape, or from a first layer that takes vectors of one length.

    Raises:
        EstimateError: both are missing.
    """
    kinds = [
        type(each).__name__ for each in module.modules() if not any(True for _ in each.children())
    ]
    tokens = bool(kinds) and kinds[0] in ("Embedding", "EmbeddingBag")
    if shape is not None:
        usual = "int64" if tokens else "float32"
        return [each._replace(dtype=each.dtype or usual) for each in specs_from_shape(shape)]
    first = next((each for each in module.modules() if type(each).__name__ == "Linear"), None)
    if kinds and kinds[0] == "Linear" and first is not None:
        return [InputSpec((int(first.in_features),), "float32")]
    raise EstimateError(_NEEDS_SHAPE)


def specs_from_dataset(dataset: Any) -> tuple[list[InputSpec], int | None]:
    """Read the inputs and the batch of a tf.data pipeline of (inputs, targets); empty: unknown."""
    spec = getattr(dataset, "element_spec", None)
    if spec is None:
        return [], None
    first = spec[0] if isinstance(spec, tuple) and spec else spec
    flat = _flatten(first)
    if any(each.shape.rank is None for each in flat):
        return [], None
    dims = [each.shape.as_list() for each in flat]
    batch = next((each[0] for each in dims if each and each[0]), None) or _find_batch_size(dataset)
    if any(None in each[1:] for each in dims):
        return [], batch
    return [
        InputSpec(tuple(each[1:]), type_name(one.dtype))
        for each, one in zip(dims, flat, strict=True)
    ], batch


def _find_batch_size(dataset: Any) -> int | None:
    """Find the batch size of a pipeline whose last batch may be smaller."""
    for _ in range(_MAX_PARTS):
        size = getattr(dataset, "_batch_size", None)
        if size is not None:
            return int(size)
        sources: Any = dataset._inputs() if hasattr(dataset, "_inputs") else ()
        if len(sources) != 1:
            return None
        dataset = sources[0]
    return None


def parse(text: str) -> tuple[tuple[int, ...], str]:
    """
    Parse `224,224,3`, `224x224x3` or `128:int64`; the type is empty if not given.

    Raises:
        ValueError: it is not a shape.
    """
    shape, _, dtype = text.partition(":")
    found = _SHAPE.fullmatch(shape.strip("()[] "))
    dims = tuple(int(word) for word in _NUMBER.findall(shape)) if found else ()
    if not dims or min(dims) < 1:
        raise ValueError(f"{text!r} is no shape")
    return dims, dtype.strip()


def type_name(dtype: Any) -> str:
    """Return the name of any framework's type, such as `float32`."""
    name = getattr(dtype, "name", None) or str(dtype)
    return str(name).rpartition(".")[2]


def _make_spec(shape: tuple[int, ...], dtype: str = "") -> InputSpec:
    if not all(isinstance(each, int) and each > 0 for each in shape):
        raise EstimateError(f"{shape!r} is no shape of one example: whole numbers above 0.")
    return InputSpec(shape, dtype)


def _flatten(value: Any) -> list[Any]:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [value]
    if isinstance(value, dict):
        return [one for each in value.values() for one in _flatten(each)]
    if isinstance(value, list | tuple):
        return [one for each in value for one in _flatten(each)]
    return []
