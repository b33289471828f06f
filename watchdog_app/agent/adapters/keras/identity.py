"""The identity of a Keras fit before its first step: its computation and its data."""

from __future__ import annotations

import re
import sys
import zlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.adapters.passes import pipeline_parts
from watchdog_app.agent.identity import code, data_facts, keras_facts
from watchdog_app.rescue.identity.run import RunIdentity

_SAMPLED_ROWS = 64


def gather(model: Any, iterator: Any, backend: str) -> RunIdentity:
    """
    The identity of a fit that begins; see `rescue.identity`.

    Never raises: it omits facts that cannot be read.

    Args:
        model: the model of the fit.
        iterator: Keras's EpochIterator; None if its data cannot be followed.
        backend: name of the backend.
    """
    optimizers = keras_facts.named_optimizers(model)
    package = sys.modules.get(_package(backend))
    return data_facts.gather(
        f"a fit of {_framework_name(backend)}",
        str(getattr(package, "__version__", "")),
        model=lambda: keras_facts.layers(model),
        code=lambda: keras_facts.functions([model], getattr(model, "loss", None)),
        loss=lambda: keras_facts.loss_settings(model) | _class_weight(),
        optimizers=lambda: keras_facts.optimizer_classes(optimizers),
        settings=lambda: keras_facts.settings_of(optimizers),
        data=lambda: describe_data(iterator),
    )


def holders_of(model: Any, iterator: Any) -> Iterator[tuple[str, Any]]:
    """The objects that may hold the program's own attributes: layers, and a Python data set."""
    flatten = getattr(model, "_flatten_layers", None)
    for index, layer in enumerate(flatten() if callable(flatten) else [model]):
        yield f"layer {index}", layer
    data = getattr(getattr(iterator, "data_adapter", None), "py_dataset", None)
    if data is not None:
        yield "data", data


def describe_data(iterator: Any) -> dict[str, Any]:
    """The known facts about the data of a fit; see `RunIdentity`."""
    if iterator is None:
        return {}
    found: dict[str, Any] = {}
    for read in (_read_kind, _read_facts, _read_making):
        try:
            found |= read(iterator)
        except Exception:  # noqa: S112 - adapters of other versions, or the program's own data
            continue
    return found


