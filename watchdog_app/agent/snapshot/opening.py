"""
Whether anybody has made a page for this process, and publishing in it where that is so.

Every training comes by here: where nobody has, nothing is imported and nothing is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from watchdog_app.base import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.snapshot.change_marker import ChangeMarker, Whole
    from watchdog_app.agent.snapshot.publisher import Publisher
    from watchdog_app.rescue.checkpoint.store import RescueStore

ENVIRONMENT = "WATCHDOG_GUARD"  # as `rescue.segment.segment` has it


class OwnSegment:
    """The page of one training: of `watchdog exec`, or of the daemon, which may come later."""

    def __init__(self, marker: Callable[[], ChangeMarker] | None) -> None:
        """
        Args:
            marker: makes what tells that a step has begun; None: nothing does.
        """
        self._make_marker = marker
        self._marker: ChangeMarker | None = None
        self._publisher: Publisher | None = None

    def open(
        self,
        path: str | None,
        store: RescueStore,
        take: Callable[[int], Whole],
        also: Callable[[], Mapping[str, Any]],
    ) -> Publisher | None:
        """
        Begin to publish; None where there is no page, or not yet.

        Args:
            path: that the daemon told; None: it told of none.
            store: where rescues go.
            take, also: as `Publisher`.
        """
        here = ENVIRONMENT in os.environ
        if self._marker is None and self._make_marker is not None:
            # Where a daemon seems to run: what TensorFlow traces now counts, or never will.
            if path is None and not here and not os.path.exists(paths.socket_path()):
                return None
            self._marker = self._make_marker()
            self._marker.prepare()
        if self._marker is None or (path is None and not here):
            return None
        from watchdog_app.agent.snapshot.publisher import publisher

        about = {"directory": store.directory, "keep": store.keep}
        where = None if here else path  # whoever holds our memory looks there
        self._publisher = publisher(where, take, about, self._marker, also)
        return self._publisher

    def close(self) -> None:
        """The training is over."""
        made, self._publisher = self._publisher, None
        marker, self._marker = self._marker, None
        if made is not None:
            made.end()
        if marker is not None:
            marker.end()
