"""What the memory of a training is for, and what of it grows, as sentences."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.agent import GrowingLine, MemoryGrowth, MemoryParts

USABLE = 0.9  # of a limit: what a batch or a buffer may be planned to fill


# What an element or an activation takes beyond its own bytes: the allocator's rounding, what is
# made on the way to it, prefetching. Chosen with a margin, as a number that kills helps nobody.
OVERHEAD = 1.25


# What a training takes once its buffer is full: tracing, kernels, threads and its first steps.
_FIRST_STEP_BYTES = 256 * 1024**2
_SHARE = 0.2  # of the task's growth: less than that a line does not explain
_OWN = 0.3  # of the largest line: a line of the program is what its owner can change
_FULL = 0.95  # of what was announced, as in core.phases
_COUNT = re.compile(r"\b(\d[\d,]*) (examples|batches)\b")
_SHUFFLE = "shuffle"


class Filling(NamedTuple):
    """A buffer that was announced and is not full yet."""

    what: str
    filled_bytes: float
    bytes: float


def about_filling(filling: Filling, room: float) -> str:
    """
    A buffer on its way, and whether it will fit.

    Args:
        filling: as it is now.
        room: bytes that may still be taken.

    What is said to fit leaves room for the overhead of its elements and for the first step.
    """
    name = filling.what.removeprefix("the ").partition(" of ")[0]
    rest = max(0.0, filling.bytes - filling.filled_bytes)
    is_full = filling.filled_bytes >= _FULL * filling.bytes
    state = f"{name[:1].upper()}{name[1:]} " + (
        f"has filled: {format_bytes(filling.bytes)}"
        if is_full
        else f"still filling: {format_bytes(filling.filled_bytes)} of {format_bytes(filling.bytes)}"
    )
    if OVERHEAD * rest + _FIRST_STEP_BYTES <= room:
        return f"{state}; what is left fits." if is_full else f"{state}; the rest fits."
    if is_full:
        state += "; it leaves too little for the training"
    else:
        state += f"; it {'will' if rest > room else 'may'} not fit"
    counted = _COUNT.search(filling.what)
    if counted is None or not filling.bytes:
        return f"{state}: make it smaller."
    count = int(counted[1].replace(",", ""))
    budget = filling.filled_bytes + room - _FIRST_STEP_BYTES
    fits = rounded(count * budget / (OVERHEAD * filling.bytes))
    if fits < 1:
        return f"{state}: make it smaller."
    call = f"shuffle({fits})" if _SHUFFLE in filling.what else f"{fits:,} {counted[2]}"
    return f"{state}: {call} would{' fit' if is_full else ''}."


def about_growth(growth: MemoryGrowth, slope_bytes_per_s: float | None = None) -> Iterator[str]:
    """
    What grows, and where.

    Args:
        growth: as the agent has seen it.
        slope_bytes_per_s: of the task; None: name what was found however small it is.
    """
    own = next((each for each in growth.lines if each.own), None)
    first = growth.lines[0] if growth.lines else None
    if own is not None and first is not None and own.bytes >= _OWN * first.bytes:
        first = own
    place = None if first is None else _short(first)
    expected = (slope_bytes_per_s or 0.0) * growth.seconds
    if first is not None and first.bytes >= _SHARE * expected:
        rate = (
            f"{format_bytes(first.bytes_per_step)} a step"
            if first.bytes_per_step is not None
            else f"{format_bytes(first.bytes)} in {growth.seconds:.0f} s"
        )
        yield f"Python objects grow {rate}: line {place} holds them."
    for each in growth.tensors[:2]:
        shape = f"({', '.join(map(str, each.shape))}{',' if len(each.shape) == 1 else ''})"
        made = "" if own is None else f" (see {_short(own)})"
        yield (
            f"{each.more:,} more tensors of {shape} live than {growth.seconds:.0f} s ago: "
            f"a list or dict holds them{made}."
        )


def _short(line: GrowingLine) -> str:
    return clean(f"{os.path.basename(line.file)}:{line.line}", 80)


def about_parts(parts: MemoryParts) -> Iterator[str]:
    """What the memory of a training is for: lines for a person, the largest part first."""
    named = [
        ("weights", parts.weights_bytes),
        ("gradients", parts.gradients_bytes),
        ("optimizer", parts.optimizer_bytes),
        ("activations", parts.activations_bytes),
        *((clean(each.what, 60), each.bytes) for each in parts.buffers),
    ]
    known = sorted(
        ((name, size) for name, size in named if size), key=lambda each: each[1], reverse=True
    )
    if known:
        batch = "" if parts.batch_size is None else f" at batch {parts.batch_size}"
        said = ", ".join(f"{name} {format_bytes(size)}" for name, size in known)
        yield f"Its memory{batch}: {said}."
        rest = (parts.resident_bytes or 0) - parts.known_bytes
        if parts.resident_bytes is not None and rest > 0:
            yield f"Besides: {format_bytes(rest)} of Python, libraries and what is not known."
    per_step = parts.python_blocks_per_step
    if per_step is not None and per_step >= 1:
        yield f"Python keeps {per_step:,.0f} more objects with each step."


def rounded(count: float) -> int:
    """Down to a number that a person would choose: two digits, or a multiple of 8."""
    whole = max(0, int(count))
    if whole < 16:
        return whole
    if whole < 1000:
        return whole - whole % 8
    step = 10 ** (len(str(whole)) - 2)
    return int(whole - whole % step)
