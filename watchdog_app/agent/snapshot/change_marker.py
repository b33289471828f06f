"""
What a framework's adapter does for a published training: it marks when a step begins to change
tensors, and refreshes later states at a fraction of the cost of a full capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from watchdog_app.agent.snapshot.contents import Contents
from watchdog_app.agent.state.rows import NamedVariable
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.segment.snapshot import Marker, News

Bytes = bytes | bytearray | memoryview


class FullState(Protocol):
    """What a rescue would hold now; `session.Capture` with everything that the session adds."""

    @property
    def entries(self) -> Sequence[TensorEntry]:
        """The tensors."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The rest, as JSON."""


class KerasTraining(Protocol):
    """A training with Keras's things, a fit or a loop."""

    @property
    def compiled(self) -> bool:
        """Whether XLA, or a strategy, has an order of its own for what a step does."""

    def variables(self) -> Sequence[NamedVariable]:
        """All of its state that are tensors of the framework."""

    def optimizers(self) -> Sequence[Any]:
        """That train it."""

    def changing(self) -> Mapping[str, Any] | None:
        """What of the JSON values may be another at each boundary; None where others are too."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A state that has the same tensors as one that was published whole."""

    news: Sequence[News]  # what of the meta has changed since
    values: Bytes  # of the small tensors
    samples: Bytes  # of the large ones
    addresses: bytes | None = None  # of the large ones; None: where they were
    markers: Sequence[Marker] | None = None  # None: as they were


Refresh = Callable[[int], Refreshed | None]  # of the step that is complete


class ChangeMarker:
    """
    Marks that a step has begun to change the large tensors. This base class marks nothing.

    A framework's marker sets the segment's mark, or counts in a number in memory.
    """

    # Whether a step that begins after this boundary sets the mark; else the published state
    # is valid at the boundary alone.
    trusted = True
    is_supported = True  # whether there is such a moment; else nothing is published

    def prepare(self) -> None:
        """Prepare before the first step, perhaps before there is a segment."""

    def update(self, step: int) -> None:
        """Update which tensors are covered; called at a boundary, before `covers`."""

    def covers(self, name: str, address: int) -> bool:  # noqa: ARG002
        """Whether this tensor is changed only after the mark."""
        return False

    def markers(self) -> Iterable[Marker]:
        """Numbers in memory that change before a large tensor does."""
        return ()

    def begin(self, step_begins: Callable[[], None]) -> None:
        """Start calling `step_begins` before a large tensor is changed."""

    def refresh(
        self,
        meta: Mapping[str, Any],  # noqa: ARG002
        contents: Contents,  # noqa: ARG002
    ) -> Refresh | None:
        """
        A function that captures later states cheaply; None where there is no such way.

        Args:
            meta: of the state that is being published whole.
            contents: its tensors.
        """
        return None

    def end(self) -> None:
        """Remove the hooks."""


class NoMarker(ChangeMarker):
    """For a training that cannot be copied from outside; it can still save itself."""

    is_supported = False
