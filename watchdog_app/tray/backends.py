"""
Trays and notifications without the session bus: pystray and plyer.

On macOS pystray's own backend shows the icon, and plyer shows the notifications. On X11
our corrected backend supports the old trays (XEmbed). A panel may start after this process, so a
caller that finds no tray asks again. On Linux plyer cannot report whether a notification was shown,
and treats text as options. There the daemon itself shows the notification.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from watchdog_app.tray.menu_model import Command, Entry

ON_MACOS: bool = sys.platform == "darwin"
_BACKEND_VARIABLE = "PYSTRAY_BACKEND"


def native_backend() -> Any:
    """Return pystray's own backend of macOS; None on other systems."""
    if not ON_MACOS:
        return None
    try:
        _import_pystray()
        return import_module("pystray._darwin").Icon
    except Exception:  # ImportError, ValueError or display errors
        return None


def x11_backend() -> Any:
    """Return our backend for an XEmbed tray that runs now; None: no such tray."""
    if not os.environ.get("DISPLAY"):
        return None
    # pystray logs tracebacks of normal events
    logging.getLogger("pystray").setLevel(logging.CRITICAL)
    try:
        _import_pystray()
        xorg = import_module("watchdog_app.tray.xorg")
    except Exception:  # no python-xlib, no such display, or no access to it
        return None
    return xorg.Icon if xorg.has_tray() else None


def pystray_menu(
    entries: Callable[[], Iterable[Entry]], on_command: Callable[[Command], None]
) -> Any:
    """
    Return the menu as a pystray menu.

    Args:
        entries: function that returns the current menu.
        on_command: called with the command of a clicked item.
    """
    pystray = _import_pystray()

    def item(entry: Entry) -> Any:
        if not entry.label:
            return pystray.Menu.SEPARATOR
        action: Any = None
        if entry.children:
            action = pystray.Menu(*map(item, entry.children))
        elif entry.command is not None:
            command = entry.command
            action = lambda _icon, _item: on_command(command)  # noqa: E731 - one line, no name
        checked = entry.checked
        return pystray.MenuItem(
            entry.label,
            action,
            checked=None if checked is None else lambda _: checked,
            radio=entry.radio,
            default=entry.default,
            visible=entry.visible,
            enabled=entry.enabled,
        )

    return pystray.Menu(lambda: [item(entry) for entry in entries()])


def _import_pystray() -> Any:
    """
    Import pystray without its display backends.

    `import pystray` chooses a backend and connects to a display. Without a display it fails, and
    not with ImportError. Its dummy backend, selected by an environment variable, makes pystray's
    menu classes available everywhere.
    """
    before = os.environ.get(_BACKEND_VARIABLE)
    os.environ[_BACKEND_VARIABLE] = "dummy"
    try:
        return import_module("pystray")
    finally:
        if before is None:
            del os.environ[_BACKEND_VARIABLE]
        else:
            os.environ[_BACKEND_VARIABLE] = before
