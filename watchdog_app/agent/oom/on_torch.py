"""
PyTorch out of memory: undo the changes of a failed step, and train a batch in parts.

Every tensor counts its writes (`_version`): the count shows whether an optimizer has changed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from watchdog_app.agent.adapters.torch_state import TorchState
from watchdog_app.agent.oom import micro as batches
from watchdog_app.agent.oom.micro import MicroBatches
from watchdog_app.agent.oom.record import Record
from watchdog_app.agent.state import randomness
from watchdog_app.agent.state.torch_parts import ModulePart, slots


class TorchRecord(Record):
    """Holds copies of small tensors: PyTorch writes in place, so a reference is not enough."""

    def _values(self) -> Sequence[Any]:
        return [each.detach().clone() for each in self._small]

    def _marks(self) -> list[tuple[int, int]]:
        return [(id(each), each._version) for each in self._trained]

    def _assign(self, item: torch.Tensor, value: torch.Tensor) -> None:
        with torch.no_grad():
            item.copy_(value)


class KerasRecord(TorchRecord):
    """
    The record of a Keras fit on PyTorch, with the states of PyTorch's global random generators.

    Layers draw from the global generators.
    """

    def capture(self, *, marks: bool = True) -> None:
        """See `Record`."""
        super().capture(marks=marks)
        self._random = randomness.capture()

    def restore(self) -> bool:
        """See `Record`; also restores the random generators."""
        if self.is_captured:
            randomness.restore(self._random, python_and_numpy=False)
        return super().restore()

    def set_variables(self, small: Sequence[Any], trained: Sequence[Any]) -> None:
        """See `Record`; Keras variables hold the same tensors during the whole training."""
        super().set_variables([each.tensor for each in small], [each.tensor for each in trained])


class LoopRecord(TorchRecord):
    """The record of a loop, with its random numbers, attributes and accumulated gradients."""

    def __init__(self, state: TorchState) -> None:
        super().__init__()
        self._state = state
        self._before: Any = None
        self._buffers: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
        self._accumulates = False
        self._gradients: list[tuple[int, int, int]] = []

    def stepped(self) -> None:
        """See `Record`."""
        stepped = self._state._stepped
        if stepped.all_stepped:
            self._accumulates = False
            return
        waiting = stepped.accumulating_ids()
        self._accumulates = bool(waiting) and any(
            id(each) in waiting and each.grad is not None for each in parameters(self._state)
        )

    def capture(self, *, marks: bool = True) -> None:
        """See `Record`."""
        modules = [
            part.thing for part in self._state.parts.values() if isinstance(part, ModulePart)
        ]
        parts = {id(part): part for module in modules for part in module.modules()}
        self._buffers = [
            (part, name, each)
            for part in parts.values()
            for name, each in part.named_buffers(recurse=False)
            if not is_lazy(each)
        ]
        buffers = {id(each): each for _, _, each in self._buffers}
        self.set_variables([*buffers.values()], ())
        super().capture(marks=marks)
        self._before = self._state.capture_before_step()
        self._gradients = self._gradient_versions() if self._accumulates else []

    def restore(self) -> bool:
        """See `Record`."""
        super().restore()
        if self.is_captured:
            self._state.restore_before_step(self._before)
            for part, name, each in self._buffers:  # the step may have set another tensor
                if not isinstance(part, torch.jit.ScriptModule):
                    setattr(part, name, each)
        self.drop_gradients()
        return not self._accumulates or self._gradients == self._gradient_versions()

    def drop_gradients(self) -> None:
        """See `Record`; keeps the gradients that earlier batches have accumulated."""
        if not self._accumulates:
            for each in parameters(self._state):
                each.grad = None

    def release(self) -> None:
        """See `Record`."""
        super().release()
        self._small, self._before, self._buffers, self._gradients = (), None, [], []

    def _marks(self) -> list[tuple[int, int]]:
        # Slots that the failed step has created count as changes, too.
        held = (slot for each in self._state.optimizers() for slot in slots(each))
        self._trained = [*parameters(self._state), *held]
        return super()._marks()

    def _gradient_versions(self) -> list[tuple[int, int, int]]:
        return [
            (id(each), id(each.grad), 0 if each.grad is None else each.grad._version)
            for each in parameters(self._state)
        ]


def parameters(state: TorchState) -> list[Any]:
    """Parameters of all named modules, and named tensors that are trained, without duplicates."""
    found = {id(each): each for part in state.parts.values() for each in part.tensors()}
    return [each for each in found.values() if each.is_leaf and each.requires_grad]


def backward(
    batch: Any,
    loss_of: Callable[..., Any],
    *,
    micro: MicroBatches | None,
    parameters: list[Any],
    record: Record,
    scaler: Any,
    reduction: str,
    weight: Callable[..., Any] | None,
) -> torch.Tensor:
    """
    Add the gradients of the loss of `batch` to those that `parameters` already have.

    Args:
        batch: a tensor, or tuples, lists and dicts of tensors of one length.
        loss_of: called with the batch, or with its members if it is a tuple or list.
        micro: size of the parts; it shrinks after an out-of-memory error. None: that ends the step.
        parameters: the parameters that are trained.
        record: records the values that a forward pass changes.
        scaler: a GradScaler, or None.
        reduction: reduction of the loss over the samples, "mean" or "sum".
        weight: takes the arguments of `loss_of` and returns the divisor of its mean; None: the
            number of samples.

    Returns:
        The loss of the whole batch, detached.
    """
    batches.check_reduction(reduction)
    count = None if micro is None else batches.sample_count(batch, torch.Tensor)
    if micro is None or count is None:
        return _backward_of_part(batch, loss_of, scaler, None)
    record.capture(marks=False)
    accumulated = [each.grad for each in parameters]
    for each in parameters:
        each.grad = None

    def attempt(parts: list[slice]) -> torch.Tensor:
        if len(parts) == 1:
            return _backward_of_part(batch, loss_of, scaler, None)
        losses = [
            _backward_of_part(part, loss_of, scaler, share)
            for part, share in batches.weighted_parts(batch, parts, reduction, weight)
        ]
        return sum(losses[1:], losses[0])

    try:
        return batches.run_in_parts(micro, count, attempt, record.restore)
    except BaseException:
        record.restore()
        raise
    finally:
        record.release()
        for each, before in zip(parameters, accumulated, strict=True):
            if before is not None:
                if each.grad is not None:
                    before.add_(each.grad)
                each.grad = before


def _backward_of_part(
    batch: Any, loss_of: Callable[..., Any], scaler: Any, share: float | None
) -> torch.Tensor:
    loss = batches.call_with_batch(loss_of, batch)
    if share is not None:
        loss = loss * share
    (loss if scaler is None else scaler.scale(loss)).backward()
    found: torch.Tensor = loss.detach()
    return found
