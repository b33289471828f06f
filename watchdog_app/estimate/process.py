"""
From what a step takes to what its process holds: weights first, then some steps, then the rest.

The figures of a framework itself were measured on Linux x86-64 with TensorFlow 2.21, Keras 3.15 and
PyTorch 2.13 (docs/estimate.md). Where the framework is already imported, what it holds is known
better from the process itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from watchdog_app.base.text.quantities import KIB, MIB
from watchdog_app.estimate.heap import Event, Memory
from watchdog_app.estimate.pool import Pool

# Resident after the import alone, and what the first step adds whatever it computes.
TENSORFLOW_BYTES = 690 * MIB
TENSORFLOW_FIRST_BYTES = 60 * MIB
# Every operation of a training graph, in all the forms that TensorFlow keeps of it.
TENSORFLOW_OP_BYTES = 33 * KIB
XLA_FIRST_BYTES = 90 * MIB
XLA_OP_BYTES = 50 * KIB  # compiled code and what compiling left behind, in the same heap
TORCH_BYTES = 222 * MIB
TORCH_FIRST_BYTES = 85 * MIB  # an optimizer imports the compiler
GPU_CONTEXT_BYTES = 600 * MIB  # of a card: driver, kernels, libraries' workspaces

# Holes that TensorFlow's pool is left with, since no two steps have the same order: a part of what
# the steps take. Its own count of live bytes beside the process, four steps of `fit`.
_RACES_SHARE = 0.15
_TORCH_WORKSPACE_BYTES = 150 * MIB  # packed matrices and layouts that its kernels keep, at most
_TORCH_WORKSPACE_SHARE = 0.6  # of what a step takes, where that is less
_SMALL_GPU_GAPS = 1.04  # blocks of a card's caching allocator are rounded up
_STEP_KEYS = 10_000_000
_STATE_KEY = -_STEP_KEYS


class Weight(NamedTuple):
    """One variable."""

    bytes: int
    drawn: bool  # its first values were computed: made with two more of its size beside it
    slots_bytes: int  # what the optimizer keeps for it


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds of its tensors."""

    live_bytes: int  # in use at the worst moment
    resident_bytes: int  # taken from the system at the worst moment


def tensorflow_cpu(
    weights: Sequence[Weight], plays: Sequence[Sequence[Event]], data_bytes: int, pooled: bool
) -> Held:
    """
    A process that builds a model, makes the optimizer's state and runs the steps.

    Args:
        weights: in the order in which they are made.
        plays: the events of one step each; steps differ where operations race each other.
        data_bytes: a batch as TensorFlow holds it.
        pooled: TensorFlow runs with oneDNN, and so with a pool of its own.
    """
    memory: Pool | Memory = Pool() if pooled else Memory()
    for at, weight in enumerate(weights):
        if weight.drawn:
            memory.take(-1, weight.bytes)
            memory.take(-2, weight.bytes)
        memory.take(_STATE_KEY - 2 * at, weight.bytes)
        if weight.drawn:
            memory.give_back(-1)
            memory.give_back(-2)
    start = memory.live_peak  # the draws are over when the steps begin
    for at, weight in enumerate(weights):
        if weight.slots_bytes:
            memory.take(_STATE_KEY - 2 * at - 1, weight.slots_bytes)
    memory.live_peak = memory.live
    for number, events in enumerate(plays, 1):
        memory.take(-3, max(1, data_bytes))
        _step(memory, events, number)
        memory.give_back(-3)
    live = memory.live_peak
    static = sum(each.bytes + each.slots_bytes for each in weights)
    holes = int(_RACES_SHARE * max(0, live - static)) if pooled else 0
    return Held(max(live, min(start, memory.peak)), memory.peak + holes)


def torch_cpu(
    weights: Sequence[Weight], events: Sequence[Event], data_bytes: int, largest_bytes: int
) -> Held:
    """
    A process that holds the weights and runs three steps, each with the optimizer's update.

    Args:
        weights: of the module.
        events: of one forward and backward pass.
        data_bytes: a batch.
        largest_bytes: the largest trained weight: the update computes with two more of its size.
    """
    memory = Memory()
    for at, weight in enumerate(weights):
        memory.take(_STATE_KEY - 2 * at, weight.bytes)
    memory.take(-3, max(1, data_bytes))
    gradients: list[int] = []
    for number in range(1, 4):
        for key in gradients:
            memory.give_back(key)
        gradients = _step(memory, events, number, to_the_end=False)
        if number == 1:
            for at, weight in enumerate(weights):
                if weight.slots_bytes:
                    memory.take(_STATE_KEY - 2 * at - 1, weight.slots_bytes)
        for key in (-1, -2):
            memory.take(key, max(1, largest_bytes))
        for key in (-1, -2):
            memory.give_back(key)
    static = sum(each.bytes + each.slots_bytes for each in weights)
    workspace = min(
        _TORCH_WORKSPACE_BYTES, _TORCH_WORKSPACE_SHARE * max(0, memory.live_peak - static)
    )
    return Held(memory.live_peak, memory.peak + int(workspace))


def on_gpu(live_bytes: int) -> Held:
    """The same tensors on a card, whose allocator rounds blocks up."""
    return Held(live_bytes, int(live_bytes * _SMALL_GPU_GAPS))


def _step(
    memory: Pool | Memory, events: Sequence[Event], number: int, *, to_the_end: bool = True
) -> list[int]:
    """Play a step; what it left is given back, or its keys come back."""
    alive: dict[int, None] = {}
    for event, size, thread in events:
        # Keys of one step are unlike those of another.
        key = event + number * _STEP_KEYS if event > 0 else event + _STATE_KEY * (number + 10)
        if size:
            memory.take(key, size, thread)
            alive[key] = None
        else:
            memory.give_back(key)
            alive.pop(key, None)
    if not to_the_end:
        return list(alive)
    for key in alive:
        memory.give_back(key)
    return []
