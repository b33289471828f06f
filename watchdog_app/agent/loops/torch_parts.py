"""Which kind of part each object is that a user named, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from watchdog_app.agent.contain import describe
from watchdog_app.agent.loops import own_random
from watchdog_app.agent.loops.torch_modules import ModulePart
from watchdog_app.agent.loops.torch_optimizers import OptimizerPart, parameters
from watchdog_app.agent.loops.torch_part import (
    ArrayPart,
    GeneratorPart,
    Part,
    StatefulPart,
    TensorPart,
)
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.base.errors import RescueError

_ACCEPTED = (
    "a module, an optimizer, a tensor, a NumPy array, a random generator, a dict or list of plain "
    "values, or an object with state_dict() and load_state_dict()"
)


def part(name: str, thing: Any) -> Part:
    """
    The part for a named object.

    Raises:
        TypeError: its state cannot be taken.
    """
    kind = _kind(name, thing)
    made = kind(name, thing)
    tensors = Tensors()
    try:
        made.take(tensors)
        made.program()
    except TypeError as error:
        raise TypeError(f"the state of {name} cannot be saved: {error}.") from error
    except Exception as error:
        raise TypeError(f"the state of {name} cannot be taken ({describe(error)}).") from error
    # Put back as new tensors, which the optimizer and the graph would not know.
    if kind is Part and tensors.any_trained():
        raise TypeError(
            f"{name} holds tensors that are trained: give each to Rescue(...) under a name of "
            "its own."
        )
    return made


def check_owners(parts: Mapping[str, Part]) -> None:
    """
    Refuse an optimizer whose weights nobody saves.

    Raises:
        RescueError: which optimizer, and how many of its tensors.
    """
    owned = {id(tensor) for each in parts.values() for tensor in each.owned()}
    for name, each in parts.items():
        if not isinstance(each, OptimizerPart):
            continue
        strays = [item for item in parameters(each.thing) if id(item) not in owned]
        if strays:
            raise RescueError(
                f"{name} trains {len(strays)} tensors that were not given to Rescue(...), so their "
                "values would be lost. Give their module too: Rescue(..., model=model)."
            )


def _kind(name: str, thing: Any) -> type[Part]:
    if isinstance(thing, torch.nn.Module):
        return ModulePart
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerPart
    if isinstance(thing, DataLoader):
        raise TypeError(
            f"{name} is a DataLoader: its place is saved when you iterate with "
            f"`for batch in rescue.data({name})` instead."
        )
    if isinstance(thing, torch.Tensor):
        return TensorPart
    if isinstance(thing, np.ndarray):
        return ArrayPart
    if own_random.is_generator(thing):
        return GeneratorPart
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return StatefulPart
    if isinstance(thing, (dict, list)):
        return Part
    raise TypeError(
        f"{name} is of type {type(thing).__name__}, whose state cannot be taken. Give {_ACCEPTED}. "
        "A single number can live in a dict."
    )
