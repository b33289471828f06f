"""The result of an estimate, also as a table; a model as a subject of a trace, and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB, format_bytes

# Share of the memory beyond the framework's that the largest batch leaves free: most estimates err
# by less.
SPARE_SHARE = 0.1
_HUGE_BATCH = 10_000_000  # examples; a larger batch only shows that the model is tiny


# The parts by their name in the table and in JSON: field and description.
_PARTS = {
    "weights": ("weights_bytes", "with statistics and frozen ones"),
    "gradients": ("gradients_bytes", "one of each trained weight"),
    "optimizer": ("optimizer_bytes", ""),  # the optimizer's name
    "activations": ("activations_bytes", "kept for the backward pass"),
    "data": ("buffers_bytes", "the batch and what is held ready"),
    "framework": ("framework_bytes", "imports, graphs, thread pools"),
    "allocator": ("allocator_bytes", "gaps and workspaces"),
}
# On a card: driver, kernels, libraries' workspaces. PyTorch 2.11 with CUDA 13 took 630 to 760 MiB
# of an H200.
GPU_CONTEXT_BYTES = 750 * MIB
# A card's caching allocator keeps blocks that are too small for the next request. It held 1.07 to
# 1.41 times the bytes in use there.
_GPU_GAPS = 1.15


class Saving(NamedTuple):
    """One change of a program, and how much it lowers the peak."""

    what: str  # "mixed precision"
    bytes: int
    text: str  # what to write, in one sentence


class PartBytes(NamedTuple):
    """One part of the memory; None: unknown."""

    name: str
    bytes: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    The memory that a training will need, in bytes.

    The parts need not add up to the peak: gradients are created while activations are freed.
    `low_bytes` and `high_bytes` enclose most of the measured runs (docs/doctor.md).
    """

    framework: str  # "tensorflow", "jax", "torch"
    batch_size: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int | None
    optimizer: str | None
    activations_bytes: int | None  # kept from the forward pass for the backward pass
    buffers_bytes: int  # the batch, and a pipeline's prefetched data
    framework_bytes: int  # the interpreter with its imports, graphs, thread pools
    allocator_bytes: int  # memory that the allocator keeps after a free, workspaces of kernels
    peak_bytes: int
    low_bytes: int
    high_bytes: int
    per_sample_bytes: int
    fixed_bytes: int
    floor_bytes: int  # minimum of any batch if the weights decide; 0: they do not
    limit_bytes: int | None
    limit_text: str  # source of the limit
    largest_batch: int | None  # fits with some to spare; 0: none fits; None: no limit
    savings: tuple[Saving, ...]
    notes: tuple[str, ...]  # assumptions, and what could not be counted

    @property
    def fits(self) -> bool | None:
        """Whether the peak stays below the limit; None without a limit."""
        return None if self.limit_bytes is None else self.peak_bytes <= self.limit_bytes

    @property
    def parts(self) -> tuple[PartBytes, ...]:
        """The parts in the order of the table."""
        return tuple(
            PartBytes(name, getattr(self, field), text or self.optimizer or "none given")
            for name, (field, text) in _PARTS.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        of_parts = [field for field, _ in _PARTS.values()]
        own = [each.name for each in fields(self) if each.name not in of_parts]
        return {name: getattr(self, name) for name in own} | {
            "parts": {each.name: each.bytes for each in self.parts},
            "fits": self.fits,
            "savings": [each._asdict() for each in self.savings],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(format_table(self))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def format_table(estimate: Estimate) -> list[str]:
    """Format the table as a list of lines."""
    peak = format_bytes(estimate.peak_bytes)
    span = f"{format_bytes(estimate.low_bytes)} to {format_bytes(estimate.high_bytes)}"
    lines = [f"Batch {estimate.batch_size}: about {peak} at the peak ({span})", ""]
    lines += [
        f"  {each.name:<12}{format_bytes(each.bytes):>10}  {each.text}" for each in estimate.parts
    ]
    lines += [
        f"  {'peak':<12}{peak:>10}  not the sum: gradients come while activations go",
        "",
        _growth_line(estimate),
        "",
        *_verdict(estimate),
    ]
    if estimate.savings:
        lines += ["", "What would save:"]
        width = max(len(each.what) for each in estimate.savings)
        lines += [
            f"  {each.what:<{width}}  {format_bytes(each.bytes):>9}  {each.text}"
            for each in estimate.savings
        ]
    if estimate.notes:
        lines += ["", *(f"Note: {each}" for each in estimate.notes)]
    return lines


def _growth_line(estimate: Estimate) -> str:
    each = f"  each example {format_bytes(estimate.per_sample_bytes)}"
    if estimate.floor_bytes:
        return f"{each}, once that is more than the update of the weights takes"
    return f"{each}, everything else {format_bytes(estimate.fixed_bytes)}"


def _format_batch(size: int) -> str:
    """Format a batch size in round numbers; `largest_batch` has the exact one."""
    if size >= _HUGE_BATCH:
        return "more than most data sets hold"
    step = 10 ** max(0, len(str(size)) - 3)
    return str(size) if step == 1 else f"about {size // step * step:,}".replace(",", " ")


def _verdict(estimate: Estimate) -> Sequence[str]:
    if estimate.limit_bytes is None:
        return ["No limit is known here: nothing is said about what fits."]
    limit = f"{format_bytes(estimate.limit_bytes)} ({estimate.limit_text})"
    if estimate.largest_batch == 0:
        return [f"Does not fit into {limit}, not even with a batch of 1."]
    largest = ""
    if estimate.largest_batch is not None:
        batch = _format_batch(estimate.largest_batch)
        largest = f" Largest batch: {batch}, with {SPARE_SHARE:.0%} to spare."
    if not estimate.fits:
        return [f"Does not fit into {limit}.{largest}"]
    close = estimate.high_bytes > estimate.limit_bytes
    word = "May just fit into" if close else "Fits into"
    return [f"{word} {limit}.{largest}"]


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
