"""The whole estimate of one model: framework, two traces, growth per example, limit, savings."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.estimate.record import (
    SPARE_SHARE,
    Estimate,
    EstimateError,
    Ready,
    Saving,
    Subject,
    Traced,
    framework_of,
)

DEFAULT_BATCH = 32
PRECISIONS = ("float32", "float16", "bfloat16")
_LOW, _HIGH = 0.85, 1.25  # factors on the memory beyond the framework's: docs/measurements.md
_MAX_GAPS = 1.5
# Refit the line until its batch is within this factor of the batch at the limit, at most twice.
_NEAR, _MAX_REFITS = 1.2, 2
_FAR = 4  # activations must exceed weights by this factor in the batches that define the line
_MAX_FACTOR = 2**20
_HALF = 2
_LEAST_BYTES = 1024 * 1024  # smaller savings are not worth a line
_SMALLER_BUFFER = 10  # times


def estimate(  # noqa: PLR0917
    model: Any,
    batch_size: int | None = None,
    input_shape: Any = None,
    optimizer: Any = None,
    loss: Any = None,
    dataset: Any = None,
    limit_bytes: int | None = None,
    precision: str | None = None,
    *,
    gpu: bool = False,
    jit_compile: bool | None = None,
    own_bytes: int | None = None,
    base_bytes: int | None = None,
) -> Estimate:
    """
    Estimate the memory that training `model` will need, without training it.

    A live model does not change. The estimate traces it on shapes: it reads or writes no weight,
    creates no optimizer state and draws no random number.

    Args:
        model: a built Keras model or a PyTorch module.
        batch_size: examples in a step; None: the dataset's, else 32.
        input_shape: of one example, if the model does not define it; a list for several inputs,
            each a shape or (shape, type).
        optimizer: a name ("adam") or an optimizer; None: the model's own.
        loss: None: the model's own, else one that suits the output.
        dataset: a tf.data.Dataset or a PyTorch DataLoader, whose buffers are counted.
        limit_bytes: None: the tightest limit on this process.
        precision: "float16" or "bfloat16" for PyTorch's autocast; Keras models define their own.
        gpu: estimate the memory of a card instead of the machine's.
        jit_compile: compiled by XLA; None: as the model is compiled.
        own_bytes: memory of this process, which the limit includes; None: measured.
        base_bytes: memory of a process after importing the framework; None: the measured default.

    Raises:
        EstimateError: it is not a model, is not built, or does not define the shape of one example.
    """
    if precision not in (None, *PRECISIONS):
        raise EstimateError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}.")
    precision = None if precision == "float32" else precision
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise EstimateError(f"batch_size {batch_size!r} is no whole number above 0.")
    subject, batch = _make_subject(
        model, batch_size, input_shape, optimizer, loss, dataset, precision, gpu, jit_compile,
        base_bytes,
    )  # fmt: skip
    traced = subject.trace(batch)
    framework = subject.framework_bytes()
    ready = _prefetched(dataset, traced.data_bytes, subject.notes)
    base = framework + ready.bytes
    limit = _find_limit(limit_bytes, gpu, own_bytes)
    roomy = None
    if limit is not None:
        # Leave something to spare: the suggested batch must really fit.
        roomy = int((limit.bytes + SPARE_SHARE * framework) / (1 + SPARE_SHARE))
    line = _fit_peak_line(subject, traced, base, roomy)
    largest = None
    if limit is not None and roomy is not None:
        largest = max(line.largest(roomy), min(1, line.largest(limit.bytes)))
    spread = traced.resident_bytes + ready.bytes
    parts = subject.parts
    return Estimate(
        framework=subject.framework,
        batch_size=batch,
        weights_bytes=parts.weights_bytes,
        gradients_bytes=parts.gradients_bytes,
        optimizer_bytes=parts.optimizer_bytes,
        optimizer=parts.optimizer,
        activations_bytes=traced.kept_bytes,
        buffers_bytes=traced.data_bytes + ready.bytes,
        framework_bytes=framework,
        allocator_bytes=max(0, traced.resident_bytes - traced.live_bytes),
        peak_bytes=base + traced.resident_bytes,
        low_bytes=max(0, framework + int(_LOW * spread) - subject.margin_bytes),
        high_bytes=framework + int(_HIGH * spread) + subject.margin_bytes,
        per_sample_bytes=line.per_sample_bytes,
        fixed_bytes=line.fixed_bytes,
        floor_bytes=line.floor_bytes,
        limit_bytes=None if limit is None else limit.bytes,
        limit_text="" if limit is None else limit.text,
        largest_batch=largest,
        savings=_savings(subject, traced, line.per_sample_bytes, ready, precision),
        notes=tuple(subject.notes),
    )


@dataclass(frozen=True, slots=True)
class _PeakLine:
    """The peak as a line over the batch size, and the minimum that the weight update needs."""

    per_sample_bytes: int
    fixed_bytes: int
    floor_bytes: int  # 0: activations decide, not the weights

    def largest(self, limit_bytes: int) -> int:
        """Return the largest batch below a limit; 0: none fits."""
        if self.floor_bytes > limit_bytes:
            return 0
        return max(0, (limit_bytes - self.fixed_bytes) // self.per_sample_bytes)


def _fit_peak_line(subject: Subject, traced: Traced, base: int, limit: int | None) -> _PeakLine:
    """
    Fit a line through the peaks of two batches.

    If weights outweigh activations, the weight update sets the peak, independent of the batch. The
    line then comes from batches so large that activations decide. Workspaces stop growing at some
    batch size. So with a limit, the line goes through the batch that reaches it.

    Args:
        subject: the model to trace.
        traced: the requested batch.
        base: bytes of the process beyond the tensors of a step.
        limit: bytes that the process may use; None: no limit.
    """
    kept = max(1, traced.kept_bytes or 1)
    parts = subject.parts
    static = parts.weights_bytes + parts.gradients_bytes + (parts.optimizer_bytes or 0)
    known, other = traced, traced.batch // 2 or 2
    if kept < static:
        far = traced.batch * min(_MAX_FACTOR, _FAR * (1 + static // kept))
        known, other = subject.trace(far), far // 2
    per_sample = _slope(known, subject.trace(other))
    near = known
    for _ in range(_MAX_REFITS):
        if limit is None:
            break
        meets = near.batch + (limit - base - near.resident_bytes) // per_sample
        if not _NEAR * near.batch <= meets <= _MAX_FACTOR:
            break
        near = subject.trace(meets)
        rise = near.resident_bytes - known.resident_bytes
        per_sample = max(1, rise // (near.batch - known.batch))
    line = base + known.resident_bytes - per_sample * known.batch
    return _PeakLine(
        per_sample, max(0, line), 0 if kept >= static else base + traced.resident_bytes
    )


def _slope(first: Traced, second: Traced) -> int:
    """Return the bytes per additional example from two batches, scaled by the allocator's gaps."""
    live = (first.live_bytes - second.live_bytes) / (first.batch - second.batch)
    gaps = first.resident_bytes / max(1, first.live_bytes)
    least = first.data_bytes / first.batch
    return max(1, int(max(live * min(_MAX_GAPS, max(1.0, gaps)), least)))


