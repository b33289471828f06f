"""What a step of a PyTorch loop may change: looked at before it, compared and put back after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from watchdog_app.agent.exhaustion.exhaustion_loop import LoopLook
from watchdog_app.agent.loops.torch_state import TorchState


class TorchLook(LoopLook):
    """
    Every tensor counts how often it was written to: that tells whether an optimizer was at work.
    """

    def __init__(self, state: TorchState) -> None:
        self._state = state
        self._versions: list[tuple[int, int]] | None = None
        self._buffers: list[tuple[Any, Any]] = []
        self._random: dict[str, Any] = {}
        self._adding_up = False
        self._gradients: list[tuple[int, int, int]] = []

    def stepped(self) -> None:
        """See `LoopLook`."""
        stepped = self._state._stepped
        if stepped.all_have:
            self._adding_up = False
            return
        waiting = stepped.adding_up()
        self._adding_up = bool(waiting) and any(
            id(each) in waiting and each.grad is not None for each in parameters(self._state)
        )

    def take(self) -> None:
        """See `LoopLook`."""
        self._versions = self._written()
        self._buffers = [(each, each.detach().clone()) for each in buffers(self._state)]
        self._random = self._state.take_random()
        self._gradients = self._added_up() if self._adding_up else []

    def untouched(self) -> bool:
        """See `LoopLook`."""
        return self._versions is not None and self._versions == self._written()

    def put_back(self) -> bool:
        """See `LoopLook`."""
        with torch.no_grad():
            for each, value in self._buffers:
                each.copy_(value)
        self._state.put_random(self._random)
        self.drop_gradients()
        return not self._adding_up or self._gradients == self._added_up()

    def drop_gradients(self) -> None:
        """See `LoopLook`. Those that earlier batches have added up stay."""
        if not self._adding_up:
            for each in parameters(self._state):
                each.grad = None

    def let_go(self) -> None:
        """See `LoopLook`."""
        self._versions, self._buffers, self._random, self._gradients = None, [], {}, []

    def _added_up(self) -> list[tuple[int, int, int]]:
        return [
            (id(each), id(each.grad), 0 if each.grad is None else each.grad._version)
            for each in parameters(self._state)
        ]

    def _written(self) -> list[tuple[int, int]]:
        return [(id(each), each._version) for each in _trained(self._state)]


def parameters(state: TorchState) -> list[Any]:
    """Parameters of all named modules, and named tensors that are trained, once each."""
    found: dict[int, Any] = {}
    for part in state._parts.values():
        thing = part.thing
        if isinstance(thing, torch.nn.Module):
            found.update((id(each), each) for each in thing.parameters())
        elif isinstance(thing, torch.Tensor) and thing.requires_grad and thing.is_leaf:
            found[id(thing)] = thing
    return list(found.values())


def buffers(state: TorchState) -> list[Any]:
    """Statistics and the like of all named modules, once each."""
    found: dict[int, Any] = {}
    for part in state._parts.values():
        if isinstance(part.thing, torch.nn.Module):
            found.update((id(each), each) for each in part.thing.buffers())
    return list(found.values())


def _trained(state: TorchState) -> Iterator[Any]:
    yield from parameters(state)
    for part in state._parts.values():
        if isinstance(part.thing, torch.optim.Optimizer):
            for slots in part.thing.state.values():
                yield from (each for each in slots.values() if isinstance(each, torch.Tensor))
