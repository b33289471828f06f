"""
Whether an optimizer of PyTorch can step with the state that a rescue holds.

`load_state_dict` takes whatever it is given, and the training would end at its next step. So a step
is tried beforehand: on a weight of two elements a dimension, with the settings of the rescue.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from watchdog_app.agent.contain import describe

# Those that a Rescue of the program's saves, and ours: what finds trainings leaves them alone.
saved_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

_NO_TRIAL = (torch.optim.LBFGS, torch.optim.SparseAdam)  # they need more than a dense gradient


def unusable_reason(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> str | None:
    """
    Why a step would fail with a state, or None; also None for optimizers that are not PyTorch's.

    Args:
        optimizer: with as many parameters in each group as the state has.
        state: as `state_dict` returns it; its tensors need no values.
    """
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind or kind in _NO_TRIAL:
        return None
    try:
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
            for key, value in saved.items():
                if isinstance(group.get(key), bool) and value not in (True, False, None):
                    return f"{key} is {value!r}"
            made: dict[tuple[int, torch.dtype], dict[str, Any]] = {}  # slots of a weight
            for weight, number in zip(group["params"], saved["params"], strict=True):
                slots = state["state"].get(number)
                if not slots:  # it has had no gradient yet
                    continue
                like = weight.ndim, weight.dtype
                if like not in made:
                    made[like] = _expected_slots(optimizer, group, saved, weight)
                for key, slot in made[like].items():
                    wrong = _slot_mismatch(slots.get(key), slot, weight.shape)
                    # SGD makes its only slot when it needs one.
                    if wrong and not (kind is torch.optim.SGD and slots.get(key) is None):
                        return f"{key} of a weight is {wrong}"
    except Exception as error:
        return describe(error)
    return None


def _expected_slots(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    saved: Mapping[str, Any],
    weight: torch.Tensor,
) -> dict[str, Any]:
    """
    The slots that a step with the settings of a rescue makes; none where it cannot be tried.

    Raises:
        Exception: the step fails with them, and not with the program's settings.
    """
    try:
        _trial_step(optimizer, group, weight)
    except Exception:  # it needs something else of its weights
        return {}
    valueless = {key for key, value in saved.items() if isinstance(value, torch.Tensor)}
    return _trial_step(optimizer, {**saved, **{key: group[key] for key in valueless}}, weight)


def _trial_step(
    optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], like: torch.Tensor
) -> dict[str, Any]:
    weight = torch.zeros([2] * like.ndim, dtype=like.dtype, device=like.device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    trial = type(optimizer)([{**settings, "params": [weight]}])
    saved_optimizers.add(trial)
    trial.step()
    if not torch.isfinite(weight).all():
        raise ArithmeticError("a step with its settings makes a weight that is no number")
    return dict(trial.state[weight])


def _slot_mismatch(found: Any, made: Any, shape: torch.Size) -> str | None:
    """How a slot differs from the one that a step has made; None where it does not."""
    if not isinstance(found, torch.Tensor) or not isinstance(made, torch.Tensor):
        return None if isinstance(found, type(made)) else f"a {type(found).__name__}"
    sizes = list(made.shape)
    if len(sizes) == len(shape):
        sizes = [whole if size > 1 else 1 for size, whole in zip(sizes, shape, strict=True)]
    return None if sizes == list(found.shape) else f"a tensor of shape {tuple(found.shape)}"
