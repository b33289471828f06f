"""
The current icon, tooltip and menu; only changes are drawn and sent.
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

    from watchdog_app.core.model.status import Notification, Status


class TrayView:
    """
    The current icon, tooltip and menu. Thread-safe.

    Args:
        image: renders a state for the icon's `icon` attribute.
        at_login: returns whether the tray process starts at login, or None.
    """

    def __init__(
        self, image: Callable[[TrayState, Any], Any], at_login: Callable[[], bool | None]
    ) -> None:
        self._render = image
        self._at_login = at_login
        self._lock = threading.RLock()
        self._icon: Any = None
        self._status: Status | None = None
        self.ended: Notification | None = None  # the last notification of an end
        self._state: TrayState = NO_DAEMON
        self._drawn: TrayState = NO_DAEMON  # the state on screen
        self._slots = Slots()
        self._entries: tuple[Entry, ...] = menu(None, NO_DAEMON, now_unix_s=time.time())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The current menu."""
        return self._entries

    @property
    def state(self) -> TrayState:
        """The current state."""
        return self._state

    def attach(self, icon: Any, made_with: TrayState = NO_DAEMON) -> None:
        """
        Show the state on an icon from now on.

        Args:
            icon: a pystray icon, or None: no icon for now.
            made_with: the state that the icon already shows.
        """
        with self._lock:
            self._icon = icon
            self._drawn = made_with
            if icon is not None:
                self._draw()  # changes since the icon was made
                icon.update_menu()

    def on_menu_opened(self) -> None:
        """Assign the menu's lines to the listed tasks, before the menu opens."""
        with self._lock:
            self._slots.reassign(self._status)
            self._show_menu()

    def update(self, status: Status | None, disconnect_reason: str | None = None) -> TrayState:
        """Show a status; None: no daemon."""
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
            ended=self.ended,
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
        """
        Dock into a tray that started after this process; pystray's xorg backend tries only once.
        """
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
