"""A model to estimate, as one framework's half of this package sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from watchdog_app.agent.telemetry.parts import Parts
from watchdog_app.estimate.process import Held


@dataclass(frozen=True, slots=True)
class Traced:
    """What one batch size takes."""

    batch: int
    held: Held
    kept_bytes: int | None  # of activations, at the beginning of the backward pass
    data_bytes: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as one framework's half of this package sees it."""

    framework: str
    parts: Parts
    trace: Callable[[int], Traced]  # of a batch
    framework_bytes: Callable[[], int]  # after the trace
    depth: int  # layers that keep activations
    notes: list[str] = field(default_factory=list)
