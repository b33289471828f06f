"""What a trace of one step says, whatever the framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog_app.base.errors import WatchdogError
from watchdog_app.estimate.heap import Event


class EstimateError(WatchdogError):
    """A model cannot be estimated as it was given; the message says what is missing."""


class TraceError(EstimateError):
    """The operations of a step cannot be followed: a rougher way has to do."""


class InputSpec(NamedTuple):
    """One input of a model, for one example."""

    shape: tuple[int, ...]  # without the batch
    dtype: str  # "float32", "int64"


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes of one traced step, without weights and optimizer state."""

    batch: int
    peak_bytes: int  # gradients and activations together, at the worst moment
    kept_bytes: int  # what the backward pass waits for when it begins
    gradients_bytes: int  # of all weights, should they be held at once
    data_bytes: int  # the batch itself
    scratch_bytes: int  # of the peak, what a kernel takes for itself
    assumed: bool = False  # it decides by values, and one way was followed
    events: tuple[Event, ...] = field(repr=False, default=())  # what it takes and gives back
