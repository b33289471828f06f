"""What a PyTorch loop computes: module configuration, optimizers, the program's code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

from watchdog_app.agent.identity import code, data_facts, keras_facts
from watchdog_app.agent.state import torch_tensors
from watchdog_app.agent.state.torch_parts import is_of_keras
from watchdog_app.rescue.identity.run import RunIdentity

FRAMEWORK = "a PyTorch loop"
_METHODS = ("forward", "__call__", "training_step", "step", "closure")
_FIRST_DRAWN_SEED = 1 << 32  # smaller seeds are hardly ever drawn
_LEFT_OUT = re.compile(r"(^|, )(inplace|momentum|p|track_running_stats)=[^,]+")
_MOVING = ("momentum", "p")  # of normalization and dropout, which a training may change
_TORCH_LAYERS = "torch.nn."
# Start values of a schedule: they follow the learning rate of its optimizer.
_BEGINNINGS = ("initial_lr", "base_lrs")
# Optimizer settings that make it keep more state for each parameter.
_WITH_SLOTS = ("momentum", "amsgrad", "centered")
_PLACES = frozenset(("last_epoch",))  # constructor arguments of a schedule that each step changes


def gather(objects: Mapping[str, Any], *, begins: bool) -> RunIdentity:
    """
    The identity of a loop.

    Args:
        objects: by the names that the program gave them.
        begins: whether the training starts now. If not, its initial values are unknown.
    """
    return data_facts.gather(
        FRAMEWORK,
        torch.__version__,
        model=lambda: list(_modules(objects, begins)),
        code=lambda: list(_functions(objects)),
        optimizers=lambda: {
            name: keras_facts.class_of(each)
            for name, each in objects.items()
            if isinstance(each, torch.optim.Optimizer)
        },
        settings=lambda: settings_of(objects) if begins else {},
        # A larger seed was drawn by PyTorch itself.
        seeds=lambda: {"the seed": s} if (s := torch.initial_seed()) < _FIRST_DRAWN_SEED else {},
    )


def settings_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Current settings of optimizer groups and schedules."""
    found: dict[str, Any] = {}
    for label, holder in _settings_holders(objects):
        values = torch_tensors.settings(holder)
        found |= {f"{label}'s {key}": value for key, value in values.items()}
    return found


def apply_settings(objects: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Set the values of `settings_of` that differ."""
    for label, holder in _settings_holders(objects):
        for key, now in torch_tensors.settings(holder).items():
            value = values.get(f"{label}'s {key}", now)
            if value != now:
                # JSON has no tuples.
                holder[key] = tuple(value) if isinstance(holder[key], tuple) else value


def slot_settings(objects: Mapping[str, Any]) -> set[str]:
    """The settings with which an optimizer needs slots; SGD creates its slots as it steps."""
    others = {n: each for n, each in objects.items() if not isinstance(each, torch.optim.SGD)}
    holders = [label for label, _ in _settings_holders(others)]
    return {f"{label}'s {key}" for label in holders for key in _WITH_SLOTS}


def is_schedule_base(key: str) -> bool:
    """Whether a setting is a start value of a schedule."""
    return key.endswith(_BEGINNINGS)


def is_rate(key: str) -> bool:
    """Whether a setting is the learning rate of a group."""
    return key.endswith("'s lr")


def _settings_holders(objects: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The dicts that contain settings, with labels for messages."""
    for name, thing in objects.items():
        if isinstance(thing, torch.optim.Optimizer):
            many = len(thing.param_groups) > 1
            for index, group in enumerate(thing.param_groups):
                yield (
                    (f"group {index} of {name}" if many else name),
                    _Settings(group, group.keys() - {"params"}),
                )
        elif is_of_keras(thing, "Optimizer"):
            yield name, _OfKeras(thing)
        elif isinstance(thing, torch.nn.Module):
            yield name, _Frozen(thing)
        elif isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
            # The progress of a schedule is not a setting; its constructor arguments are.
            given = inspect.signature(type(thing)).parameters.keys() - _PLACES
            yield name, _Settings(vars(thing), {*given, "base_lrs"})


class _Settings(dict[str, Any]):
    """Some of the values of a dict; an assignment here also changes that dict."""

    def __init__(self, values: dict[str, Any], keys: Set[str]) -> None:
        super().__init__({key: value for key, value in values.items() if key in keys})
        self._values = values

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value


class _OfKeras(dict[str, Any]):
    """The numbers among the settings of a Keras optimizer; an assignment here sets them."""

    def __init__(self, optimizer: Any) -> None:
        found = keras_facts.settings_of({"optimizer": optimizer})
        super().__init__({key: each for key, each in found.items() if isinstance(each, float)})
        self._optimizer = optimizer

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self._optimizer, key, value)


class _Frozen(dict[str, Any]):
    """The names of a module's frozen parameters; an assignment here freezes and unfreezes them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = dict(module.named_parameters())
        frozen = [name for name, each in self._parameters.items() if not each.requires_grad]
        super().__init__({"frozen parameters": frozen})

    def __setitem__(self, key: str, value: Any) -> None:
        for name, each in self._parameters.items():
            if each.requires_grad == (name in value):
                each.requires_grad_(name not in value)


def modules_of(objects: Mapping[str, Any]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Each module in the objects, with a label for messages."""
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            for key, module in thing.named_modules():
                yield (f"{name}.{key}" if key else name), module


def _modules(objects: Mapping[str, Any], begins: bool) -> Iterator[dict[str, Any]]:
    for label, module in modules_of(objects):
        kind = getattr(module, "cls_to_become", None) or type(module)  # of a lazy layer
        found: dict[str, Any] = {
            "label": label,
            "class": code.library_class(kind),
            "inputs": None,
            "settings": {},
        }
        if code.is_own(type(module)):
            found["attributes"] = code.plain_attributes(module, begins=begins)
        # The extra_repr of other modules may contain addresses.
        elif type(module).__module__.startswith(_TORCH_LAYERS):
            found["attributes"] = _layer_attributes(module, begins)
        yield found


def _layer_attributes(module: torch.nn.Module, begins: bool) -> dict[str, Any]:
    """What a layer of PyTorch computes; a lazy one has no configuration, only a shape."""
    moving = {key: getattr(module, key) for key in _MOVING if hasattr(module, key)}
    found = moving if begins else {}
    if not hasattr(module, "cls_to_become"):
        found["configuration"] = _LEFT_OUT.sub("", module.extra_repr())
    return found


def _functions(objects: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    for thing in objects.values():
        within = thing.modules() if isinstance(thing, torch.nn.Module) else (thing,)
        for each in within:
            if id(each) not in seen and not isinstance(each, dict | list):
                seen.add(id(each))
                yield from keras_facts.object_functions(each, _METHODS)
