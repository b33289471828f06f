"""
The state of a PyTorch loop as it is a step later, at a fraction of the cost of taking it whole.

PyTorch changes tensors in place: names, shapes and addresses stay. So after a table was made whole
the small tensors are copied again from where they lie, all by one call, and of the rest only what
can have changed is asked. Where the loop holds other tensors by now, or a part has a way of its own
to tell its state, the state is taken whole. Nothing of the program is kept alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from watchdog_app.agent.identity import attributes
from watchdog_app.agent.loops import torch_random, torch_tensors
from watchdog_app.agent.loops.torch_parts import (
    ModulePart,
    OptimizerPart,
    Part,
    TensorPart,
    parameters,
)
from watchdog_app.agent.loops.torch_tensors import Tensors
from watchdog_app.agent.published.contents import Contents, sampled
from watchdog_app.agent.published.guards import Refreshed
from watchdog_app.rescue.segment.memory import Gathering
from watchdog_app.rescue.segment.snapshot import News

_NAMES_OF_TENSORS = ("params", "param_names")  # of an optimizer's group: they stay


class Unknown(Exception):
    """A state that can only be taken whole."""


class Loop(Protocol):
    """What is told of, whether a program named it or it was found."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its objects, as they were published whole."""

    def position(self, tensors: Tensors) -> Mapping[str, Any]:
        """Where the loop stands."""

    def waiting(self) -> set[int]:
        """Ids of the parameters whose gradients wait for their optimizer's step."""

    def lost(self) -> list[str]:
        """What a resume would not bring back, in words."""

    def attributes(self) -> Mapping[str, Any] | None:
        """Plain attributes of its modules that training has changed; None: as they were."""

    def trained(self) -> list[Any]:
        """The parameters of its optimizers."""

    def same(self) -> bool:
        """Whether it consists of the same objects."""


class TorchRefresh:
    """Made at a boundary, of what was published there whole; `take` is called at later ones."""

    def __init__(self, loop: Loop, meta: Mapping[str, Any], contents: Contents) -> None:
        """
        Args:
            loop: that is published.
            meta: as it was published.
            contents: likewise.

        Raises:
            Unknown: some of this can only be taken whole.
            OSError: as `Gathering`.
        """
        self._meta = meta
        self._loop = loop
        parts = loop.parts
        self._layout = [list(_layout(part)) for part in parts.values()]
        known = {each[1] for layout in self._layout for each in layout if type(each) is tuple}
        told = [(address, size) for _name, address, size in contents.large] + (contents.small or [])
        if (
            contents.small is None
            or self._adds_up()
            or any(size and address not in known for address, size in told)
            or any(_says_more(part, meta["parts"][name]) for name, part in parts.items())
        ):
            raise Unknown
        self._values = sum(size for _, size in contents.small)
        self._gathering = Gathering([*contents.small, *sampled(contents.large)])

    def take(self, step: int) -> Refreshed | None:  # noqa: ARG002
        """What is there now; None where it must be taken whole."""
        if self._adds_up() or not self._loop.same():
            return None
        try:
            parts = self._loop.parts
            if [list(_layout(part)) for part in parts.values()] != self._layout:
                return None
        except Unknown:
            return None
        tensors = Tensors()
        news = [
            *self._values_of(parts, tensors),
            (("position",), self._loop.position(tensors)),
            (("not_restored",), self._loop.lost()),
            (("random",), torch_random.take()),
        ]
        moved = self._loop.attributes()
        if moved is not None:
            news.append(((attributes.KEY,), moved))
        if tensors.entries:
            return None
        taken = self._gathering.take()
        return Refreshed(news, taken[: self._values], taken[self._values :])

    def _values_of(self, parts: Mapping[str, Part], tensors: Tensors) -> Iterator[News]:
        for name, part in parts.items():
            if isinstance(part, OptimizerPart):
                groups = self._meta["parts"][name]["param_groups"]
                for index, (group, told) in enumerate(
                    zip(part.thing.param_groups, groups, strict=True)
                ):
                    now = {
                        key: torch_tensors.encode(group.get(key), key, tensors)
                        for key in told
                        if key not in _NAMES_OF_TENSORS
                    }
                    yield ("parts", name, "param_groups", index), {**told, **now}
            elif not isinstance(part, (ModulePart, TensorPart)):
                yield ("parts", name), part.take(tensors)

    def _adds_up(self) -> bool:
        """Gradients that wait for their optimizer are part of the state."""
        ids = self._loop.waiting()
        return bool(ids) and any(
            id(each) in ids and each.grad is not None for each in self._loop.trained()
        )


def _layout(part: Part) -> Iterator[Any]:
    """
    Which tensors a part holds and where they lie, and what else stays as long as they do.

    Raises:
        Unknown: an optimizer keeps more than tensors in its slots.
    """
    thing = part.thing
    tensors: list[Any] = []
    if isinstance(part, ModulePart):
        yield [each.training for each in thing.modules()]
        tensors = [*thing.parameters(), *thing.buffers()]
    elif isinstance(part, OptimizerPart):
        yield [len(group["params"]) for group in thing.param_groups]
        slots = [slot for each in thing.state.values() for slot in each.values()]
        tensors = [*parameters(thing), *(each for each in slots if each is not None)]
    elif isinstance(part, TensorPart):
        tensors = [thing]
    if not all(isinstance(each, torch.Tensor) for each in tensors):
        raise Unknown
    for each in tensors:
        yield id(each), each.data_ptr(), each.requires_grad


def _says_more(part: Part, told: Any) -> bool:
    """Whether a module or an optimizer tells more of itself than tensors and settings."""
    if isinstance(part, ModulePart):
        if type(part.thing).state_dict is not torch.nn.Module.state_dict:
            return True
        return sum(1 for _ in torch_tensors.tensor_names(told["state"])) != len(told["state"])
    if isinstance(part, OptimizerPart):
        own = type(part.thing).state_dict is not torch.optim.Optimizer.state_dict
        return own or told.keys() != {"state", "param_groups"}
    return False