def _make_subject(  # noqa: PLR0917
    model: Any, batch: int | None, shape: Any, optimizer: Any, loss: Any, dataset: Any,
    precision: str | None, gpu: bool, jit: bool | None, base: int | None,
) -> tuple[Subject, int]:  # fmt: skip
    kind = framework_of(model)
    if kind is None:
        raise EstimateError(
            f"{type(model).__name__} is neither a Keras model nor a PyTorch module. "
            "Hand in the model itself, not its class or its weights."
        )
    if kind == "torch":
        from watchdog_app.estimate import torch_step

        batch = batch or getattr(dataset, "batch_size", None) or DEFAULT_BATCH
        subject = torch_step.subject(model, shape, optimizer, loss, precision, gpu, base)
        return subject, batch
    from watchdog_app.estimate import keras_subject
    from watchdog_app.estimate.inputs import specs_from_dataset

    specs, own = specs_from_dataset(dataset) if dataset is not None else ([], None)
    batch = batch or own or getattr(dataset, "batch_size", None) or DEFAULT_BATCH
    subject = keras_subject.subject(model, shape, specs, optimizer, loss, gpu, jit, base, precision)
    return subject, batch


def _prefetched(dataset: Any, data_bytes: int, notes: list[str]) -> Ready:
    """Return the memory of a pipeline beyond the batch in use."""
    if dataset is None:
        return Ready()
    if hasattr(dataset, "element_spec") and "tensorflow" in sys.modules:
        from watchdog_app.agent.telemetry import dataset_buffers

        found = dataset_buffers.growth(dataset)
        if found is None:
            notes.append("the pipeline does not tell what its buffers are going to hold.")
            return Ready()
        return Ready(found.bytes, found.what)
    workers = getattr(dataset, "num_workers", None)
    if isinstance(workers, int):
        waiting = workers * (getattr(dataset, "prefetch_factor", None) or 2)
        if workers:
            notes.append(f"{workers} worker processes need memory in addition to this.")
        return Ready(waiting * data_bytes, f"{waiting} batches of {workers} workers")
    notes.append(f"a {type(dataset).__name__} does not tell what it holds ready.")
    return Ready()


# Changes of a program that lower the peak, each with its bytes.


