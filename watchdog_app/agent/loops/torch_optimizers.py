"""
Optimizers: their state, whether they have stepped, and the schedulers that drive them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from watchdog_app.agent.loops import torch_values
from watchdog_app.agent.loops.torch_part import Read, RowOf, StatefulPart


class OptimizerPart(StatefulPart):
    """One of `torch.optim`, or a subclass: loaded by its own `load_state_dict`."""

    def put(self, state: Any, read: Read) -> None:
        """As `Part.put`."""
        # First away with the slots that are there: never two sets of them in memory.
        self.thing.state.clear()
        value = torch_values.decode(state, read)
        self.thing.load_state_dict(value)
        trained = parameters(self.thing)
        for index, slots in value["state"].items():
            if not isinstance(index, int) or index >= len(trained):
                continue
            now = self.thing.state[trained[index]]
            for key, saved in slots.items():
                there = now.get(key)
                if not isinstance(saved, torch.Tensor) or not isinstance(there, torch.Tensor):
                    continue
                # load_state_dict casts to the type of the weight: slots of higher precision
                # would lose their last bits.
                if there.dtype != saved.dtype:
                    now[key] = saved.to(there.device)

    def program(self) -> Any:
        """As `Part.program`."""
        return [[list(each.shape) for each in group["params"]] for group in self.thing.param_groups]

    def differences(self, _state: Any, program: Any, _row: RowOf) -> list[str]:
        """As `Part.differences`."""
        groups, groups_then = self.program(), program
        if len(groups) != len(groups_then):
            count = f"{len(groups)} parameter group{'' if len(groups) == 1 else 's'}"
            text = f"{self.name} has {count} in the program, {len(groups_then)} in the rescue"
            # One that thaws layers as it goes makes them while it trains.
            later = ": add those that came later before Rescue(...)"
            return [text + later if len(groups) < len(groups_then) else text]
        for index, (group, then) in enumerate(zip(groups, groups_then, strict=True)):
            where = f"group {index} of {self.name}"
            if len(group) != len(then):
                return [
                    f"{where} trains {len(group)} tensors in the program, {len(then)} in the rescue"
                ]
            for at, (shape, shape_then) in enumerate(zip(group, then, strict=True)):
                if shape != shape_then:
                    here, there = tuple(shape), tuple(shape_then)
                    which = f"tensor {at} in {where}"
                    return [f"{which} has shape {here} in the program, {there} in the rescue"]
        return []


# Those that a Rescue of the program's saves: what finds trainings by itself leaves them alone.
claimed: weakref.WeakSet[Any] = weakref.WeakSet()


class Stepped:
    """Which optimizers have stepped since the last boundary: their gradients are used up then."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._stepped: set[int] = set()
        self.all_have = False
        self._optimizers = [each for each in things if isinstance(each, torch.optim.Optimizer)]
        claimed.update(self._optimizers)
        self._hooks = [each.register_step_post_hook(self._note) for each in self._optimizers]

    def adding_up(self) -> set[int]:
        """Ids of the parameters whose gradients still wait for their optimizer's step."""
        return {
            id(item)
            for each in self._optimizers
            if id(each) not in self._stepped
            for item in parameters(each)
        }

    def forget(self) -> None:
        """A boundary has passed."""
        self._stepped.clear()
        self.all_have = False

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _note(self, optimizer: Any, *_: Any) -> None:
        self._stepped.add(id(optimizer))
        self.all_have = len(self._stepped) == len(self._optimizers)


def forgotten_schedulers(objects: Mapping[str, Any]) -> list[str]:
    """Optimizers with a scheduler that was not named, in words."""
    found = []
    for name, thing in objects.items():
        step = getattr(thing, "step", None)
        if not isinstance(thing, torch.optim.Optimizer):
            continue
        if getattr(step, "_wrapped_by_lr_sched", False) and not any(
            drives(other, thing) for other in objects.values()
        ):
            found.append(f"the learning-rate scheduler of {name}, which Rescue(...) was not given")
    return found


def drives(thing: Any, optimizer: Any) -> bool:
    """Whether `thing` is a scheduler of this optimizer, or holds one."""
    if not hasattr(thing, "load_state_dict") or not hasattr(thing, "step"):
        return False
    driven = [
        getattr(each, "optimizer", None)
        for each in (thing, *(getattr(thing, "_schedulers", None) or ()))
    ]
    # Accelerate gives schedulers a wrapper of the optimizer.
    return any(
        optimizer is one for each in driven for one in (each, getattr(each, "optimizer", None))
    )


def parameters(optimizer: Any) -> list[torch.Tensor]:
    """What it trains, in the order in which its state counts them."""
    return [item for group in optimizer.param_groups for item in group["params"]]
