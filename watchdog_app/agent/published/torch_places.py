"""
Where the tensors of a PyTorch loop lie, and whether they all lie there still; nothing is held.

PyTorch changes tensors in place: names, shapes and addresses stay. So what was published whole can
be told later by its addresses, as long as every module and optimizer has the tensors that it had.
A program may let go of any of them: it is to be found out, and not put off.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

_NAMES_OF_TENSORS = ("params", "param_names")  # of an optimizer's group: they stay

_Held = list[tuple[Any, Callable[[], Any], int]]  # key, tensor (None: there is none), address


class Unknown(Exception):
    """A part whose state cannot be told but by taking it."""


class ModulePlaces:
    """Of a module with all that are in it."""

    def __init__(self, root: Any) -> None:
        """
        Raises:
            Unknown: its state is more than its parameters and buffers.
        """
        if type(root).state_dict is not torch.nn.Module.state_dict:
            raise Unknown
        self._root = weakref.ref(root)
        self._modules: list[tuple[Callable[[], Any], bool, int, _Held, _Held]] = []
        for module in root.modules():
            kind = type(module)
            hooks = (*module._state_dict_hooks, *module._state_dict_pre_hooks)
            own = (
                kind.get_extra_state is not torch.nn.Module.get_extra_state
                or kind._save_to_state_dict is not torch.nn.Module._save_to_state_dict
            )
            if hooks or own:
                raise Unknown
            self._modules.append(
                (
                    weakref.ref(module),
                    module.training,
                    len(module._modules),
                    _held(module._parameters),
                    _held(module._buffers),
                )
            )
        self._trained = [(weakref.ref(each), each.requires_grad) for each in root.parameters()]

    def same(self) -> bool:
        """Whether all of it is where it was, and trains as it did."""
        for get, training, inner, parameters, buffers in self._modules:
            module = get()
            if module is None or module.training is not training or len(module._modules) != inner:
                return False
            if not (_same(module._parameters, parameters) and _same(module._buffers, buffers)):
                return False
        for get, trained in self._trained:
            each = get()
            if each is None or each.requires_grad is not trained:
                return False
        return True


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
        self._slots: list[tuple[Callable[[], Any], _Held]] = []
        for parameter, slots in optimizer.state.items():
            if any(not isinstance(each, (torch.Tensor, type(None))) for each in slots.values()):
                raise Unknown
            self._slots.append((weakref.ref(parameter), _held(slots)))
        self.keys: Sequence[list[str]] = [
            [key for key in group if key not in _NAMES_OF_TENSORS]
            for group in optimizer.param_groups
        ]
        self._groups = [(len(each), len(each["params"])) for each in optimizer.param_groups]

    def same(self) -> bool:
        """Whether all of it is where it was."""
        optimizer = self.get()
        if optimizer is None or len(optimizer.state) != len(self._slots):
            return False
        for (get, held), (parameter, slots) in zip(
            self._slots, optimizer.state.items(), strict=True
        ):
            if get() is not parameter or not _same(slots, held):
                return False
        groups = [(len(each), len(each["params"])) for each in optimizer.param_groups]
        return groups == self._groups


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


def _held(tensors: Any) -> _Held:
    return [
        (key, _nothing, 0) if each is None else (key, weakref.ref(each), each.data_ptr())
        for key, each in tensors.items()
    ]


def _same(tensors: Any, held: _Held) -> bool:
    if len(tensors) != len(held):
        return False
    for key, get, address in held:
        tensor = get()
        if tensors.get(key, held) is not tensor:
            return False
        if address and tensor.data_ptr() != address:
            return False
    return True
