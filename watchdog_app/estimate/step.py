"""What a trace of one step says, whatever the framework, and what its process holds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB

GPU_CONTEXT_BYTES = 600 * MIB  # of a card: driver, kernels, libraries' workspaces
_GPU_GAPS = 1.04  # blocks of a card's caching allocator are rounded up


class EstimateError(WatchdogError):
    """A model cannot be estimated as it was given; the message says what is missing."""


class TraceError(EstimateError):
    """The operations of a step cannot be followed: a rougher way has to do."""


class InputSpec(NamedTuple):
    """One input of a model, for one example."""

    shape: tuple[int, ...]  # without the batch
    dtype: str  # "float32", "int64"


@dataclass(frozen=True, slots=True)
class Traced:
    """What one batch size takes."""

    batch: int
    live_bytes: int  # of tensors in use at the worst moment: weights, optimizer, step, batch
    resident_bytes: int  # taken from the system for them
    kept_bytes: int | None  # of activations, at the beginning of the backward pass
    data_bytes: int  # the batch itself

    @classmethod
    def on_gpu(cls, batch: int, live: int, kept: int | None, data: int) -> Traced:
        """The tensors on a card, whose allocator rounds blocks up."""
        return cls(batch, live, int(live * _GPU_GAPS), kept, data)


class Ready(NamedTuple):
    """What a pipeline holds beyond the batch in work."""

    bytes: int = 0
    text: str = ""  # what of


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as one framework's half of this package sees it."""

    framework: str
    parts: Parts
    trace: Callable[[int], Traced]  # of a batch
    framework_bytes: Callable[[], int]  # after the trace
    depth: int  # layers that keep activations
    notes: list[str] = field(default_factory=list)
