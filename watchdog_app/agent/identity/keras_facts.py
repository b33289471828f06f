"""
What a Keras model computes: layers and wiring, loss, optimizers, and the program's own code in it.

The record contains what is the same in every run of an unchanged program: plain numbers and words.
It omits names (Keras numbers them), tables of data, initializers, and values that a resume restores
anyway.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.agent.identity.data_facts import flatten
from watchdog_app.agent.state.keras_model import (
    is_keras_instance,
    is_keras_module,
    optimizers_of,
)
from watchdog_app.rescue.identity.compare import merge_settings

Layers = list[dict[str, Any]]
Functions = list[dict[str, Any]]

_LEFT_OUT = re.compile(
    r"name|.*_name|trainable|dtype|seed|batch_shape|batch_input_shape|vocabulary_size|"
    r"learning_rate|iterations|initial_scale|build_config|shared_object_id|.*initializer"
)
_NUMBER = re.compile(r"_\d+$")
_WORD = re.compile(r"[A-Za-z0-9_.+ -]{0,64}")
_DEPTH = 6
_ITEMS = 16
_UNSTABLE = object()
COMPUTE = ("call", "train_step", "compute_loss", "forward", "__call__")
# Methods that create variables, and compiled steps; the loss has its own entry.
_SKIPPED_ATTRIBUTES = frozenset(
    ("build", "quantize", "train_function", "test_function", "predict_function", "loss")
)
_WIRED = ("Functional", "Sequential")
LEARNING_RATE = "learning_rate"
_LAYER = "layer"  # key of the layer object while a model is described


@contextmanager
def no_tensorflow_import() -> Iterator[None]:
    """
    Keep Keras from importing TensorFlow only to compare a setting with TensorFlow's types.

    The import takes seconds and hundreds of MB if Keras runs on another backend.
    """
    asked: Any = getattr(sys.modules.get("keras.src.utils.module_utils"), "tensorflow", None)
    if "tensorflow" in sys.modules or getattr(asked, "_available", True) is not None:
        yield
        return
    asked._available = False
    try:
        yield
    finally:
        asked._available = None


def layers(model: Any, *, begins: bool = True) -> Layers:
    """
    Each layer of a model in order, in the form of `rescue.identity.run`.

    Never raises: a part that cannot be read is omitted.

    Args:
        model: a model or a layer.
        begins: see `code.plain_attributes`.
    """
    found: Layers = []
    with no_tensorflow_import():
        _or_none(lambda: _add_layers(model, None, None, found))
    for each in found:
        layer = each.pop(_LAYER, None)
        if code.is_own(type(layer)):
            each["attributes"] = code.plain_attributes(layer, begins=begins)
    counted = Counter(each["label"] for each in found)
    numbers: Counter[str] = Counter()
    for each in found:
        label = each["label"]
        if counted[label] > 1:
            numbers[label] += 1
            each["label"] = f"{label} {numbers[label]}"
    return found


def functions(things: Sequence[Any], losses: Any = None) -> Functions:
    """
    The program's own functions that layers, optimizers and losses compute with.

    Args:
        things: models, layers, optimizers, modules.
        losses: a loss, or dicts and lists of them.
    """
    found: Functions = []
    seen: set[int] = set()
    for thing in (each for outer in things for each in _with_layers(outer)):
        if id(thing) not in seen:
            seen.add(id(thing))
            found += object_functions(thing)
    for loss in flatten(losses):
        if loss is not None and not isinstance(loss, str):
            found += object_functions(loss)
            found += function_entry(loss, code.name(loss))
    return found


def object_functions(thing: Any, methods: Sequence[str] = COMPUTE) -> Functions:
    """The methods that an object of the program computes with, and functions given to it."""
    found: Functions = []
    kind = type(thing)
    for method in methods:
        own = getattr(kind, method, None)
        found += function_entry(own, code.name(own))
    for key, value in sorted(code.attributes_of(thing).items()):
        if callable(value) and key not in _SKIPPED_ATTRIBUTES:
            found += function_entry(value, f"{kind.__name__}'s {key.lstrip('_')}")
    return found


def function_entry(function: Any, name: str) -> Functions:
    """An entry for a function of the program; empty for a function of a library."""
    found = code.fingerprint(function)
    if found is None:
        return []
    return [{"name": name, "at": code.location(function), "functions": found}]


def loss_settings(model: Any) -> dict[str, Any]:
    """The loss that a model was compiled with, and its weights."""
    found = {"loss": _loss_settings(getattr(model, "loss", None))}
    weights = _or_none(lambda: model._compile_loss._user_loss_weights)
    found["loss weights"] = list(weights.values()) if isinstance(weights, dict) else weights
    return found


def optimizer_classes(optimizers: Mapping[str, Any]) -> dict[str, str]:
    """The class name of each optimizer."""
    return {name: class_of(each) for name, each in optimizers.items()}


def settings_of(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    """Current learning rate, momentum and so on of each optimizer."""
    found: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        with no_tensorflow_import():
            config = _or_none(optimizer.get_config) or {}
        prefix = _optimizer_prefix(name, optimizers)
        for key, value in config.items():
            stable = _stable_value(value)
            if stable is not _UNSTABLE and (key == LEARNING_RATE or not _LEFT_OUT.fullmatch(key)):
                found[f"{prefix}{key}"] = stable
    return found


def recorded_settings(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that no variable of a rescue contains."""
    return {
        key: value for key, value in settings_of(optimizers).items() if not _is_rate(key, value)
    }


