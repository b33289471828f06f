"""
What a training step may have changed when it fails: kept before it, compared and put back after.

A step that runs out of memory in its forward pass has moved statistics, seeds, counters and
metrics, and has left the weights alone; one that fails while it applies gradients has torn them.
The former are kept whole; they are small. Of weights and slots some elements of each are kept,
which tell whether they were touched. To look at all of these costs 0.1 to 1 ms, so that it is
done as often as it pays: before every step where steps are long.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from watchdog_app.agent.state.rows import OPTIMIZER, Holding

_SHARE = 0.001  # of the time may go into looking
# Are free: a training that does not fit ends there. More of them make a short one slower, and save
# the last digits of a state that has cost nothing yet.
_FIRST_LOOKS = 10
_MOST_SAMPLED = 64
ELEMENTS = 8  # of each that is sampled, about


class Pace:
    """When to look, so that looking takes its share of the time and no more."""

    def __init__(self, *, always: bool = False) -> None:
        """
        Args:
            always: before each step, whatever that costs.
        """
        self._always = always
        self._left = _FIRST_LOOKS
        self._next_s = 0.0  # asked at every step: one comparison, whatever the reason

    def due(self, now_s: float) -> bool:
        """Whether to look now."""
        return now_s >= self._next_s

    def looked(self, began_s: float, ended_s: float) -> None:
        """That took so long."""
        self._left -= 1
        if self._left <= 0 and not self._always:
            self._next_s = ended_s + (ended_s - began_s) / _SHARE


class StepCopies(ABC):
    """The variables of a training as they were before the step that runs."""

    def __init__(self, *, always: bool = False) -> None:
        """As `Pace`."""
        self._pace = Pace(always=always)
        self._known: list[int] = []
        self._small: list[Any] = []
        self._sampled: list[Any] = []
        self._kept: tuple[Sequence[Any], Sequence[Any]] | None = None

    def of(self, variables: Sequence[Holding], trained: Sequence[int]) -> None:
        """
        The variables that the training has now.

        Args:
            variables: all of them.
            trained: positions of those that gradients are applied to.
        """
        known = [id(item.holder) for item in variables]
        if known == self._known:
            return
        self._known, self._kept = known, None
        weights = set(trained)
        small: list[Any] = []
        updated: list[Any] = []
        for index, item in enumerate(variables):
            slot = item.group == OPTIMIZER and item.row[2] != ()
            (updated if slot or index in weights else small).append(item)
        step = max(1, -(-len(updated) // _MOST_SAMPLED))
        self._small, self._sampled = small, updated[::step]
        self._begin(small, self._sampled)

    def due(self) -> bool:
        """Whether `take` would look now."""
        return self._pace.due(time.perf_counter())

    def take(self) -> None:
        """A step is about to begin."""
        began = time.perf_counter()
        self._kept = None  # frees, before more is taken
        if self._known and self._pace.due(began):
            self._kept = self._look()
            self._pace.looked(began, time.perf_counter())

    @property
    def fresh(self) -> bool:
        """Whether the step that runs was looked at before it began."""
        return self._kept is not None

    def untouched(self) -> bool:
        """Whether weights and slots are as before the step, as far as their samples tell."""
        if self._kept is None:
            return False
        _small, now = self._look()
        return all(
            np.asarray(old).tobytes() == np.asarray(new).tobytes()
            for old, new in zip(self._kept[1], now, strict=True)
        )

    def put_back(self) -> None:
        """Statistics, seeds, counters and metrics as before the step."""
        if self._kept is not None:
            for item, value in zip(self._small, self._kept[0], strict=True):
                self._set(item, value)

    def let_go(self) -> None:
        """The step is over: hold nothing that it may want to write to in place."""
        self._kept = None

    def _begin(self, small: Sequence[Any], sampled: Sequence[Any]) -> None:  # noqa: B027
        """The variables are others."""

    @abstractmethod
    def _look(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """The small ones whole, and some elements of each that is sampled."""

    @abstractmethod
    def _set(self, item: Any, value: Any) -> None:
        """Give a small one the value that `_look` gave for it."""


class TensorFlowCopies(StepCopies):
    """
    Holds references: TensorFlow writes to a new buffer while one is held.

    One operation looks at each. A graph of them all takes half the time, and 100 to 500 ms to be
    made: it pays where there is a look at every step.
    """

    def __init__(self, *, always: bool = False, compiled: bool = False) -> None:
        """
        Args:
            always: as `Pace`.
            compiled: look by a graph.
        """
        super().__init__(always=always)
        self._compiled = compiled

    def _begin(self, small: Sequence[Any], sampled: Sequence[Any]) -> None:
        whole = [_reading(item.holder) for item in small]
        some = [_sampling(item, compiled=self._compiled) for item in sampled]

        def look() -> tuple[list[Any], list[Any]]:
            return [read() for read in whole], [read() for read in some]

        self._read: Callable[[], tuple[Sequence[Any], Sequence[Any]]] = look
        if self._compiled:
            import tensorflow as tf

            self._read = tf.function(look, autograph=False).get_concrete_function()

    def _look(self) -> tuple[Sequence[Any], Sequence[Any]]:
        return self._read()

    def _set(self, item: Any, value: Any) -> None:
        item.holder.assign(value)


class TorchCopies(StepCopies):
    """Copies: PyTorch writes in place. Layers draw from its global random numbers as well."""

    def put_back(self) -> None:
        """As `StepCopies.put_back`, and the random numbers."""
        import torch

        if self._kept is not None:
            super().put_back()
            torch.set_rng_state(self._random[0])
            if self._random[1] is not None:
                torch.cuda.set_rng_state_all(self._random[1])

    def _look(self) -> tuple[Sequence[Any], Sequence[Any]]:
        import torch

        if self._kept is None:  # else the step has failed, and this is for the comparison
            cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
            self._random = torch.get_rng_state(), cards
        return (
            [item.tensor.detach().clone() for item in self._small],
            [
                item.tensor.detach().reshape(-1)[:: _stride(item)].cpu().clone()
                for item in self._sampled
            ],
        )

    def _set(self, item: Any, value: Any) -> None:
        import torch

        with torch.no_grad():
            item.tensor.copy_(value)


def _reading(variable: Any) -> Callable[[], Any]:
    """What reads a variable of TensorFlow's, at half the price of its `read_value`."""
    from tensorflow import raw_ops

    try:
        handle, dtype = variable.handle, variable.dtype
        raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    except Exception:  # one that is spread over devices
        read: Callable[[], Any] = variable.read_value
        return read
    return lambda: raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _sampling(item: Any, *, compiled: bool) -> Callable[[], Any]:
    """
    What reads some elements of a variable of TensorFlow's.

    Never by a gather from the variable itself: after one, TensorFlow copies the whole variable at
    every read for the rest of its life (`copy_on_read_mode`), in each training step as well.
    """
    import tensorflow as tf

    variable, shape, stride = item.holder, item.row[2], _stride(item)
    if shape == ():
        return _reading(variable)
    if compiled or "CPU" not in str(variable.device):
        return lambda: tf.reshape(variable.read_value(), [-1])[::stride]
    read = _reading(variable)

    def some() -> Any:
        whole = read()._numpy()  # the variable's own memory: only the elements are copied
        return whole.reshape(-1)[::stride].copy()

    return some


def _stride(item: Any) -> int:
    count: int = math.prod(item.row[2])
    return max(1, count // ELEMENTS)