def rescale_position(
    place: Mapping[str, Any], saved: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """
    Convert a position to batches of another size, at the same sample of the epoch.

    Args:
        place: a position from `position.FitProgress.position`.
        saved, now: the data of the rescue and of this program.

    Returns:
        The position for batches of this program, and a message for the user or None.
    """
    before, size = saved.get("batch_size"), now.get("batch_size")
    if not before or not size or before == size:
        return dict(place), None
    found = {**place, "num_batches": now.get("batches"), "ended": [], "ran_out": None}
    if place["between_epochs"] or (place["epoch_done"] and now.get("batches") is not None):
        done = 0 if place["between_epochs"] else now["batches"]
        text = f"batches are of {size} rows now (were {before})."
        return {**found, "next_batch": done, "ended": place["ended"]}, text
    known = saved.get("rows") is not None and saved.get("rows") == now.get("rows")
    if not known or not now.get("rows_in_any_batches", True):
        return {**found, "followed": False}, data_facts.first_batch_text(before, size)
    next_batch, text = data_facts.position_at_size(place["next_batch"], before, size)
    return {**found, "next_batch": next_batch, "ended": place["ended"]}, text


def _framework_name(backend: str) -> str:
    return backend if backend.startswith("Keras") else f"Keras on {backend}"


def _package(backend: str) -> str:
    return "tf_keras" if backend.startswith("Keras 2") else "keras"


def _class_weight() -> dict[str, Any]:
    weights = position.read_fit_variable("class_weight")
    if not isinstance(weights, Mapping):
        return {}
    return {"class weight": sorted([str(key), float(value)] for key, value in weights.items())}


def _read_kind(iterator: Any) -> dict[str, Any]:
    kind, batches = position.adapter_name(iterator), iterator.num_batches
    return {"kind": _KINDS.get(kind, kind), "batches": None if batches is None else int(batches)}


def _read_facts(iterator: Any) -> dict[str, Any]:
    adapter = iterator.data_adapter
    kind = position.adapter_name(iterator)
    if kind == "TFDatasetAdapter":
        dataset = adapter.get_tf_dataset()
        nest = sys.modules["tensorflow"].nest
        elements = [
            _describe_element(each.dtype, each.shape) for each in nest.flatten(dataset.element_spec)
        ]
        known = data_facts.batches(dataset)
        return {"elements": elements, "batch_size": known.size, "rows": known.rows}
    if kind not in ("ArrayDataAdapter", "TorchDataLoaderAdapter"):
        size = getattr(getattr(adapter, "py_dataset", None), "batch_size", None)
        return {"batch_size": size if isinstance(size, int) else None}
    found: dict[str, Any] = {"batch_size": adapter.batch_size}
    if adapter.num_batches is not None and adapter.batch_size:
        lacking = adapter.batch_size - (adapter.partial_batch_size or 0)
        found["rows"] = int(
            adapter.num_batches * adapter.batch_size - (lacking if adapter.has_partial_batch else 0)
        )
    # With shuffle="batch" the order of the rows depends on the size of the batches.
    found["rows_in_any_batches"] = getattr(adapter, "_shuffle", None) != "batch"
    arrays = [
        each for each in data_facts.flatten(getattr(adapter, "_inputs", None)) if each is not None
    ]
    if arrays:
        found["elements"] = [_describe_element(each.dtype, each.shape) for each in arrays]
        numpy = all(isinstance(each, np.ndarray) for each in arrays)
        found["sample"] = _sample_checksum(arrays) if numpy else None
    return found


def _read_making(iterator: Any) -> dict[str, Any]:
    """How the batches are made: functions of the program, and settings."""
    adapter = iterator.data_adapter
    kind = position.adapter_name(iterator)
    if kind == "ArrayDataAdapter":
        return {"settings": {"shuffle": bool(adapter._shuffle)}}
    if kind == "TFDatasetAdapter":
        return _describe_pipeline(adapter.get_tf_dataset())
    source = getattr(adapter, "py_dataset", None)
    source = source if source is not None else getattr(adapter, "_dataloader", None)
    parts = [source, getattr(source, "dataset", None)]
    own = [each for each in parts if code.is_own(type(each))]
    functions = [
        entry
        for each in parts
        if each is not None
        for entry in keras_facts.object_functions(each, ("__getitem__", "__iter__"))
    ]
    settings = [code.plain_attributes(each) for each in own]
    return {"code": functions, "settings": dict(ChainMap(*settings))}


def _describe_pipeline(dataset: Any) -> dict[str, Any]:
    """The functions of a tf.data pipeline, its kinds of steps, and its first rows."""
    functions: list[dict[str, Any]] = []
    steps = []
    tensors: list[Any] = []
    for each in pipeline_parts(dataset):
        kind = _STEP.sub("", type(each).__name__)
        names = ("_seed", "_seed2", "_buffer_size")
        numbers = [int(getattr(each, name, 0) or 0) for name in names]
        if kind not in _SAME_BATCHES:
            steps.append(f"{kind} {numbers}" if any(numbers) else kind)
        for wrapper in each._functions():
            own = getattr(wrapper, "_func", None)
            functions += keras_facts.function_entry(own, code.name(own))
        tensors += getattr(each, "_tensors", ())
    sample = {"sample": _sample_checksum(tensors)} if tensors else {}
    return {**sample, "code": functions, "settings": {"steps": steps}}


_STEP = re.compile("^_?(Parallel)?|(Dataset(V[12])?)$")
_SAME_BATCHES = ("Prefetch", "Options", "Cache", "Model", "Assert", "MaxIntraOpParallelism")
_KINDS = {
    "ArrayDataAdapter": "arrays",
    "TFDatasetAdapter": "a tf.data.Dataset",
    "PyDatasetAdapter": "a PyDataset",
    "GeneratorDataAdapter": "a generator",
    "TorchDataLoaderAdapter": "a DataLoader",
}


def _describe_element(dtype: Any, shape: Any) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in tuple(shape)[1:])
    return f"{getattr(dtype, 'name', dtype)} ({sizes})"


def _sample_checksum(arrays: Iterable[Any]) -> str | None:
    """A checksum of a few rows across the data; None if it is unknown."""
    checksum = 0
    for each in arrays:
        if len(each.shape) == 0:  # a single value, as `Dataset.from_tensors(1.0)` has
            continue
        stride = max(1, len(each) // _SAMPLED_ROWS)
        some = each[::stride][:_SAMPLED_ROWS]
        rows = np.ascontiguousarray(some if isinstance(each, np.ndarray) else some.numpy())
        if rows.dtype.hasobject:
            return None
        checksum = zlib.crc32(rows.tobytes(), checksum)
    return f"{checksum:08x}"
