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
from watchdog_app.agent.identity.data_facts import Batches, first_batch, same_sample
from watchdog_app.rescue.identity.compare import mismatch

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
    drawn: int
    total: int
    finished: bool
    length: int | None
    size: int | None
    rows: int | None

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
        self.forced = False  # resume="force": other data is no obstacle
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

    def _in_these_batches(self, known: R, now: Batches) -> None:
        """
        Let a place of the rescue stand at the same sample of this program's data.

        Raises:
            RescueMismatch: the data is another.
        """
        if None not in (known.rows, now.rows) and known.rows != now.rows:
            found = f"the data has {now.rows} rows in the program, {known.rows} in the rescue"
        elif known.size and now.size and known.size != now.size:
            same_rows = known.rows is not None and known.rows == now.rows
            drawn, text = same_sample(known.drawn, known.size, now.size)
            if not same_rows:
                drawn, text = 0, first_batch(known.size, now.size)
            known.total += drawn - known.drawn
            known.drawn = drawn
            self._say(text)
            return
        elif None not in (known.length, now.count) and known.length != now.count:
            found = (
                f"a pass over the data has {now.count} batches in the program, {known.length} in "
                "the rescue"
            )
        else:
            return
        if not self.forced:
            raise mismatch("that this training goes on from", [found])
        self._say(f'resume="force" goes on although {found}: begins at the first batch.')
        known.total, known.drawn = known.total - known.drawn, 0

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
