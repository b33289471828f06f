"""What agents say in objects of their own, as records of the model."""

from __future__ import annotations

from watchdog_app.client import requests
from watchdog_app.core.model.agent import (
    BufferMemory,
    Frame,
    GrowingLine,
    MemoryGrowth,
    MemoryParts,
    MoreTensors,
    ThreadState,
)


def frame(params: requests.Frame) -> Frame:
    """A line of a Python stack."""
    return Frame(**params.values())


def memory(params: requests.MemoryParts | None) -> MemoryParts | None:
    """What the memory of a training is for."""
    if params is None:
        return None
    buffers = tuple(BufferMemory(**each.values()) for each in params.buffers)
    return MemoryParts(**{**params.values(), "buffers": buffers})


def growth(params: requests.Leaked) -> MemoryGrowth:
    """What an agent has seen growing."""
    return MemoryGrowth(
        seconds=params.seconds,
        steps=params.steps,
        refused=params.refused,
        lines=tuple(GrowingLine(**each.values()) for each in params.lines),
        tensors=tuple(MoreTensors(**each.values()) for each in params.tensors),
        complete=params.complete,
        unlooked=not params.tensors_counted,
        early=params.cut_short,
    )


def threads(params: requests.Stacked) -> list[ThreadState]:
    """What the threads of a program do, as Python knows it."""
    return [
        ThreadState(
            each.native_id,
            each.name or "?",
            frames=tuple(frame(line) for line in each.frames),
            trains=each.trains,
        )
        for each in params.threads
    ]
