"""
Where the tensors of a PyTorch loop lie, and whether they all lie there still; nothing is held.

PyTorch changes tensors in place: names, shapes and addresses stay. So what was published whole can
be told later by its addresses, as long as every module and optimizer has the tensors that it had.
A program may let go of any of them: it is to be found out, and not put off.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter, call, is_
from typing import Any

import torch

_data_ptr = torch.Tensor.data_ptr
_requires_grad = attrgetter("requires_grad")


class Unknown(Exception):
    """A part whose state cannot be told but by taking it."""


class _Tensors:
    """
    Tensors by their names, in the order in which they are asked again; None among them is nothing.

    There may be hundreds, between any two steps: no line of Python is run for each.
    """

    def __init__(self, names: list[Any], tensors: list[Any]) -> None:
        self._names = names
        self._refs = [_nothing if each is None else weakref.ref(each) for each in tensors]
        self._states = _states(tensors)

    def same(self, names: list[Any], tensors: list[Any]) -> bool:
        """Whether they are the same objects under the same names, and lie where they did."""
        if len(tensors) != len(self._refs) or names != self._names:
            return False
        return all(map(is_, tensors, map(call, self._refs))) and _states(tensors) == self._states


class ModulePlaces:
    """Of a module with all that are in it."""

    def __init__(self, root: Any) -> None:
        """
        Raises:
            Unknown: its state is more than its parameters and buffers.
        """
        if type(root).state_dict is not torch.nn.Module.state_dict:
            raise Unknown
        modules = list(root.modules())
        for module in modules:
            kind = type(module)
            hooks = (*module._state_dict_hooks, *module._state_dict_pre_hooks)
            own = (
                kind.get_extra_state is not torch.nn.Module.get_extra_state
                or kind._save_to_state_dict is not torch.nn.Module._save_to_state_dict
            )
            if hooks or own:
                raise Unknown
        self._modules = [weakref.ref(each) for each in modules]
        self._shape = [(each.training, len(each._modules)) for each in modules]
        self._tensors = _Tensors(*_of_modules(modules))

    def same(self) -> bool:
        """Whether all of it is where it was, and trains as it did."""
        modules = [each for get in self._modules if (each := get()) is not None]
        shape = [(each.training, len(each._modules)) for each in modules]
        return shape == self._shape and self._tensors.same(*_of_modules(modules))


class OptimizerPlaces:
    """Of an optimizer's slots."""

    def __init__(self, name: str, optimizer: Any) -> None:
        """
        Args:
            name: under which it is saved.
            optimizer: whose state is to be followed.

        Raises:
            Unknown: its state is more than tensors in slots, and plain values in groups.
        """
        plain = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        if not plain or optimizer._optimizer_state_dict_post_hooks:
            raise Unknown
        self.name = name
        self.get: Callable[[], Any] = weakref.ref(optimizer)
        names, tensors = _of_slots(optimizer)
        if any(not isinstance(each, (torch.Tensor, type(None))) for each in tensors):
            raise Unknown
        self._slots = _Tensors(names, tensors)
        self._groups = [(len(each), len(each["params"])) for each in optimizer.param_groups]

    def same(self) -> bool:
        """Whether all of it is where it was."""
        optimizer = self.get()
        if optimizer is None:
            return False
        groups = [(len(each), len(each["params"])) for each in optimizer.param_groups]
        return groups == self._groups and self._slots.same(*_of_slots(optimizer))


class TensorPlace:
    """Of one tensor that has a name of its own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._get = weakref.ref(tensor)
        self._address = tensor.data_ptr()

    def same(self) -> bool:
        """Whether it is where it was."""
        tensor = self._get()
        return tensor is not None and tensor.data_ptr() == self._address


def _nothing() -> None:
    return None


def _of_modules(modules: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    names: list[Any] = []
    tensors: list[Any] = []
    for each in modules:
        for held in (each._parameters, each._buffers):
            if held:
                names += held
                tensors += held.values()
    return names, tensors


def _of_slots(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Parameters, each followed by its slots."""
    names: list[Any] = []
    tensors: list[Any] = []
    for parameter, slots in optimizer.state.items():
        tensors.append(parameter)
        tensors += slots.values()
        names.append(None)
        names += slots
    return names, tensors


def _states(tensors: Sequence[Any]) -> tuple[list[int], list[bool]]:
    """Of each tensor: its address, and whether it is trained."""
    there = [each for each in tensors if each is not None]
    return [*map(_data_ptr, there)], [*map(_requires_grad, there)]
