"""
Trays and notifications other than those on the session bus: what pystray and plyer offer.

On Windows and macOS pystray's own backends show the icon, and plyer the notifications. On X11 it
is our mended backend for the old trays (XEmbed). A panel may come after us: a caller that finds
no tray asks again. On Linux plyer cannot tell whether anything was shown, and takes text as
options: there the daemon shows the notification by itself.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module

from watchdog_app.base.text.terminal import plain, plain_block, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from watchdog_app.core.model.status import Notification
    from watchdog_app.tray.menu_model import Command, Entry

HAS_PLYER: bool = sys.platform in ("win32", "darwin")
_BACKEND_VARIABLE = "PYSTRAY_BACKEND"


def native_backend() -> Any:
    """pystray's own backend of Windows or macOS; None on other systems."""
    name = {"win32": "_win32", "darwin": "_darwin"}.get(sys.platform)
    if name is None:
        return None
    try:
        _import_pystray()
        return import_module(f"pystray.{name}").Icon
    except Exception:  # ImportError, ValueError, errors of the display
        return None


def x11_backend() -> Any:
    """Our backend for a tray of the old kind (XEmbed) that runs now; None: there is none."""
    if not os.environ.get("DISPLAY"):
        return None
    logging.getLogger("pystray").setLevel(logging.CRITICAL)  # it logs tracebacks of what is normal
    try:
        _import_pystray()
        xorg = import_module("watchdog_app.tray.xorg")
    except Exception:  # no python-xlib, no such display, no right to it
        return None
    return xorg.Icon if xorg.has_tray() else None


def pystray_menu(
    entries: Callable[[], Iterable[Entry]], on_command: Callable[[Command], None]
) -> Any:
    """
    The menu as pystray takes it.

    Args:
        entries: the menu now.
        on_command: called with the command of an item that is clicked.
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
            action = lambda _icon, _item: on_command(command)  # noqa: E731 - one line, and no name
        checked = entry.checked
        return pystray.MenuItem(
            # Windows underlines what follows an ampersand.
            entry.label.replace("&", "&&") if sys.platform == "win32" else entry.label,
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
    pystray without one of its backends.

    `import pystray` chooses a backend and connects to a display while it does; it fails without
    one, and not with ImportError. Its own dummy backend, asked for by its own variable, lets its
    menu be had anywhere.
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


def show_with_plyer(notification: Notification) -> tuple[bool, str]:
    """Show a notification by plyer; whether it was shown, and why not."""
    if not HAS_PLYER:
        return False, "there is no session bus to show it on"
    try:
        from plyer import notification as desktop

        desktop.notify(
            title=_escape_leading_dash(shorten(plain(notification.title), 64)),
            # Windows cuts at 256 characters and fails beyond.
            message=_escape_leading_dash(shorten(plain_block(notification.body), 250)),
            app_name="watchdog",
        )
    except Exception as error:
        return False, f"plyer could not show it: {type(error).__name__}: {error}"
    return True, "shown by the companion"


def _escape_leading_dash(text: str) -> str:
    return f" {text}" if text.startswith("-") else text
