"""
A module's state: everything its `state_dict` holds, and what that leaves out.

Tensors are filled in place, one at a time, so that a resume needs no second copy
of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from watchdog_app.agent.loops import torch_tensors, torch_values
from watchdog_app.agent.loops.torch_part import GRADIENT, Part, Read, RowOf
from watchdog_app.agent.loops.torch_values import Tensors


class ModulePart(Part):
    """A model, a layer, an averaged model."""

    def take(self, tensors: Tensors) -> Any:
        """As `Part.take`."""
        state = self.thing.state_dict()
        held = {
            key: torch_values.encode(value, f"{self.name}/{key}", tensors)
            for key, value in state.items()
        }
        beside = {
            key: torch_values.encode(value.detach(), f"{self.name}/{key}", tensors)
            for key, value in self.thing.named_buffers()
            if key not in state
        }
        return {
            "state": held,
            "beside": beside,  # buffers that state_dict leaves out
            "asleep": [key for key, value in self.thing.named_modules() if not value.training],
            "frozen": [
                key for key, value in self.thing.named_parameters() if not value.requires_grad
            ],
        }

    def put(self, state: Any, read: Read) -> None:
        """As `Part.put`."""
        self._put_tensors(state["state"], read)
        self._put_beside(state["beside"], read)
        asleep, frozen = set(state["asleep"]), set(state["frozen"])
        for key, module in self.thing.named_modules():
            module.training = key not in asleep
        for key, parameter in self.thing.named_parameters():
            if parameter.requires_grad == (key in frozen):
                parameter.requires_grad_(key not in frozen)

    def program(self) -> Any:
        """As `Part.program`; what a module computes is told by `identity.torch_facts`."""
        return "module"

    def differences(self, state: Any, _program: Any, row: RowOf) -> list[str]:
        """As `Part.differences`."""
        found = []
        saved = dict(torch_values.tensor_names(state["state"]))
        now_tensors = Tensors()
        now_state = {
            key: torch_values.encode(value, f"{self.name}/{key}", now_tensors)
            for key, value in self.thing.state_dict().items()
        }
        rows = {each[0]: each for each in now_tensors.rows}
        now = dict(torch_values.tensor_names(now_state))
        for path, name in saved.items():
            shown = f"{self.name}{path}"
            before = torch_tensors.described(*row(name)[1:])
            if path not in now:
                found.append(f"{shown} {before} is in the rescue only")
                continue
            after = torch_tensors.described(*rows[now[path]][1:])
            if after != before:
                found.append(f"{shown} is {after} in the program, {before} in the rescue")
        for path, name in now.items():
            if path not in saved:
                after = torch_tensors.described(*rows[name][1:])
                found.append(f"{self.name}{path} {after} is in the program only")
        return found

    def gradients(self, tensors: Tensors, of: set[int]) -> Any:
        """As `Part.gradients`."""
        return {
            key: tensors.add_gradient(f"{self.name}/{key}:{GRADIENT}", parameter.grad)
            for key, parameter in self.thing.named_parameters()
            if parameter.grad is not None and id(parameter) in of
        }

    def put_gradients(self, held: Any, read: Read) -> None:
        """As `Part.put_gradients`."""
        for key, parameter in self.thing.named_parameters():
            name = held.get(key)
            device = parameter.device
            parameter.grad = None if name is None else torch_tensors.whole(name, read, device)

    def owned(self) -> Iterator[torch.Tensor]:
        """As `Part.owned`."""
        yield from self.thing.parameters()

    def _put_tensors(self, held: Mapping[str, Any], read: Read) -> None:
        state = self.thing.state_dict()
        own = {
            torch_tensors.place(tensor.detach())
            for tensor in (*self.thing.parameters(), *self.thing.buffers())
        }
        in_place = {
            key: value
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and torch_tensors.place(value.detach()) in own
        }
        others = {key: value for key, value in held.items() if key not in in_place}
        for key, target in in_place.items():
            # From the CPU into its place: no second tensor on the device.
            torch_tensors.copy_into(target, read(torch_values.tensor_name(held[key])))
        if others:  # a module's extra state, or what a hook of its own makes
            self.thing.load_state_dict(torch_values.decode(others, read), strict=False)

    def _put_beside(self, held: Mapping[str, Any], read: Read) -> None:
        now = dict(self.thing.named_buffers())
        for key, state in held.items():
            value = torch_values.decode(state, read)
            there = now.get(key)
            if there is not None and there.shape == value.shape and there.dtype == value.dtype:
                torch_tensors.copy_into(there, value)
                continue
            path, _, last = key.rpartition(".")
            self.thing.get_submodule(path).register_buffer(last, value, persistent=False)
