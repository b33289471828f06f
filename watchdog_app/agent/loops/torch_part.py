"""
One object that a user named: how its state is taken, compared and put back.

The plain kinds are here; modules and optimizers have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from watchdog_app.agent.loops import own_random, torch_tensors, torch_values
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.agent.saving.element_types import Row

Read = Callable[[str], torch.Tensor]
RowOf = Callable[[str], Row]

GRADIENT = "gradient"


class Part:
    """A named object whose state is plain values and tensors: a dict, a list."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def take(self, tensors: Tensors) -> Any:
        """The state as JSON; its tensors go into `tensors`."""
        return torch_values.encode(self.thing, self.name, tensors)

    def put(self, state: Any, read: Read) -> None:
        """Set the object to what `take` returned."""
        value = torch_values.decode(state, read)
        if isinstance(self.thing, list):
            self.thing[:] = value
        else:
            self.thing.clear()
            self.thing.update(value)

    def program(self) -> Any:
        """What of the program decides whether a rescue fits, as JSON."""
        return type(self.thing).__name__

    def differences(self, _state: Any, program: Any, _row: RowOf) -> list[str]:
        """What keeps the rescue from fitting, one plain phrase each."""
        now = self.program()
        if program != now:
            return [f"{self.name} is {now} in the program, {program} in the rescue"]
        return []

    def gradients(self, _tensors: Tensors, _of: set[int]) -> Any:
        """Gradients of the parameters with these ids; None where there are none."""
        return None

    def put_gradients(self, held: Any, read: Read) -> None:
        """Set the gradients that `gradients` returned."""

    def owned(self) -> Iterator[torch.Tensor]:
        """Tensors that an optimizer may train and that this part saves."""
        return iter(())


class StatefulPart(Part):
    """A scheduler, a gradient scaler, an object of the user's."""

    def take(self, tensors: Tensors) -> Any:
        """As `Part.take`."""
        return torch_values.encode(self.thing.state_dict(), self.name, tensors)

    def put(self, state: Any, read: Read) -> None:
        """As `Part.put`."""
        self.thing.load_state_dict(torch_values.decode(state, read))

    def differences(self, state: Any, program: Any, row: RowOf) -> list[str]:
        """As `Part.differences`."""
        found = super().differences(state, program, row)
        if found or not isinstance(state, dict):
            return found
        now = torch_values.encode(self.thing.state_dict(), self.name, Tensors())
        # A disabled gradient scaler has no state: it and an enabled one cannot take each other's.
        if isinstance(now, dict) and bool(now) != bool(state):
            side = "rescue" if state else "program"
            return [f"{self.name} has a state in the {side} only"]
        return []


class TensorPart(Part):
    """One tensor, filled in place."""

    def take(self, tensors: Tensors) -> Any:
        """As `Part.take`."""
        return tensors.add(self.name, self.thing.detach())

    def put(self, state: Any, read: Read) -> None:
        """As `Part.put`."""
        torch_tensors.copy_into(self.thing, read(state))

    def program(self) -> Any:
        """As `Part.program`."""
        _name, kind, shape = torch_tensors.row(self.name, self.thing)
        return torch_tensors.described(kind, shape)

    def gradients(self, tensors: Tensors, of: set[int]) -> Any:
        """As `Part.gradients`."""
        if id(self.thing) not in of or self.thing.grad is None:
            return None
        return tensors.add_gradient(f"{self.name}:{GRADIENT}", self.thing.grad)

    def put_gradients(self, held: Any, read: Read) -> None:
        """As `Part.put_gradients`."""
        if self.thing.is_leaf:
            device = self.thing.device
            self.thing.grad = None if held is None else torch_tensors.whole(held, read, device)

    def owned(self) -> Iterator[torch.Tensor]:
        """As `Part.owned`."""
        yield self.thing


class ArrayPart(Part):
    """A NumPy array, filled in place."""

    def take(self, tensors: Tensors) -> Any:
        """As `Part.take`."""
        return torch_values.encode(self.thing, self.name, tensors)

    def put(self, state: Any, read: Read) -> None:
        """As `Part.put`."""
        self.thing[...] = torch_values.decode(state, read)

    def program(self) -> Any:
        """As `Part.program`."""
        return torch_tensors.described(self.thing.dtype.name, self.thing.shape)


class GeneratorPart(Part):
    """A random generator."""

    def take(self, _tensors: Tensors) -> Any:
        """As `Part.take`."""
        return own_random.take_one(self.thing)

    def put(self, state: Any, _read: Read) -> None:
        """As `Part.put`."""
        own_random.put_one(self.thing, state)

    def program(self) -> Any:
        """As `Part.program`."""
        return own_random.take_one(self.thing)[0]