def merge(
    optimizers: Mapping[str, Any], meta: Mapping[str, Any], mine: Mapping[str, Any]
) -> tuple[str, ...]:
    """
    Apply settings that the program changed on purpose, after the rescue's variables are loaded.

    Args:
        optimizers: of the program.
        meta: the metadata of the rescue.
        mine: `settings_of` before anything was loaded.

    Returns:
        One sentence for each applied change.
    """
    loaded = settings_of(optimizers)
    rates = {key: value for key, value in loaded.items() if _is_rate(key, value)}
    base = (meta.get("identity") or {}).get("settings", {})
    merged = merge_settings(base, {**(meta.get("settings") or {}), **rates}, mine)
    for name, optimizer in optimizers.items():
        prefix = _optimizer_prefix(name, optimizers)
        for key in _or_none(optimizer.get_config) or {}:
            value = merged.values.get(f"{prefix}{key}")
            if isinstance(value, int | float) and value != loaded.get(f"{prefix}{key}"):
                setattr(optimizer, key, value)
    messages = [
        f"{key.replace('_', ' ')}: {_format_rate(now)} of the program is used from here on (was "
        f"{_format_rate(base[key])})."
        for key, now in mine.items()
        if key.endswith(LEARNING_RATE) and type(now) is not type(base.get(key, now))
    ]
    return (*merged.messages, *messages)


