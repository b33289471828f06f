"""
What a model computes beyond the shapes of its variables: recorded, compared.

Another activation, dropout rate or loss leaves every shape as it is, and the
state of one program makes no sense in the other. The record holds layers, loss
and optimizer as they are configured, and only what is the same in every run of
an unchanged program: plain numbers and words; no names (Keras numbers them), no
functions of the user's own, no tables of data, no initializers, and nothing
that a resume gives back anyway.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Part = tuple[str, Mapping[str, str]]  # class, and its settings as JSON

_LEFT_OUT = re.compile(
    r"name|.*_name|trainable|dtype|seed|batch_shape|batch_input_shape|vocabulary_size|"
    r"learning_rate|iterations|initial_scale|.*initializer"
)
_NUMBER = re.compile(r"_\d+$")
_WORD = re.compile(r"[A-Za-z0-9_.+ -]{0,64}")
_DEPTH = 6
_ITEMS = 16
_UNSTABLE = object()


def record(model: Any) -> dict[str, Any]:
    """
    The layers, loss and optimizer of a Keras model, as JSON values.

    Never raises: what cannot be looked at is left out.
    """
    with tensorflow_left_alone():
        return _record(model)


@contextmanager
def tensorflow_left_alone() -> Iterator[None]:
    """
    Within it Keras does not import TensorFlow merely to see whether a setting is one of its types.

    That takes seconds and hundreds of MB where Keras runs on another backend.
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


def _record(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"layers": [], "loss": None, "optimizer": None}
    for layer in _try(lambda: list(model._flatten_layers(include_self=False))) or []:
        found["layers"].append(_part(layer))
    found["loss"] = _try(
        lambda: {
            "loss": json.dumps(_loss(getattr(model, "loss", None))),
            "loss weights": json.dumps(_weights(model._compile_loss._user_loss_weights)),
        }
    )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found["optimizer"] = _part(optimizer)
    return found


def differences(saved: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """
    What is configured differently, one plain phrase each; empty when nothing is.

    The order of layers does not count: programs may build them from a set.
    """
    if saved is None:
        return []
    found = list(_layers(saved["layers"], now["layers"]))
    if saved["loss"] and now["loss"]:
        found += _settings("the ", saved["loss"], now["loss"])
    if saved["optimizer"] and now["optimizer"]:
        (before, settings), (after, others) = saved["optimizer"], now["optimizer"]
        if before != after:
            found.append(f"the optimizer is {after} in the program, {before} in the rescue")
        else:
            found += _settings(f"the optimizer {after}'s ", settings, others)
    return found


def _layers(saved: list[Any], now: list[Any]) -> Iterator[str]:
    before = Counter(json.dumps(part, sort_keys=True) for part in saved)
    after = Counter(json.dumps(part, sort_keys=True) for part in now)
    gone = [json.loads(text) for text in (before - after).elements()]
    new = [json.loads(text) for text in (after - before).elements()]
    for kind, settings in gone:
        match = next((part for part in new if part[0] == kind), None)
        if match is None:
            yield f"a layer {kind} is in the rescue only"
        else:
            new.remove(match)
            yield from _settings(f"a layer {kind}'s ", settings, match[1])
    for kind, _settings_of_it in new:
        yield f"a layer {kind} is in the program only"


def _settings(whose: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in before:
        # A key on one side only is another version of Keras, not another program.
        if key in after and before[key] != after[key]:
            yield f"{whose}{key} is {after[key]} in the program, {before[key]} in the rescue"


def _part(thing: Any) -> list[Any]:
    config = _try(thing.get_config) or {}
    return [type(thing).__name__, _plain_settings(config)]


def _plain_settings(config: Mapping[str, Any]) -> dict[str, str]:
    stable = {key: _stable(value) for key, value in config.items() if not _LEFT_OUT.fullmatch(key)}
    return {key: json.dumps(value) for key, value in stable.items() if value is not _UNSTABLE}


def _loss(loss: Any) -> Any:
    if isinstance(loss, dict):
        return [_loss(loss[key]) for key in sorted(loss, key=str)]
    if isinstance(loss, (list, tuple)):
        return [_loss(item) for item in loss]
    if loss is None or isinstance(loss, str):
        return loss
    if hasattr(loss, "get_config"):
        return _part(loss)
    name = getattr(loss, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else type(loss).__name__


def _weights(weights: Any) -> Any:
    return list(weights.values()) if isinstance(weights, dict) else weights


def _stable(value: Any, depth: int = 0) -> Any:
    """`value` as far as it is the same in every run, or `_UNSTABLE`."""
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
        if value["class_name"] == "function":  # a serialized function: its name tells it apart
            return _stable(value.get("config"), depth + 1)
        config = value.get("config")
        plain = {
            key: inner
            for key, item in (config.items() if isinstance(config, dict) else ())
            if not _LEFT_OUT.fullmatch(key)
            and (inner := _stable(item, depth + 1)) is not _UNSTABLE
            and value["class_name"] != "__lambda__"
        }
        return [value["class_name"], plain]
    return _UNSTABLE


def _try(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception:  # the user's own classes, and Keras's older and newer ones
        return None
