"""The forward and backward pass of a PyTorch loop, of a whole batch or of its parts one by one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from watchdog_app.agent.exhaustion import micro_batches
from watchdog_app.agent.exhaustion.micro_batches import MicroBatches


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
    micro_batches.check(reduction)
    count = micro_batches.size_of(batch, _rows) if shrinks else None
    if count is None:
        return _part(batch, loss_of, scaler, None)
    before = _State(parameters, buffers, generators)

    def attempt(parts: list[slice]) -> torch.Tensor:
        if len(parts) == 1:
            return _part(batch, loss_of, scaler, None)
        total: torch.Tensor | None = None
        for where in parts:
            part = micro_batches.cut(batch, where)
            sizes = where.stop - where.start, parts[-1].stop
            loss = _part(
                part,
                loss_of,
                scaler,
                micro_batches.share(batch, part, sizes, reduction, weight),
            )
            total = loss if total is None else total + loss
        assert total is not None  # noqa: S101 - there is a part
        return total

    try:
        done = micro_batches.in_parts(micro, count, attempt, before.put_back)
    except BaseException:
        before.put_back()
        before.gradients_back()
        raise
    before.gradients_back()
    return done


def _part(
    batch: Any, loss_of: Callable[..., Any], scaler: Any, share: float | None
) -> torch.Tensor:
    loss = micro_batches.call(loss_of, batch)
    if share is not None:
        loss = loss * share
    (loss if scaler is None else scaler.scale(loss)).backward()
    found: torch.Tensor = loss.detach()
    return found


def _rows(leaf: Any) -> int | None:
    return int(leaf.shape[0]) if isinstance(leaf, torch.Tensor) and leaf.dim() else None


class _State:
    """What a forward and backward pass changes. Gradients that are there are put aside."""

    def __init__(self, parameters: list[Any], buffers: list[Any], generators: list[Any]) -> None:
        self._parameters = parameters
        self._gradients = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        self._buffers = [(each, each.detach().clone()) for each in buffers]
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
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
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
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
