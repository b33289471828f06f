"""
PyTorch out of memory: what a failed step has moved, and a batch of a loop in parts.

Every tensor counts how often it was written to: that tells whether an optimizer was at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from watchdog_app.agent.adapters.torch_state import TorchState
from watchdog_app.agent.oom import micro as batches
from watchdog_app.agent.oom.micro import MicroBatches
from watchdog_app.agent.oom.record import Record
from watchdog_app.agent.state import randomness


class TorchRecord(Record):
    """
    Copies of small tensors: PyTorch writes in place. Layers draw from its global random numbers.
    """

    def take(self) -> None:
        """See `Record`."""
        super().take()
        cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._random = torch.get_rng_state(), cards

    def put_back(self) -> bool:
        """As `Record.put_back`, and the random numbers."""
        if self.taken:
            torch.set_rng_state(self._random[0])
            if self._random[1] is not None:
                torch.cuda.set_rng_state_all(self._random[1])
        return super().put_back()

    def _values(self) -> Sequence[Any]:
        return [each.detach().clone() for each in self._small]

    def _marks(self) -> list[tuple[int, int]]:
        return [(id(each), each._version) for each in self._trained]

    def _set(self, item: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            item.copy_(value)


class KerasRecord(TorchRecord):
    """Of a fit of Keras on PyTorch."""

    def of(self, small: Sequence[Any], trained: Sequence[Any]) -> None:
        """See `Record`; its variables hold the same tensors as long as the training lasts."""
        super().of([each.tensor for each in small], [each.tensor for each in trained])


class LoopRecord(TorchRecord):
    """Of a loop of the program's own, with its random numbers and gradients that add up."""

    def __init__(self, state: TorchState) -> None:
        super().__init__()
        self._state = state
        self._numbers: dict[str, Any] = {}
        self._adding_up = False
        self._gradients: list[tuple[int, int, int]] = []

    def stepped(self) -> None:
        """See `Record`."""
        stepped = self._state._stepped
        if stepped.all_have:
            self._adding_up = False
            return
        waiting = stepped.adding_up()
        self._adding_up = bool(waiting) and any(
            id(each) in waiting and each.grad is not None for each in parameters(self._state)
        )

    def take(self) -> None:
        """See `Record`."""
        self.of(buffers(self._state), ())
        super().take()
        self._numbers = self._state.take_random()
        self._gradients = self._added_up() if self._adding_up else []

    def put_back(self) -> bool:
        """See `Record`."""
        super().put_back()
        self._state.put_random(self._numbers)
        self.drop_gradients()
        return not self._adding_up or self._gradients == self._added_up()

    def drop_gradients(self) -> None:
        """See `Record`. Those that earlier batches have added up stay."""
        if not self._adding_up:
            for each in parameters(self._state):
                each.grad = None

    def let_go(self) -> None:
        """See `Record`."""
        super().let_go()
        self._small, self._numbers, self._gradients = (), {}, []

    def _marks(self) -> list[tuple[int, int]]:
        # Slots that a failed step has made count as well.
        self._trained = [*parameters(self._state), *_slots(self._state)]
        return super()._marks()

    def _added_up(self) -> list[tuple[int, int, int]]:
        return [
            (id(each), id(each.grad), 0 if each.grad is None else each.grad._version)
            for each in parameters(self._state)
        ]


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


def _slots(state: TorchState) -> Iterable[Any]:
    for part in state._parts.values():
        if isinstance(part.thing, torch.optim.Optimizer):
            for slots in part.thing.state.values():
                yield from (each for each in slots.values() if isinstance(each, torch.Tensor))


def backward(
    batch: Any,
    loss_of: Callable[..., Any],
    *,
    micro: MicroBatches,
    shrinks: bool,
    parameters: list[Any],
    buffers: list[Any],
    generators: list[Any],
    scaler: Any,
    reduction: str,
    weight: Callable[..., Any] | None,
) -> torch.Tensor:
    """
    Gradients of the loss of `batch` in `parameters`, added to what is there.

    Args:
        batch: a tensor, or tuples, lists and dicts of tensors of one length.
        loss_of: called with the batch, or with its members where it is a tuple or list.
        micro: what is known of how much fits, and learns.
        shrinks: go on with smaller parts after an error of memory.
        parameters: that are trained.
        buffers: that a forward pass writes to.
        generators: random generators beside the global ones that it draws from.
        scaler: a GradScaler, or None.
        reduction: of the loss over the samples, "mean" or "sum".
        weight: what a mean divides by, given what `loss_of` is; None: the samples.

    Returns:
        The loss of the whole batch, detached.
    """
    batches.check(reduction)
    count = batches.size_of(batch, _rows) if shrinks else None
    if count is None:
        return _part(batch, loss_of, scaler, None)
    before = _Before(parameters, buffers, generators)

    def attempt(parts: list[slice]) -> torch.Tensor:
        if len(parts) == 1:
            return _part(batch, loss_of, scaler, None)
        losses = [
            _part(part, loss_of, scaler, share)
            for part, share in batches.divided(batch, parts, reduction, weight)
        ]
        return sum(losses[1:], losses[0])

    try:
        done = batches.in_parts(micro, count, attempt, before.put_back)
    except BaseException:
        before.put_back()
        before.gradients_back()
        raise
    before.gradients_back()
    return done


def _part(
    batch: Any, loss_of: Callable[..., Any], scaler: Any, share: float | None
) -> torch.Tensor:
    loss = batches.call(loss_of, batch)
    if share is not None:
        loss = loss * share
    (loss if scaler is None else scaler.scale(loss)).backward()
    found: torch.Tensor = loss.detach()
    return found


def _rows(leaf: Any) -> int | None:
    return int(leaf.shape[0]) if isinstance(leaf, torch.Tensor) and leaf.dim() else None


class _Before:
    """What a forward and backward pass changes. Gradients that are there are put aside."""

    def __init__(self, parameters: list[Any], buffers: list[Any], generators: list[Any]) -> None:
        self._parameters = parameters
        self._gradients = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        self._buffers = [(each, each.detach().clone()) for each in buffers]
        self._random = randomness.take()
        self._own = [
            (each, each.get_state()) for each in generators if isinstance(each, torch.Generator)
        ]

    def put_back(self) -> None:
        """As before the pass; no gradients."""
        for each in self._parameters:
            each.grad = None
        with torch.no_grad():
            for each, value in self._buffers:
                each.copy_(value)
        randomness.put(self._random)
        for generator, state in self._own:
            generator.set_state(state)

    def gradients_back(self) -> None:
        """Add the gradients that were there."""
        for each, before in zip(self._parameters, self._gradients, strict=True):
            if before is None:
                continue
            if each.grad is not None:
                before.add_(each.grad)
            each.grad = before
