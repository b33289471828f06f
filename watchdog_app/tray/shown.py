"""
What is on the screen, and the least that brings it up to date.

Between the status and pystray's icon: an unchanged picture is not drawn, an
unchanged menu not told.
"""

from __future__ import annotations

import threading
import time

from watchdog_app.tray.menu_model import Entry, entry_key, menu
from watchdog_app.tray.state import NO_DAEMON, Outlook, outlook
from watchdog_app.tray.still_menu import held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from watchdog_app.core.model.status import Status, Task

_DEAF_MENU_S = 60.0  # between two menus where a new one closes an open one


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
        self._outlook: Outlook = NO_DAEMON
        self._told: Outlook = NO_DAEMON  # what the icon shows
        self._entries: tuple[Entry, ...] = menu(None, NO_DAEMON, now_unix_s=time.time())
        self._wanted = self._entries  # what they are once an open menu is closed
        self._held = False
        self._menu_mono_s = 0.0
        self._pids: tuple[int, ...] = ()

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
            self._told = made_with
            if icon is not None:
                self._tell()  # what has changed since it was made
                icon.update_menu()

    def hold(self, now: bool) -> None:
        """While the menu is open its lines stay where they are; then it is as it should be."""
        with self._lock:
            self._held = now
            if not now and self._entries != self._wanted:
                self._entries = self._wanted
                if self._icon is not None:
                    self._icon.update_menu()

    def update(self, status: Status | None, why_gone: str | None = None) -> Outlook:
        """Show this status; None: there is no daemon."""
        now_unix_s = time.time()
        with self._lock:
            self._outlook = _glance(status, why_gone, now_unix_s)
            entries = menu(
                status,
                self._outlook,
                shown=self._pids,
                at_login=self._at_login(),
                now_unix_s=now_unix_s,
            )
            self._pids = tuple(one.pid or 0 for one in _listed(status, entries))
            if self._icon is not None:
                self._tell()
                self._dock()
            self._wanted = entries
            if self._held and status is not None:
                entries = held(self._entries, entries, _alive(status))
            if entries != self._entries and self._menu_is_due(entries):
                self._entries = entries
                self._menu_mono_s = time.monotonic()
                if self._icon is not None:
                    self._icon.update_menu()
            return self._outlook

    def _tell(self) -> None:
        before, self._told = self._told, self._outlook
        if before.picture != self._outlook.picture:
            self._icon.icon = self._image(self._outlook, self._icon)
        if before.title != self._outlook.title:
            self._icon.title = self._outlook.title

    def _menu_is_due(self, entries: tuple[Entry, ...]) -> bool:
        """Always, where an open menu takes it; else when more than figures has changed."""
        if self._icon is None or getattr(self._icon, "LIVE_LABELS", False):
            return True
        if time.monotonic() - self._menu_mono_s >= _DEAF_MENU_S:
            return True
        return _skeleton(entries) != _skeleton(self._entries)

    def _dock(self) -> None:
        """Into a tray that came after us; pystray's xorg backend asks once."""
        if getattr(self._icon, "docked", True) is False and self._icon.visible:
            self._icon.icon = self._icon.icon


def _glance(status: Status | None, why_gone: str | None, now_unix_s: float) -> Outlook:
    if status is not None:
        return outlook(status, now_unix_s)
    if why_gone is None:
        return NO_DAEMON
    return Outlook(NO_DAEMON.picture, "The daemon cannot be reached", why_gone[:120], hot=False)


def _listed(status: Status | None, entries: tuple[Entry, ...]) -> list[Task]:
    keys = {entry.key for entry in entries}
    return [one for one in (status.tasks if status else ()) if entry_key(one) in keys]


def _alive(status: Status) -> frozenset[str]:
    return frozenset(map(entry_key, status.tasks))


def _skeleton(entries: tuple[Entry, ...]) -> list[Any]:
    """What of a menu is worth closing an open one for: its lines, and what can be clicked."""
    return [
        (entry.key, entry.enabled, entry.checked, entry.wish, _skeleton(entry.children))
        for entry in entries
    ]
