"""
Check that a PyTorch optimizer can step with the state in a rescue.

`load_state_dict` accepts any state, and then the next step of the training would fail. So this
module tries a step first, with the settings of the rescue, on a weight of two elements per
dimension.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from watchdog_app.agent.contain import describe
from watchdog_app.agent.state import torch_tensors

# Optimizers that a Rescue of the program saves, and those of our trial steps. The agent does not
# find trainings by them.
saved_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

_NO_TRIAL = (torch.optim.LBFGS, torch.optim.SparseAdam)  # need more than a dense gradient


def unusable_reason(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> str | None:
    """
    Why a step would fail with a state; None if it would not, or for optimizers not of PyTorch.

    Args:
        optimizer: the optimizer, with as many parameters in each group as the state has.
        state: a state in the form of `state_dict`; its tensors need no values.
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
            weights = map(torch_tensors.local, group["params"])
            for weight, number in zip(weights, saved["params"], strict=True):
                slots = state["state"].get(number)
                if not slots or is_lazy(weight):  # the weight has had no gradient yet
                    continue
                like = weight.ndim, weight.dtype
                if like not in made:
                    made[like] = _expected_slots(optimizer, group, saved, weight)
                for key, slot in made[like].items():
                    wrong = _slot_mismatch(slots.get(key), slot, weight.shape)
                    # SGD creates its only slot when it needs one.
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
    The slots that a step with the settings of a rescue makes; none if no step can be tried.

    Raises:
        Exception: the step fails with the settings of the rescue, but not with the program's.
    """
    try:
        _trial_step(optimizer, group, weight)
    except Exception:  # the optimizer needs another kind of weight
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
    """How a slot differs from the one that a step has made; None if it does not."""
    if not isinstance(found, torch.Tensor) or not isinstance(made, torch.Tensor):
        return None if isinstance(found, type(made)) else f"a {type(found).__name__}"
    sizes = list(made.shape)
    if len(sizes) == len(shape):
        sizes = [whole if size > 1 else 1 for size, whole in zip(sizes, shape, strict=True)]
    return None if sizes == list(found.shape) else f"a tensor of shape {tuple(found.shape)}"
