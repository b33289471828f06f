"""
Icon, tooltip and menu as they are shown now; only changes are drawn and sent.
"""

from __future__ import annotations

import threading
import time

from watchdog_app.tray.menu_model import Entry, Slots, menu
from watchdog_app.tray.state import NO_DAEMON, TrayState, tray_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from watchdog_app.core.model.status import Status


class TrayView:
    """
    Icon, tooltip and menu as they are shown. Thread-safe.

    Args:
        image: makes what the icon is given of a picture.
        at_login: whether the companion starts at login, or None.
    """

    def __init__(
        self, image: Callable[[TrayState, Any], Any], at_login: Callable[[], bool | None]
    ) -> None:
        self._render = image
        self._at_login = at_login
        self._lock = threading.RLock()
        self._icon: Any = None
        self._status: Status | None = None
        self._state: TrayState = NO_DAEMON
        self._drawn: TrayState = NO_DAEMON  # what the icon shows
        self._slots = Slots()
        self._entries: tuple[Entry, ...] = menu(None, NO_DAEMON, now_unix_s=time.time())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The menu now."""
        return self._entries

    @property
    def state(self) -> TrayState:
        """What is shown now."""
        return self._state

    def attach(self, icon: Any, made_with: TrayState = NO_DAEMON) -> None:
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

    def on_menu_opened(self) -> None:
        """The menu is about to be shown: give its lines to the tasks that are worth one."""
        with self._lock:
            self._slots.reassign(self._status)
            self._show_menu()

    def update(self, status: Status | None, disconnect_reason: str | None = None) -> TrayState:
        """Show this status; None: there is no daemon."""
        with self._lock:
            self._status = status
            self._state = _tray_state(status, disconnect_reason, time.time())
            if self._icon is not None:
                self._draw()
                self._dock_again()
            if not getattr(self._icon, "REPORTS_MENU_OPEN", False):
                self._slots.reassign(status)
            self._show_menu()
            return self._state

    def _show_menu(self) -> None:
        entries = menu(
            self._status,
            self._state,
            self._slots.update(self._status),
            at_login=self._at_login(),
            now_unix_s=time.time(),
        )
        if entries != self._entries:
            self._entries = entries
            if self._icon is not None:
                self._icon.update_menu()

    def _draw(self) -> None:
        before, self._drawn = self._drawn, self._state
        if before.picture != self._state.picture:
            self._icon.icon = self._render(self._state, self._icon)
        if before.title != self._state.title:
            self._icon.title = self._state.title

    def _dock_again(self) -> None:
        """Into a tray that came after us; pystray's xorg backend asks once."""
        if getattr(self._icon, "docked", True) is False and self._icon.visible:
            self._icon.icon = self._icon.icon


def _tray_state(
    status: Status | None, disconnect_reason: str | None, now_unix_s: float
) -> TrayState:
    if status is not None:
        return tray_state(status, now_unix_s)
    if disconnect_reason is None:
        return NO_DAEMON
    return TrayState(
        NO_DAEMON.picture, "The daemon cannot be reached", disconnect_reason[:120], is_active=False
    )
