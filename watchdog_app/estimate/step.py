"""The result of tracing one step, for any framework, and the model as a subject of the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB

# On a card: driver, kernels, libraries' workspaces. PyTorch 2.11 with CUDA 13 took 630 to 760 MiB
# of an H200.
GPU_CONTEXT_BYTES = 750 * MIB
# A card's caching allocator keeps blocks that are too small for the next request. It held 1.07 to
# 1.41 times the bytes in use there.
_GPU_GAPS = 1.15


class EstimateError(WatchdogError):
    """A model cannot be estimated as given; the message says what is missing."""


class TraceError(EstimateError):
    """The operations of a step cannot be traced; a rougher estimate is used instead."""


def framework_of(model: object) -> str | None:
    """Return "keras" or "torch"; None: it is not a model, or a class of models."""
    bases = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(model).__mro__}
    if bases & {"keras.Model", "tf_keras.Model"}:
        return "keras"
    return "torch" if "torch.Module" in bases else None


class InputSpec(NamedTuple):
    """One input of a model, for one example."""

    shape: tuple[int, ...]  # without the batch
    dtype: str  # "float32", "int64"


@dataclass(frozen=True, slots=True)
class Traced:
    """The memory of one batch size."""

    batch: int
    live_bytes: int  # tensors in use at the peak: weights, optimizer, step, batch
    resident_bytes: int  # taken from the system for these tensors
    kept_bytes: int | None  # activations at the start of the backward pass
    data_bytes: int  # the batch itself

    @classmethod
    def on_gpu(cls, batch: int, live: int, kept: int | None, data: int) -> Traced:
        """Build the result for tensors on a card, whose allocator rounds blocks up."""
        return cls(batch, live, int(live * _GPU_GAPS), kept, data)


class Ready(NamedTuple):
    """Memory of a pipeline beyond the batch in use."""

    bytes: int = 0
    text: str = ""  # source of these bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, as one framework's part of this package prepares it."""

    framework: str
    parts: Parts
    trace: Callable[[int], Traced]  # of a batch
    framework_bytes: Callable[[], int]  # call it after the trace
    depth: int  # layers that keep activations
    notes: list[str] = field(default_factory=list)
    margin_bytes: int = 40 * MIB  # two runs of the same program differ by as much
