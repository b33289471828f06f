"""
A corrected pystray backend for XEmbed trays: the last resort of a desktop without a bus.

pystray's own backend has four faults. Its window does not select button presses, so clicks never
arrive. Its image is stretched and its transparency is lost. A message that arrives before its loop
runs breaks it. By design it has no menu: any button opens the live view, which has all actions of
the menu.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import Xlib.X
from PIL import Image

# pystray._xorg connects to the display on import, so import this module only when needed.
from pystray import _xorg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BACKGROUND = (45, 45, 48)
_MIN_PIXELS = 8
_DOCK_TIMEOUT_S = 4.0  # time for a tray to take the icon before the next dock request
_CHECK_INTERVAL_S = 5.0  # interval of checks: a tray that hides the icon sends no event
_MAX_REDOCKS = 8  # a panel that hides itself shows nothing for long; then stop docking again
_SETTLED_S = 60.0  # after the icon was visible this long, reset the count of dock requests
_MAX_WAITERS = 8  # the feed's thread, `stop`, and some reserve


class Icon(_xorg.Icon):  # type: ignore[misc]
    """An icon in an XEmbed tray."""

    TAKES_RENDITIONS = True
    _icon_data: Any
    _background: tuple[int, int, int] | None = None  # colour behind transparent pixels

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # pystray compares this with the thread of each message, also before the loop runs.
        self._thread = threading.current_thread()
        self._embedded = False
        self._exposed = False  # since it was embedded
        self._redock_count = 0
        self._dock_requested_mono_s: float | None = None
        self._checked_mono_s = float("-inf")
        super().__init__(*args, **kwargs)
        self._message_handlers[Xlib.X.ReparentNotify] = self._on_reparent

    @property
    def docked(self) -> bool:
        """
        Whether a tray holds the icon and shows it; a dock request alone does not count.

        False every few seconds, so that the caller triggers another check.
        """
        recent = time.monotonic() - self._checked_mono_s < _CHECK_INTERVAL_S
        return recent and self._shown

    @property
    def _shown(self) -> bool:
        shown = self._exposed or self._redock_count >= _MAX_REDOCKS
        return self._systray_manager is not None and self._embedded and shown

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            # Threads that called the icon while the display was lost still wait for an answer.
            for _ in range(_MAX_WAITERS):
                self._queue.put(True)

    def __del__(self) -> None:
        # The display may already be closed: then there is nothing to close.
        with suppress(Exception):
            super().__del__()

    def _create_window(self) -> Any:
        window = super()._create_window()
        window.change_attributes(
            event_mask=Xlib.X.ExposureMask | Xlib.X.StructureNotifyMask | Xlib.X.ButtonPressMask
        )
        return window

    def _dock_window(self) -> None:
        # Dock rarely: a second request together with the first image makes `trayer` lose the
        # icon. But repeat it: a tray that has just started does not handle the first request.
        now_mono_s = self._checked_mono_s = time.monotonic()
        if self._exposed and not self._is_viewable():
            self._exposed = False  # the tray showed itself, found no icon and hid again
        if self._exposed and now_mono_s - (self._dock_requested_mono_s or 0.0) > _SETTLED_S:
            # a new tray, or a panel that hides automatically, may need it again
            self._redock_count = 0
        asked = self._systray_manager is not None and self._dock_requested_mono_s is not None
        if self._shown or (
            asked and now_mono_s - (self._dock_requested_mono_s or 0.0) < _DOCK_TIMEOUT_S
        ):
            return
        self._dock_requested_mono_s = now_mono_s
        if self._embedded and self._systray_manager is not None:
            # A tray that took the icon during its start can stay hidden. Undock now and dock at
            # the next call: a tray that loses an icon and gets another at once may not show
            # itself.
            self._redock_count += 1
            self._undock_window()
            return
        super()._dock_window()

    def _is_viewable(self) -> bool:
        try:
            return bool(self._window.get_attributes().map_state == Xlib.X.IsViewable)
        except Exception:  # the display was closed; another part reports it
            return True

    def _on_reparent(self, event: Any) -> None:
        if event.window.id == self._window.id:
            self._embedded = event.parent.id != self._display.screen().root.id
            self._exposed = False

    def _on_expose(self, event: Any) -> None:
        # The server sends Expose only for visible windows.
        if event.type == Xlib.X.Expose and event.window.id == self._window.id:
            self._exposed = self._embedded
        super()._on_expose(event)

    def _on_button_press(self, event: Any) -> None:
        if event.detail in (1, 2, 3):  # left, middle, right; ignore the wheel
            self()

    def _assert_icon_data(self, width: int, height: int) -> None:
        if self._icon_data and self._icon_data.size == (width, height):
            return
        # Before the tray embeds it, the window has one pixel: too small to draw on.
        size = max(_MIN_PIXELS, min(width, height))
        icon = self._icon
        image = icon.at(size) if hasattr(icon, "at") else icon.convert("RGBA").resize((size, size))
        if self._background is None:
            self._background = self._tray_color()
        data = Image.new("RGB", (width, height), self._background)
        data.paste(image, ((width - size) // 2, (height - size) // 2), image)
        self._icon_data = data

    def _tray_color(self) -> tuple[int, int, int]:
        """Return the colour of the tray where the icon has not drawn yet."""
        try:
            tray = self._window.query_tree().parent
            image = tray.get_image(0, 0, 1, 1, Xlib.X.ZPixmap, 0xFFFFFFFF)
            blue, green, red = bytes(image.data)[:3]
        except Exception:  # not embedded yet, or a display with another depth
            return _BACKGROUND
        return red, green, blue


def has_tray() -> bool:
    """Return whether an XEmbed tray runs on this display."""
    import Xlib.display
    from Xlib.error import XError

    try:
        display = Xlib.display.Display()
    except (OSError, XError, Xlib.error.DisplayError):
        return False
    try:
        name = f"_NET_SYSTEM_TRAY_S{display.get_default_screen()}"
        return bool(display.get_selection_owner(display.intern_atom(name)))
    finally:
        display.close()
