"""
The session of a PyTorch training that was found: what is saved and published, and where.

Its boundary is where an iteration of the program's loop has ended, and not where an optimizer has
stepped: a scheduler or an average may still be to come.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from watchdog_app.agent.loops import torch_random
from watchdog_app.agent.saving.store import SavedRescue
from watchdog_app.agent.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.published.publisher import Publisher


class HeldSession(Session):
    """A session that reports at any step, and saves only where that is right."""

    held = True
    beside: Publisher | None = None  # not `published`: where it steps no iteration has ended
    # Near a limit, at the last end of an iteration: step, position, random numbers.
    _ended: tuple[int, Mapping[str, Any], dict[str, Any]] | None = None

    @property
    def wants_end(self) -> bool:
        """Whether the end of this iteration is to be told: for a save, or for a page."""
        return self.link.wanted is not None or (self.beside is not None and self.beside.due)

    def tell_end(self, step: int, **position: Any) -> None:
        """An iteration has ended: publish. Where the optimizer steps nothing is published."""
        if self.beside is not None:
            self._told = position
            asked = self.beside.asked
            self._ended = (step, position, torch_random.take()) if asked else None
            self.beside.boundary(step)

    def random_at(self, step: int, **position: Any) -> dict[str, Any] | None:
        """The random numbers at the end of that iteration; None: it was not looked at."""
        ended = self._ended
        return None if ended is None or ended[:2] != (step, position) else ended[2]

    def _open_page(self) -> None:
        if self.beside is None:
            super()._open_page()
            self.beside, self.published = self.published, None

    def _attend(self, now: float, step: int, position: Mapping[str, Any]) -> SavedRescue | None:
        if not self.held:
            return super()._attend(now, step, position)
        wanted, self.link.wanted = self.link.wanted, None
        try:
            return super()._attend(now, step, position)
        finally:
            # What came in the meantime is newer.
            self.link.wanted = self.link.wanted or wanted

    def save_if_wanted(self, step: int, **position: Any) -> SavedRescue | None:
        """An iteration has ended: what is asked for is saved here. Contained like `boundary`."""
        if self.link.wanted is None:
            return None
        self.held = False
        try:
            with self.guard:
                return self._attend(time.monotonic(), step, position)
            return None
        finally:
            self.held = True
