"""
What a framework does for a training that is published: tells when a step begins to change the
tensors, and, where it knows how, later states at a fraction of the cost of taking them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from watchdog_app.agent.published.contents import Contents
from watchdog_app.agent.saving.layout import TensorEntry
from watchdog_app.airbag.table import Marker, News

Bytes = bytes | bytearray | memoryview


class Whole(Protocol):
    """What a rescue would hold now; `session.Capture` with everything that the session adds."""

    @property
    def entries(self) -> Sequence[TensorEntry]:
        """The tensors."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The rest, as JSON."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A state that has the same tensors as one that was published whole."""

    news: Sequence[News]  # what of the meta has changed since
    values: Bytes  # of the small tensors
    samples: Bytes  # of the large ones
    addresses: bytes | None = None  # of the large ones; None: where they were
    markers: Sequence[Marker] | None = None  # None: as they were


Refresh = Callable[[int], Refreshed | None]  # of the step that is complete


class Later(Protocol):
    """How later boundaries are told in a few hundred bytes, from a state on that was published."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """See `increments.plan`."""

    def published(self) -> bool:
        """A state was published just now; whether later ones can be told from there."""

    def now(self) -> bool:
        """Whether a step is told at this boundary: else a later one may be."""

    def take(self, also: Mapping[str, Any]) -> bytes | None:
        """As `increments` has it; None where the whole is to be told."""


class Guards:
    """
    What tells that a step has begun to change the large tensors. This one knows of nothing.

    A framework's sets the page's mark, or has a number in memory that it counts.
    """

    # Whether a step that begins after this boundary will tell; else what is published holds for
    # the boundary alone.
    trusted = True
    tells = True  # whether there is any such moment; else nothing is published

    def prepare(self) -> None:
        """Before the first step, and perhaps before there is a page."""

    def look(self, step: int) -> None:
        """The training stands at a boundary: which tensors are guarded may be asked now."""

    def guarded(self, name: str, address: int) -> bool:  # noqa: ARG002
        """Whether this tensor is changed only after the mark."""
        return False

    def markers(self) -> Iterable[Marker]:
        """Numbers in memory that change before a large tensor does."""
        return ()

    def begin(self, step_begins: Callable[[], None]) -> None:
        """From now on `step_begins` is to be called before a large tensor is changed."""

    def refresh(
        self,
        meta: Mapping[str, Any],  # noqa: ARG002
        contents: Contents,  # noqa: ARG002
    ) -> Refresh | None:
        """
        What tells cheaply how a state is at later boundaries; None where there is no such way.

        Args:
            meta: of the state that is being published whole.
            contents: its tensors.
        """
        return None

    def later(
        self,
        meta: Mapping[str, Any],  # noqa: ARG002
        contents: Contents,  # noqa: ARG002
        also: Sequence[str],  # noqa: ARG002
    ) -> Later | None:
        """
        What tells later boundaries in a few hundred bytes; None where there is no such way.

        Args:
            meta, contents: as of `refresh`.
            also: what is beside the framework's in the meta, and changes with each step.
        """
        return None

    def end(self) -> None:
        """Take hooks off."""


class Untold(Guards):
    """Of a training that cannot be copied from outside; it can still be asked to save."""

    tells = False
