"""
PyTorch: when a step begins to change tensors, and how to refresh the state a step later.

Optimizers change weights and slots, and a hook sees each of them begin. The backward pass changes
gradients that are being accumulated, and a hook sees it begin as well. PyTorch changes tensors in
place: names, shapes and addresses stay. So after a full capture a refresh copies the small tensors
again from their addresses, in one call. Of the rest it reads only the values that can have changed.
The state needs a full capture if the loop now holds other tensors, or a part has its own
`state_dict`. This module keeps no object of the program alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from watchdog_app.agent.snapshot.change_marker import (
    ChangeMarker,
    Refresh,
    Refreshed,
    changed_values,
)
from watchdog_app.agent.snapshot.contents import Contents
from watchdog_app.agent.state import torch_tensors
from watchdog_app.agent.state.torch_parts import (
    KerasPart,
    ModulePart,
    OptimizerPart,
    Part,
    TensorPart,
    parameters,
    slots,
    submodules,
)
from watchdog_app.agent.state.torch_tensors import Tensors
from watchdog_app.rescue.segment.snapshot import Gathering, News, sample_ranges

_NAMES_OF_TENSORS = {"params", "param_names"}  # keys of an optimizer's group that never change


class NeedsFullCapture(Exception):
    """A refresh cannot capture this state."""


class TorchTraining(Protocol):
    """A PyTorch loop that the program named or the agent found."""

    @property
    def parts(self) -> Mapping[str, Part] | None:
        """The parts of the last full capture, with optimizers; None: unknown."""

    def optimizers(self) -> Iterable[Any]:
        """The optimizers that train now."""

    def waiting(self) -> set[int]:
        """The ids of the parameters whose gradients wait for a step."""

    def changing(self, tensors: Tensors) -> Mapping[str, Any] | None:
        """
        The JSON values outside the parts that may change at each boundary.

        None: the training may hold other objects than at the last full capture, or a resume would
        restore less.
        """


class TorchRefresh:
    """Refreshes a state that was published at one boundary; `capture` is called at later ones."""

    def __init__(
        self, training: TorchTraining, meta: Mapping[str, Any], contents: Contents
    ) -> None:
        """
        Args:
            training: the published training.
            meta: meta of the full capture that was published.
            contents: its tensors.

        Raises:
            NeedsFullCapture: a refresh cannot capture a part of this state.
            OSError: see `Gathering`.
        """
        self._meta = meta
        self._training = training
        parts = self._parts()
        self._layout = [_layout(part) for part in parts.values()]
        known = {each[1] for _, *rows in self._layout for each in rows}
        captured = [*contents.large, *(contents.small or ())]
        if (
            contents.small is None
            or self._accumulates_gradients()
            or any(size and address not in known for address, size in captured)
            or any(_has_custom_state(part, meta["parts"][name]) for name, part in parts.items())
        ):
            raise NeedsFullCapture
        self._values = sum(size for _, size in contents.small)
        self._addresses = contents.addresses
        self._gathering = Gathering([*contents.small, *sample_ranges(contents.large)])

    def capture(self, step: int) -> Refreshed | None:  # noqa: ARG002
        """The state now; None if it needs a full capture."""
        tensors = Tensors()
        changing = None if self._accumulates_gradients() else self._training.changing(tensors)
        if changing is None:
            return None
        try:
            parts = self._parts()
            if [_layout(part) for part in parts.values()] != self._layout:
                return None
        except NeedsFullCapture:
            return None
        news = list(self._news(parts, changing, tensors))
        if tensors.entries:
            return None
        taken = self._gathering.take()
        return Refreshed(news, taken[: self._values], taken[self._values :], self._addresses)

    def _parts(self) -> Mapping[str, Part]:
        parts = self._training.parts
        if parts is None:
            raise NeedsFullCapture
        return parts

    def _news(
        self, parts: Mapping[str, Part], changing: Mapping[str, Any], tensors: Tensors
    ) -> Iterator[News]:
        for name, part in parts.items():
            captured = self._meta["parts"][name]
            if isinstance(part, OptimizerPart):
                for index, (group, before) in enumerate(
                    zip(part.thing.param_groups, captured["param_groups"], strict=True)
                ):
                    for key, known in before.items():
                        if key in _NAMES_OF_TENSORS or (value := group.get(key)) is known:
                            continue
                        now = torch_tensors.encode(value, key, tensors)
                        path = ("parts", name, "param_groups", index, key)
                        yield from changed_values(known, now, path)
            elif not isinstance(part, (KerasPart, ModulePart, TensorPart)):
                yield from changed_values(captured, part.capture(tensors), ("parts", name))
        for key, now in changing.items():
            yield from changed_values(self._meta[key], now, (key,))

    def _accumulates_gradients(self) -> bool:
        """Whether gradients wait for their optimizer: they are then part of the state."""
        ids = self._training.waiting()
        return bool(ids) and any(
            id(each) in ids and each.grad is not None for each in _trained(self._training)
        )


def _trained(training: TorchTraining) -> list[Any]:
    """The parameters of the optimizers."""
    return [each for one in training.optimizers() for each in parameters(one)]


def _layout(part: Part) -> list[Any]:
    """
    The properties of a part that must stay the same, then id and address of each of its tensors.

    Raises:
        NeedsFullCapture: the slots of an optimizer hold other values than tensors.
    """
    thing = part.thing
    shape: list[Any] = []
    tensors: list[Any] = []
    if isinstance(part, ModulePart):
        modules = submodules(thing)
        shape = [each.training for each in modules]
        # `parameters` and `buffers` build the name of each tensor, which takes ten times as long.
        held = [values for each in modules for values in (each._parameters, each._buffers)]
        tensors = [each for values in held for each in values.values() if each is not None]
    elif isinstance(part, OptimizerPart):
        shape = [len(group["params"]) for group in thing.param_groups]
        held = [slot for each in thing.state.values() for slot in each.values()]
        tensors = [*parameters(thing), *(each for each in held if each is not None)]
    elif isinstance(part, KerasPart):
        tensors = [each.value for each in thing.variables]
    elif isinstance(part, TensorPart):
        tensors = [thing]
    if not all(issubclass(kind, torch.Tensor) for kind in set(map(type, tensors))):
        raise NeedsFullCapture
    return [shape, *[(id(each), each.data_ptr(), each.requires_grad) for each in tensors]]


def _has_custom_state(part: Part, saved: Any) -> bool:
    """Whether the state of a module or an optimizer holds more than tensors and settings."""
    if isinstance(part, ModulePart):
        if type(part.thing).state_dict is not torch.nn.Module.state_dict:
            return True
        return sum(1 for _ in torch_tensors.tensor_names(saved["state"])) != len(saved["state"])
    if isinstance(part, OptimizerPart):
        own = type(part.thing).state_dict is not torch.optim.Optimizer.state_dict
        return own or saved.keys() != {"state", "param_groups"}
    return False


class TorchMarker(ChangeMarker):
    """For a PyTorch loop that the program named or the agent found."""

    def __init__(self, training: TorchTraining) -> None:
        self._training = training
        self._hooked: weakref.WeakSet[Any] = weakref.WeakSet()
        self._addresses: set[int] = set()
        self._backward_hooked = False
        self._step_begins: Callable[..., None] = lambda *_: None
        self._hooks: list[Any] = []

    def refresh(self, meta: Mapping[str, Any], contents: Contents) -> Refresh | None:
        """See `ChangeMarker`."""
        try:
            return TorchRefresh(self._training, meta, contents).capture
        except (NeedsFullCapture, OSError):
            return None

    def update(self, step: int) -> None:  # noqa: ARG002
        """See `ChangeMarker`."""
        self._hook()
        addresses = self._addresses = set()
        waiting = self._training.waiting()
        gradients: list[torch.Tensor] = []
        for optimizer in self._training.optimizers():
            for each in parameters(optimizer):
                addresses.add(each.data_ptr())
                if each.grad is not None and id(each) in waiting:
                    gradients.append(each.grad)
            addresses.update(each.data_ptr() for each in slots(optimizer))
        if gradients:
            self._watch_backward()
            addresses.update(each.data_ptr() for each in gradients)
        addresses.discard(0)

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """See `ChangeMarker`."""
        return address in self._addresses

    def begin(self, step_begins: Callable[..., None]) -> None:
        """See `ChangeMarker`."""
        self._step_begins = step_begins
        self._hook()

    def end(self) -> None:
        """See `ChangeMarker`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._hooked.clear()

    def _hook(self) -> None:
        """Hook each optimizer that has no hook yet: a program may make new ones while it trains."""
        for each in self._training.optimizers():
            if each not in self._hooked:
                self._hooked.add(each)
                self._hooks.append(each.register_step_pre_hook(self._step_begins))

    def _watch_backward(self) -> None:
        """Call `step_begins` before the next backward pass adds to a gradient."""
        if self._backward_hooked:
            return
        trained = [each for each in _trained(self._training) if each.requires_grad]
        hook = torch.autograd.graph.register_multi_grad_hook(trained, self._step_begins, mode="any")
        self._hooks.append(hook)
        self._backward_hooked = True
