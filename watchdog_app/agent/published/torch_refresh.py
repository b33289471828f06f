"""
The state of a PyTorch loop as it is a step later, at a fraction of the cost of taking it whole.

PyTorch changes tensors in place: names, shapes and addresses stay. So after a table was made whole
the small tensors are copied again from where they lie, all by one call, and of the rest only what
can have changed is asked. That everything still lies there is checked each time, object by object;
where it does not, or where a part has a way of its own to tell its state, the state is taken whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from watchdog_app.agent.loops import torch_random, torch_values
from watchdog_app.agent.loops.torch_modules import ModulePart
from watchdog_app.agent.loops.torch_optimizers import OptimizerPart
from watchdog_app.agent.loops.torch_part import ArrayPart, Part, TensorPart
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.agent.published.contents import Contents, sampled
from watchdog_app.agent.published.news import news
from watchdog_app.agent.published.publisher import Refreshed
from watchdog_app.airbag.foreign_memory import Gathering
from watchdog_app.airbag.table import News

_NAMES_OF_TENSORS = ("params", "param_names")  # of an optimizer's group: they stay


class Loop(Protocol):
    """What is told of, whether a program named it or it was found."""

    parts: Mapping[str, Part]

    def position(self, tensors: Tensors) -> Mapping[str, Any]:
        """Where the loop stands."""

    def waiting(self) -> set[int]:
        """Ids of the parameters whose gradients wait for their optimizer's step."""

    def lost(self) -> list[str]:
        """What a resume would not bring back, in words."""

    def trained(self) -> list[Any]:
        """The parameters of its optimizers."""


class Unknown(Exception):
    """A part whose state cannot be told but by taking it."""


class TorchRefresh:
    """Made at a boundary, of what was published there whole; `take` is called at later ones."""

    def __init__(
        self,
        loop: Loop,
        meta: Mapping[str, Any],
        contents: Contents,
    ) -> None:
        """
        Args:
            loop: that is published.
            meta: as it was published.
            contents: likewise.

        Raises:
            Unknown: some of this can only be taken whole.
        """
        self._meta = meta
        self._loop = loop
        # (holder, key, tensor or None, address) of every tensor that was there.
        self._tensors: list[tuple[Any, Any, Any, int]] = []
        self._sizes: list[tuple[Any, int]] = []  # containers that tensors could be added to
        self._modules: list[tuple[Any, bool]] = []  # and whether they train
        self._weights: list[tuple[Any, bool]] = []  # and whether they are trained
        self._groups: list[tuple[str, int, Any, list[str]]] = []
        self._others: list[tuple[str, Part]] = []
        for name, part in loop.parts.items():
            self._note(name, part)
        self._trained = loop.trained()
        if contents.small is None or self._adds_up():
            raise Unknown
        pieces = list(contents.small)
        self._values = sum(size for _, size in pieces)
        self._gathering = Gathering([*pieces, *sampled(contents.large)])

    def take(self, step: int) -> Refreshed | None:  # noqa: ARG002
        """What is there now; None where it must be taken whole."""
        if self._adds_up() or not self._same():
            return None
        tensors, found = Tensors(), list[News]()
        for name, part in self._others:
            found += news(self._meta["parts"][name], part.take(tensors), ("parts", name))
        for name, index, group, keys in self._groups:
            before = self._meta["parts"][name]["param_groups"][index]
            path = ("parts", name, "param_groups", index)
            for key in keys:
                value = group[key]
                if value is not before[key]:
                    now = torch_values.encode(value, key, tensors)
                    found += news(before[key], now, (*path, key))
        found += news(self._meta["position"], self._loop.position(tensors), ("position",))
        found += news(self._meta["not_restored"], self._loop.lost(), ("not_restored",))
        found += news(self._meta["random"], torch_random.take(), ("random",))
        if tensors.entries:
            return None
        taken = self._gathering.take()
        return Refreshed(found, taken[: self._values], taken[self._values :])

    def _note(self, name: str, part: Part) -> None:
        thing = part.thing
        if isinstance(part, ModulePart):
            self._note_module(thing)
        elif isinstance(part, OptimizerPart):
            self._note_optimizer(name, thing)
        elif isinstance(part, TensorPart):
            self._tensors.append(({0: thing}, 0, thing, thing.data_ptr()))
        elif isinstance(part, ArrayPart):
            raise Unknown
        else:
            tensors = Tensors()
            part.take(tensors)
            if tensors.entries:
                raise Unknown
            self._others.append((name, part))

    def _note_module(self, root: Any) -> None:
        if type(root).state_dict is not torch.nn.Module.state_dict:
            raise Unknown
        for module in root.modules():
            kind = type(module)
            hooks = (*module._state_dict_hooks, *module._state_dict_pre_hooks)
            own = (
                kind.get_extra_state is not torch.nn.Module.get_extra_state
                or kind._save_to_state_dict is not torch.nn.Module._save_to_state_dict
            )
            if hooks or own:
                raise Unknown
            self._modules.append((module, module.training))
            self._sizes.append((module._modules, len(module._modules)))
            for holder in (module._parameters, module._buffers):
                self._sizes.append((holder, len(holder)))
                for key, tensor in holder.items():
                    address = 0 if tensor is None else tensor.data_ptr()
                    self._tensors.append((holder, key, tensor, address))
        self._weights += [(each, each.requires_grad) for each in root.parameters()]

    def _note_optimizer(self, name: str, optimizer: Any) -> None:
        plain = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        if not plain or optimizer._optimizer_state_dict_post_hooks:
            raise Unknown
        self._sizes.append((optimizer.state, len(optimizer.state)))
        for parameter, slots in optimizer.state.items():
            self._tensors.append((optimizer.state, parameter, slots, -1))
            self._sizes.append((slots, len(slots)))
            for key, slot in slots.items():
                if slot is not None and not isinstance(slot, torch.Tensor):
                    raise Unknown
                address = 0 if slot is None else slot.data_ptr()
                self._tensors.append((slots, key, slot, address))
        for index, group in enumerate(optimizer.param_groups):
            self._sizes.append((group["params"], len(group["params"])))
            keys = [key for key in group if key not in _NAMES_OF_TENSORS]
            self._sizes.append((group, len(group)))
            self._groups.append((name, index, group, keys))
        self._sizes.append((optimizer.param_groups, len(optimizer.param_groups)))

    def _adds_up(self) -> bool:
        """Gradients that wait for their optimizer are part of the state."""
        ids = self._loop.waiting()
        return bool(ids) and any(
            id(each) in ids and each.grad is not None for each in self._trained
        )

    def _same(self) -> bool:
        for holder, size in self._sizes:
            if len(holder) != size:
                return False
        for holder, key, tensor, address in self._tensors:
            if holder.get(key) is not tensor:
                return False
            if address > 0 and tensor.data_ptr() != address:
                return False
        for module, training in self._modules:
            if module.training is not training:
                return False
        return all(each.requires_grad is trained for each, trained in self._weights)
