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
from typing import Any

import Xlib.X
from PIL import Image

# pystray._xorg connects to the display on import, so import this module only when needed.
from pystray import _xorg

_BACKGROUND = (45, 45, 48)
_MIN_PIXELS = 8
_DOCK_INTERVAL_S = 4.0  # a tray that has just started does not handle the first dock request
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
        self._dock_requested_mono_s = float("-inf")
        super().__init__(*args, **kwargs)
        self._message_handlers[Xlib.X.ReparentNotify] = self._on_reparent

    @property
    def docked(self) -> bool:
        """Whether a tray holds the icon; a dock request alone does not count."""
        return self._systray_manager is not None and self._embedded

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
        now_mono_s = time.monotonic()
        if not self.docked and now_mono_s - self._dock_requested_mono_s > _DOCK_INTERVAL_S:
            self._dock_requested_mono_s = now_mono_s
            super()._dock_window()

    def _on_reparent(self, event: Any) -> None:
        if event.window.id == self._window.id:
            self._embedded = event.parent.id != self._display.screen().root.id

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
