"""
pystray's GTK backends, mended: they take Ctrl-C away from the program, and crash at the start
where a notification service is announced and does not answer. Our notifications go another way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def mended(backend: Any) -> Any:
    """The backend's icon class without what it should not do."""

    class Icon(backend):  # type: ignore[misc]
        """An icon of GTK or of libayatana-appindicator."""

        LIVE_LABELS = False  # a new label closes an open menu

        def _initialize(self) -> None:
            self._notifier = _Silent()
            self._mark_ready()

    return Icon


class _Silent:
    """In place of pystray's connection to the notification service."""

    def hide(self) -> None:
        """Nothing is shown."""
