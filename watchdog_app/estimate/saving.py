"""Changes of a program that lower the peak, each with its bytes."""

from __future__ import annotations

from math import sqrt

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.estimate.record import Saving
from watchdog_app.estimate.step import Ready, Subject, Traced

_HALF = 2
_LEAST_BYTES = 1024 * 1024  # smaller savings are not worth a line
_SMALLER_BUFFER = 10  # times


def savings(
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
