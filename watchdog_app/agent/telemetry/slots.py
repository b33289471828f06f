"""
The memory that each kind of optimizer keeps per weight, known before the optimizer makes it.

A kind is found by the name of the class or of a base class, so a subclass of Adam counts as Adam.
The rules were read from Keras 3.15, tf_keras 2.21 and PyTorch 2.13. A test compares them with what
their optimizers make (tests/agent/test_model_parts.py). Nothing is guessed: an unknown kind gives
None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

_COUNTER_BYTES = 4  # PyTorch's step counter, a separate float for every weight

Shape = tuple[int, ...]


def optimizer_kind(optimizer: Any) -> str | None:
    """`Adam`, `SGD with momentum`, `LossScaleOptimizer over AdamW`; None without an optimizer."""
    if optimizer is None:
        return None
    name = type(optimizer).__name__
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return f"{name} over {optimizer_kind(inner)}"
    if name in ("SGD", "RMSprop"):
        momentum = getattr(optimizer, "momentum", None)
        if momentum is None:
            momentum = getattr(optimizer, "defaults", {}).get("momentum", 0)
        if isinstance(momentum, int | float) and momentum:
            name += " with momentum"
    return name


def keras_slot_bytes(optimizer: Any, shape: Shape, type_bytes: int) -> int | None:
    """
    Bytes that a Keras optimizer will keep for one weight that it trains.

    Args:
        optimizer: not built yet.
        shape: shape of the weight.
        type_bytes: bytes per element.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:  # the scale itself is two scalars
        return keras_slot_bytes(inner, shape, type_bytes)
    rule = _rule(optimizer, _KERAS)
    if rule is None:
        return None
    elements = rule(lambda name: getattr(optimizer, name, None) or 0, shape)
    # two more options that any kind may have
    extra = int(bool(getattr(optimizer, "use_ema", False)))
    extra += int((getattr(optimizer, "gradient_accumulation_steps", None) or 1) > 1)
    return (elements + extra * prod(shape)) * type_bytes


def torch_slot_bytes(
    optimizer: Any, group: Mapping[str, Any], shape: Shape, type_bytes: int
) -> int | None:
    """
    Bytes that a PyTorch optimizer will keep for one weight.

    Args:
        optimizer: the optimizer of the weight.
        group: the parameter group with its settings.
        shape: shape of the weight.
        type_bytes: bytes per element.
    """
    rule = _rule(optimizer, _TORCH)
    if rule is None:
        return None
    counters = _TORCH_COUNTERS.get(type(optimizer).__name__, 1)
    return rule(lambda name: group.get(name) or 0, shape) * type_bytes + counters * _COUNTER_BYTES


_Settings = Callable[[str], Any]  # setting name -> value; 0 if the setting does not exist
_Rule = Callable[[_Settings, Shape], int]  # elements kept for a weight of that shape


def _rule(optimizer: Any, table: Mapping[str, _Rule]) -> _Rule | None:
    for kind in type(optimizer).__mro__:
        if kind.__name__ in table:
            return table[kind.__name__]
    return None


def _copies_of_weight(count: int) -> _Rule:
    return lambda _, shape: count * prod(shape)


def _adam(settings: _Settings, shape: Shape) -> int:
    return (3 if settings("amsgrad") else 2) * prod(shape)


def _momentum(settings: _Settings, shape: Shape) -> int:
    return prod(shape) if settings("momentum") else 0


def _rmsprop(settings: _Settings, shape: Shape) -> int:
    return (1 + bool(settings("momentum")) + bool(settings("centered"))) * prod(shape)


def _keras_adafactor(_: _Settings, shape: Shape) -> int:
    """Rows and columns of the last two dimensions, and a full second moment in addition."""
    if len(shape) < 2:
        return prod(shape) + 2
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1] + prod(shape)


def _keras_muon(_: _Settings, shape: Shape) -> int:
    """Matrices have a momentum; Adam handles the others."""
    return (1 if len(shape) == 2 else 2) * prod(shape)


def _torch_adafactor(_: _Settings, shape: Shape) -> int:
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


def _torch_lbfgs(settings: _Settings, shape: Shape) -> int:
    # Steps and gradient differences for `history_size` steps, direction, last gradient.
    return (2 * int(settings("history_size") or 100) + 2) * prod(shape)


_KERAS: dict[str, _Rule] = {
    "SGD": _momentum,
    "Adam": _adam,
    "AdamW": _adam,
    "Nadam": _copies_of_weight(2),
    "Adamax": _copies_of_weight(2),
    "Adagrad": _copies_of_weight(1),
    "Adadelta": _copies_of_weight(2),
    "Adafactor": _keras_adafactor,
    "RMSprop": _rmsprop,
    "Ftrl": _copies_of_weight(2),
    "Lion": _copies_of_weight(1),
    "Lamb": _copies_of_weight(2),
    "ScheduleFreeAdamW": _copies_of_weight(2),
    "Muon": _keras_muon,
}
_TORCH: dict[str, _Rule] = {
    "SGD": _momentum,
    "Adam": _adam,
    "AdamW": _adam,
    "NAdam": _copies_of_weight(2),
    "RAdam": _copies_of_weight(2),
    "Adamax": _copies_of_weight(2),
    "SparseAdam": _copies_of_weight(2),
    "Adagrad": _copies_of_weight(1),
    "Adadelta": _copies_of_weight(2),
    "Adafactor": _torch_adafactor,
    "RMSprop": _rmsprop,
    "Rprop": _copies_of_weight(2),
    "ASGD": _copies_of_weight(1),
    "LBFGS": _torch_lbfgs,
    "Muon": _copies_of_weight(1),
    "Lion": _copies_of_weight(1),  # of several packages; not PyTorch's own
}
# Scalars per weight, if not one.
_TORCH_COUNTERS = {
    "SGD": 0, "LBFGS": 0, "Muon": 0, "Lion": 0, "SparseAdam": 0, "NAdam": 2, "ASGD": 3,
}  # fmt: skip
