"""
The passes over the data of one training, epoch by epoch: what every framework's have in common.

A pass is known by its place among the passes of its epoch, since objects have no
name that another process would know.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from watchdog_app.agent.contain import Guard
from watchdog_app.base.errors import RescueMismatch

COUNTED = (
    "what the loop counts by itself (a `break` under `enumerate` counts from 0 again: compare "
    "rescue.step_number)"
)
LAZY = (
    "the order of data that draws global random numbers while it is read (give it a generator of "
    "its own)"
)
_SAY_AFTER_S = 2.0  # drawing finished batches again is said when it takes longer


class _PassLike(Protocol):
    drawn: int  # batches handed out
    finished: bool


class _RecordedLike(Protocol):
    finished: bool

    def next_epoch(self) -> Self: ...


P = TypeVar("P", bound=_PassLike)
R = TypeVar("R", bound=_RecordedLike)


class EpochPasses(ABC, Generic[P, R]):
    """Where each pass of the epoch stands, and where those of the rescue stood."""

    def __init__(self, say: Callable[[str], None], recorded: Callable[..., R]) -> None:
        self._say = say
        self._make_recorded = recorded
        self._epoch: list[P] = []  # passes of the current epoch as they began
        self._latest: dict[int, P] = {}  # the last pass at each place, of any epoch
        self._recorded: dict[int, R] = {}  # of the rescue, until the place is reached
        self._lost: dict[str, None] = {}
        self.began: Callable[[], None] | None = None  # to be called when a pass has
        self.gone_on = False  # a step has ended since the rescue
        self._guard = Guard("the look at what the data draws from")

    @property
    def lost(self) -> list[str]:
        """What a resume would not bring back of the order of the data, in words."""
        return list(self._lost)

    @property
    def begun(self) -> bool:
        """A pass was begun in this epoch."""
        return bool(self._epoch)

    @property
    def batch(self) -> int | None:
        """Batches handed out in the latest pass of this epoch; None before there is one."""
        return self._epoch[-1].drawn if self._epoch else None

    def new_epoch(self) -> None:
        """The next pass is the first of its epoch."""
        if any(each.drawn and not each.finished for each in self._epoch):
            self._lost[COUNTED] = None
        self._epoch = []
        self._recorded = {place: known.next_epoch() for place, known in self._recorded.items()}

    @abstractmethod
    def position(self, *args: Any) -> dict[str, dict[str, Any]]:
        """Where each place in the epoch stands, as JSON, for `continue_from`."""

    def continue_from(self, position: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the next passes begin where the recorded ones stood."""
        self._recorded = {
            int(place): self._make_recorded(**known) for place, known in position.items()
        }

    def stepped(self) -> None:
        """
        A step has ended. The first one after a resume leaves the place of the rescue for good.

        A pass that had ended there (a validation in the middle of an epoch) begins anew then.
        """
        if not self.gone_on:
            self.gone_on = True
            self._recorded = {
                place: known.next_epoch() if known.finished else known
                for place, known in self._recorded.items()
            }

    def _has_begun(self) -> None:
        """A pass stands at its beginning, or where the rescue stood."""
        if self.began is not None:
            self.began()

    def _draw(self, iterator: Iterator[Any], count: int) -> None:
        """Draw batches that the training has had, and let them go."""
        began, said = time.monotonic(), False
        for _ in range(count):
            if next(iterator, self) is self:
                return
            if not said and time.monotonic() - began > _SAY_AFTER_S:
                said = True
                self._say(f"drawing {count} batches again to find the place in the data")


def batches_of(dataset: Any) -> int | None:
    """Batches of a whole pass; None where nobody knows."""
    try:
        return len(dataset)
    except Exception:  # the user's own classes raise what they like
        return None


def check_length(saved: int | None, now: int | None) -> None:
    """
    Compare the batches of a pass in a rescue with those of the program; None: not known.

    Raises:
        RescueMismatch: they differ, as with another batch size.
    """
    if None not in (saved, now) and saved != now:
        raise RescueMismatch(
            f"The rescue is of a training with {saved} batches a pass over its data, "
            f"this one has {now}, so its place in the data has no meaning here. Train on "
            "the same data with the same batch size, or start afresh with "
            "Rescue(..., resume=False)."
        )
