"""What changes of a program would take off the peak, each as a number."""

from __future__ import annotations

from math import sqrt

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.estimate.record import Saving

_HALF = 2
_LEAST_BYTES = 1024 * 1024  # smaller savings are not worth a line
_SMALLER_BUFFER = 10  # times


def savings(  # noqa: PLR0917
    parts: Parts,
    kept_bytes: int | None,
    per_sample_bytes: int,
    batch: int,
    depth: int,
    ready_bytes: int,
    ready_text: str,
    framework: str,
    precision: str | None,
) -> tuple[Saving, ...]:
    """
    The changes that pay, the largest first.

    Args:
        parts: of the model.
        kept_bytes: activations that wait for the backward pass; None: not known.
        per_sample_bytes: of the law.
        batch: examples in a step.
        depth: layers that keep activations.
        ready_bytes: what the pipeline holds beyond the batch in work.
        ready_text: what of.
        framework: which one's words to use.
        precision: what is used already.
    """
    found = [
        _mixed_precision(parts, kept_bytes, framework, precision),
        *_gradient_accumulation(parts, per_sample_bytes, batch, framework),
        _checkpointing(kept_bytes, depth, framework),
        _smaller_buffer(ready_bytes, ready_text),
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
    # Activations are half as large; weights have a copy of half their size beside them.
    return Saving("mixed precision", kept // 2 - parts.trained_bytes // 2, how)


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
            saved -= parts.trained_bytes
            text = f"batch {size} and optimizer(gradient_accumulation_steps={factor})"
        found.append(Saving(f"gradient accumulation over {factor}", saved, text))
    return found


def _checkpointing(kept: int | None, depth: int, framework: str) -> Saving | None:
    if kept is None or depth < 4:
        return None
    # The root of the depth as segments: their borders stay, and one segment at a time.
    share = 1 - _HALF / sqrt(depth)
    how = "keras.remat" if framework != "torch" else "torch.utils.checkpoint"
    text = f"{how} around {round(sqrt(depth))} groups of layers: one more forward pass"
    return Saving("checkpointing of activations", int(kept * share), text)


def _smaller_buffer(ready: int, what: str) -> Saving | None:
    if not ready:
        return None
    saved = ready - ready // _SMALLER_BUFFER
    return Saving("a smaller buffer", saved, f"a tenth of {what}")