def _savings(
    subject: Subject, traced: Traced, per_sample_bytes: int, ready: Ready, precision: str | None
) -> tuple[Saving, ...]:
    """
    List the worthwhile changes, the largest first.

    Args:
        subject: the model.
        traced: one step of it.
        per_sample_bytes: slope of the peak over the batch size.
        ready: memory of the pipeline beyond the batch in use.
        precision: the precision already in use.
    """
    kept, framework = traced.kept_bytes, subject.framework
    found = [
        _mixed_precision(subject.parts, kept, framework, precision),
        *_gradient_accumulation(subject.parts, per_sample_bytes, traced.batch, framework),
        _checkpointing(kept, subject.depth, framework),
        _smaller_buffer(ready),
    ]
    worth = [each for each in found if each is not None and each.bytes >= _LEAST_BYTES]
    return tuple(sorted(worth, key=lambda each: each.bytes, reverse=True))


def _mixed_precision(
    parts: Parts, kept: int | None, framework: str, precision: str | None
) -> Saving | None:
    if kept is None or precision is not None:
        return None
    how = (
        'keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model is built'
        if framework != "torch"
        else "with torch.autocast(device, dtype=torch.bfloat16): around forward pass and loss"
    )
    # Activations halve, but each trained weight also gets a copy of half its size.
    return Saving("mixed precision", kept // 2 - parts.gradients_bytes // 2, how)


def _gradient_accumulation(
    parts: Parts, per_sample: int, batch: int, framework: str
) -> list[Saving]:
    found = []
    for factor in (2, 4):
        if batch % factor:
            continue
        size = batch // factor
        saved = per_sample * (batch - size)
        text = f"batch {size}, and one update every {factor} steps"
        if framework != "torch":
            saved -= parts.gradients_bytes
            text = f"batch {size} and optimizer(gradient_accumulation_steps={factor})"
        found.append(Saving(f"gradient accumulation over {factor}", saved, text))
    return found


def _checkpointing(kept: int | None, depth: int, framework: str) -> Saving | None:
    if kept is None or depth < 4:
        return None
    # With sqrt(depth) segments, the borders of all segments and the activations of one are kept.
    share = 1 - _HALF / sqrt(depth)
    how = "keras.remat" if framework != "torch" else "torch.utils.checkpoint"
    text = f"{how} around {round(sqrt(depth))} groups of layers: one more forward pass"
    return Saving("checkpointing of activations", int(kept * share), text)


def _smaller_buffer(ready: Ready) -> Saving:
    saved = ready.bytes - ready.bytes // _SMALLER_BUFFER
    return Saving("a smaller buffer", saved, f"a tenth of {ready.text}")


def _find_limit(given: int | None, gpu: bool, own_bytes: int | None) -> Limit | None:
    if given is not None:
        return Limit(given, "the limit that was given")
    if gpu:
        return gpu_limit()
    return tightest_limit(resident_bytes() if own_bytes is None else own_bytes)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    from watchdog_app.base.linux.process import read_statm

    statm = read_statm()
    return 0 if statm is None else statm.resident_bytes


# The tightest limit on a process that would start here now.


class Limit(NamedTuple):
    """Bytes that a new training may use, and the source of this limit."""

    bytes: int
    text: str


def tightest_limit(own_bytes: int = 0) -> Limit | None:
    """
    Return the most memory that a training could use if it started now; None: unknown.

    The limit is the smallest of three: free memory of the machine, free memory in the groups above
    this process, and the address space that `ulimit -v` leaves.

    Args:
        own_bytes: memory that the training already uses, if it is this process.
    """
    free = _free()
    found = [] if free is None else [free._replace(bytes=free.bytes + own_bytes)]
    return min([*found, *filter(None, (_address_space(),))], default=None)


def _free() -> Limit | None:
    if not sys.platform.startswith("linux"):
        import psutil

        return Limit(int(psutil.virtual_memory().available), "memory available now")
    from watchdog_app.base.linux.cgroups import Layout, available_memory
    from watchdog_app.base.linux.files import read_or_empty

    layout = Layout.discover(read_or_empty("/proc/self/mountinfo", 1 << 20))
    least = available_memory(layout.locate(read_or_empty("/proc/self/cgroup")))
    if least.group is not None:
        text = f"left of the memory group's {format_bytes(least.total_bytes)}"
        return Limit(least.free_bytes, text)
    return Limit(least.free_bytes, "memory available now") if least.total_bytes else None


def _address_space() -> Limit | None:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    return Limit(soft, "address space under ulimit -v, of which much is never used")


def gpu_limit() -> Limit | None:
    """
    Return the free memory of the first card that CUDA may use; None: no card, or unknown.

    An index in CUDA_VISIBLE_DEVICES is taken as nvidia-smi's. The two differ only on a machine with
    unlike cards and without CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    import subprocess

    card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    if not card:
        return None
    query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    words = ["nvidia-smi", f"--id={card}", *query]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
        return Limit(int(told.stdout.split()[0]) * MIB, "free on the card now")
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