def _format_rate(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"the schedule {value[0]}"


def _is_rate(key: str, value: Any) -> bool:
    """Whether a setting is a learning rate in a variable, not a schedule."""
    return key.endswith(LEARNING_RATE) and isinstance(value, float)


def _optimizer_prefix(name: str, optimizers: Mapping[str, Any]) -> str:
    return "" if len(optimizers) == 1 else f"{name}'s "


def named_optimizers(model: Any) -> dict[str, Any]:
    """The compiled optimizer first, then other optimizers of the model."""
    found = _or_none(lambda: optimizers_of(model)) or []
    return {
        "the optimizer" if index == 0 else f"optimizer {index + 1}": each
        for index, each in enumerate(found)
    }


def class_of(thing: Any) -> str:
    """
    The class name of an object; for a class of the program the name of its library base class.
    """
    return code.library_class(type(thing))


def describe(thing: Any) -> str:
    """The class and configuration of a loss or another object without variables."""
    config = _or_none(thing.get_config) if hasattr(thing, "get_config") else None
    return f"{class_of(thing)} {sorted(_plain_settings(config or {}).items(), key=str)}"


def _add_layers(layer: Any, config: Mapping[str, Any] | None, inputs: Any, found: Layers) -> None:
    """Add a layer and its inner layers to `found`."""
    config = config if config is not None else _or_none(layer.get_config)
    wired = is_keras_instance(layer, *_WIRED)
    settings = {} if config is None or wired else _plain_settings(config)
    entry = _layer_entry(type(layer).__name__, class_of(layer), inputs, settings)
    found.append({**entry, _LAYER: layer})
    inner = {each.name: each for each in layer._flatten_layers(include_self=False, recursive=False)}
    if not wired or config is None:
        places = {name: index for index, name in enumerate(inner)}
        for each in inner.values():
            _add_layers(each, None, _input_layers(each, places) if wired else None, found)
        return
    names = {_name_of(entry): index for index, entry in enumerate(config["layers"])}
    settings["outputs"] = _wiring(config.get("output_layers"), names)
    for entry in config["layers"]:
        sequential = "inbound_nodes" not in entry
        if sequential and entry["class_name"] == "InputLayer":
            continue  # given by the program, or made with the first batch
        inputs = None if sequential else _wiring(entry["inbound_nodes"], names)
        within = inner.get(_name_of(entry))
        if within is not None:
            _add_layers(within, entry["config"], inputs, found)
        else:  # an operation, not a layer
            operation = str(entry["class_name"])
            found.append(
                _layer_entry(operation, operation, inputs, _plain_settings(entry["config"]))
            )


def _layer_entry(label: str, kind: str, inputs: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "class": kind, "inputs": inputs, "settings": settings}


def _name_of(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or entry["config"].get("name"))


def _input_layers(layer: Any, places: Mapping[str, int]) -> Any:
    """The layers that feed a layer whose model has no configuration."""
    return _or_none(
        lambda: [
            [places.get(parent.operation.name, -1) for parent in node.parent_nodes]
            for node in layer._inbound_nodes
        ]
    )


def _wiring(value: Any, names: Mapping[str, int]) -> Any:
    """The inputs of a layer as JSON: layers by their index, and plain values."""
    if isinstance(value, Mapping):
        history = value.get("config", {}) if value.get("class_name") == "__keras_tensor__" else {}
        if "keras_history" in history:
            return _wiring(history["keras_history"], names)
        return {str(key): _wiring(each, names) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wiring(each, names) for each in value]
    if isinstance(value, str):
        return names.get(value, value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return type(value).__name__


def _plain_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    stable = {
        key: _stable_value(value) for key, value in config.items() if not _LEFT_OUT.fullmatch(key)
    }
    return {key: value for key, value in stable.items() if value is not _UNSTABLE}


def _loss_settings(loss: Any) -> Any:
    if isinstance(loss, dict):
        return [_loss_settings(loss[key]) for key in sorted(loss, key=str)]
    if isinstance(loss, (list, tuple)):
        return [_loss_settings(item) for item in loss]
    if loss is None or isinstance(loss, str):
        return loss
    if hasattr(loss, "get_config"):
        config = _plain_settings(_or_none(loss.get_config) or {})
        own = code.plain_attributes(loss) if code.is_own(type(loss)) else {}
        return [class_of(loss), {**config, **own}]
    if code.unwrapped(loss)[0] is not None:
        return "a function of the program"  # its code identifies it
    name = getattr(loss, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else type(loss).__name__


def _stable_value(value: Any, depth: int = 0) -> Any:
    """The part of `value` that is the same in every run, or `_UNSTABLE`."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _NUMBER.sub("", value) if _WORD.fullmatch(value) else _UNSTABLE
    if depth == _DEPTH:
        return _UNSTABLE
    if isinstance(value, (list, tuple)):
        numbers = all(item is None or type(item) is int for item in value)
        return list(value) if numbers and len(value) <= _ITEMS else _UNSTABLE
    if isinstance(value, dict) and isinstance(value.get("class_name"), str):
        if value["class_name"] in ("function", "__lambda__"):
            return "a function of the program"  # its code identifies it
        config = value.get("config")
        plain = {
            key: inner
            for key, item in (config.items() if isinstance(config, dict) else ())
            if not _LEFT_OUT.fullmatch(key)
            and (inner := _stable_value(item, depth + 1)) is not _UNSTABLE
        }
        return [value["class_name"], plain]
    if hasattr(value, "__float__") and getattr(value, "shape", None) == ():
        return _or_none(lambda: float(value))
    return _UNSTABLE


def _with_layers(thing: Any) -> Iterator[Any]:
    yield thing
    if is_keras_module(type(thing).__module__) or hasattr(thing, "_flatten_layers"):
        yield from _or_none(lambda: list(thing._flatten_layers(include_self=False))) or ()
        yield from _or_none(lambda: optimizers_of(thing)) or ()


def _or_none(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:  # classes of the program, or other versions of Keras, may raise
        return None
