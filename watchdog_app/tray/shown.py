"""
What is on the screen, and the least that brings it up to date.

Between the status and pystray's icon: an unchanged picture is not drawn, an
unchanged menu not sent.
"""

from __future__ import annotations

import threading
import time

from watchdog_app.tray.menu_model import Entry, Slots, menu
from watchdog_app.tray.state import NO_DAEMON, Outlook, outlook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from watchdog_app.core.model.status import Status


class Shown:
    """
    Icon, tooltip and menu as they are shown. Thread-safe.

    Args:
        image: makes what the icon is given of a picture.
        at_login: whether the companion starts at login, or None.
    """

    def __init__(
        self, image: Callable[[Outlook, Any], Any], at_login: Callable[[], bool | None]
    ) -> None:
        self._image = image
        self._at_login = at_login
        self._lock = threading.RLock()
        self._icon: Any = None
        self._status: Status | None = None
        self._outlook: Outlook = NO_DAEMON
        self._drawn: Outlook = NO_DAEMON  # what the icon shows
        self._slots = Slots()
        self._entries: tuple[Entry, ...] = menu(None, NO_DAEMON, now_unix_s=time.time())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The menu now."""
        return self._entries

    @property
    def outlook(self) -> Outlook:
        """What is shown now."""
        return self._outlook

    def attach(self, icon: Any, made_with: Outlook = NO_DAEMON) -> None:
        """
        Show it on this icon from now on; None: there is none for now.

        Args:
            icon: pystray's.
            made_with: what it shows already.
        """
        with self._lock:
            self._icon = icon
            self._drawn = made_with
            if icon is not None:
                self._draw()  # what has changed since it was made
                icon.update_menu()

    def opened(self) -> None:
        """The menu is about to be shown: give its lines to the tasks that are worth one."""
        with self._lock:
            self._slots.sort(self._status)
            self._show_menu()

    def update(self, status: Status | None, why_gone: str | None = None) -> Outlook:
        """Show this status; None: there is no daemon."""
        with self._lock:
            self._status = status
            self._outlook = _outlook(status, why_gone, time.time())
            if self._icon is not None:
                self._draw()
                self._dock()
            if not getattr(self._icon, "SAYS_WHEN_OPENED", False):
                self._slots.sort(status)
            self._show_menu()
            return self._outlook

    def _show_menu(self) -> None:
        entries = menu(
            self._status,
            self._outlook,
            self._slots.update(self._status),
            at_login=self._at_login(),
            now_unix_s=time.time(),
        )
        if entries != self._entries:
            self._entries = entries
            if self._icon is not None:
                self._icon.update_menu()

    def _draw(self) -> None:
        before, self._drawn = self._drawn, self._outlook
        if before.picture != self._outlook.picture:
            self._icon.icon = self._image(self._outlook, self._icon)
        if before.title != self._outlook.title:
            self._icon.title = self._outlook.title

    def _dock(self) -> None:
        """Into a tray that came after us; pystray's xorg backend asks once."""
        if getattr(self._icon, "docked", True) is False and self._icon.visible:
            self._icon.icon = self._icon.icon


def _outlook(status: Status | None, why_gone: str | None, now_unix_s: float) -> Outlook:
    if status is not None:
        return outlook(status, now_unix_s)
    if why_gone is None:
        return NO_DAEMON
    return Outlook(NO_DAEMON.picture, "The daemon cannot be reached", why_gone[:120], hot=False)
