"""
pystray's backend for plain X11 trays, mended: the last resort of a desktop without a bus.

As it comes, its window does not ask for button presses, so a click never
arrives; its picture is stretched and its transparency lost; and a message that
comes before its loop runs breaks it. It has no menu by design: any button
opens the live view, which has all that the menu has.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import Xlib.X
from PIL import Image

# Connects to the display while it is imported: this module is imported when it is wanted.
from pystray import _xorg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BACKGROUND = (45, 45, 48)
_MIN_PIXELS = 8
_DOCK_TIMEOUT_S = 4.0  # for a tray to take the icon before it is asked again
_CHECK_INTERVAL_S = 5.0  # whether the tray still shows it: of a tray that hides nothing is heard
_MAX_REDOCKS = 8  # a panel that hides itself shows nothing for long, and is left in peace then
_SETTLED_S = 60.0  # it has shown it for so long: what was before does not count
_MAX_WAITERS = 8  # the link, the end, and some room


class Icon(_xorg.Icon):  # type: ignore[misc]
    """An icon in an XEmbed tray."""

    TAKES_RENDITIONS = True
    _icon_data: Any
    _background: tuple[int, int, int] | None = None  # what transparency is drawn on

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Messages from other threads are compared with this one before the loop has begun.
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
        A tray holds the icon and shows it; asking it for that is not enough.

        False from time to time, so that it is looked at again.
        """
        looked = time.monotonic() - self._checked_mono_s < _CHECK_INTERVAL_S
        return looked and self._shown

    @property
    def _shown(self) -> bool:
        shown = self._exposed or self._redock_count >= _MAX_REDOCKS
        return self._systray_manager is not None and self._embedded and shown

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            # Whoever asked for something while the display went is still waiting for an answer.
            for _ in range(_MAX_WAITERS):
                self._queue.put(True)

    def __del__(self) -> None:
        # The display may have gone before us: then there is nothing to close.
        with suppress(Exception):
            super().__del__()

    def _create_window(self) -> Any:
        window = super()._create_window()
        window.change_attributes(
            event_mask=Xlib.X.ExposureMask | Xlib.X.StructureNotifyMask | Xlib.X.ButtonPressMask
        )
        return window

    def _dock_window(self) -> None:
        # Seldom: a second request, with the first picture, makes trayer lose the icon. And again:
        # a tray that has only just begun does not hear the first.
        now_mono_s = self._checked_mono_s = time.monotonic()
        if self._exposed and not self._is_viewable():
            self._exposed = False  # a tray that shows itself, finds nothing in it and hides
        if self._exposed and now_mono_s - (self._dock_requested_mono_s or 0.0) > _SETTLED_S:
            self._redock_count = 0  # a new tray, or a panel that hides by itself, may need it again
        asked = self._systray_manager is not None and self._dock_requested_mono_s is not None
        if self._shown or (
            asked and now_mono_s - (self._dock_requested_mono_s or 0.0) < _DOCK_TIMEOUT_S
        ):
            return
        self._dock_requested_mono_s = now_mono_s
        if self._embedded and self._systray_manager is not None:
            # A tray that took it while it began can stay hidden: it is told of it once more, by the
            # next call, since one that loses an icon and has another at once may not show itself.
            self._redock_count += 1
            self._undock_window()
            return
        super()._dock_window()

    def _is_viewable(self) -> bool:
        try:
            return bool(self._window.get_attributes().map_state == Xlib.X.IsViewable)
        except Exception:  # the display goes: its end is told elsewhere
            return True

    def _on_reparent(self, event: Any) -> None:
        if event.window.id == self._window.id:
            self._embedded = event.parent.id != self._display.screen().root.id
            self._exposed = False

    def _on_expose(self, event: Any) -> None:
        # The server sends it for what is on the screen alone.
        if event.type == Xlib.X.Expose and event.window.id == self._window.id:
            self._exposed = self._embedded
        super()._on_expose(event)

    def _on_button_press(self, event: Any) -> None:
        if event.detail in (1, 2, 3):  # left, middle, right; the wheel is none
            self()

    def _assert_icon_data(self, width: int, height: int) -> None:
        if self._icon_data and self._icon_data.size == (width, height):
            return
        # Before it is embedded the window has a single pixel: nothing can be drawn for that.
        size = max(_MIN_PIXELS, min(width, height))
        icon = self._icon
        image = icon.at(size) if hasattr(icon, "at") else icon.convert("RGBA").resize((size, size))
        if self._background is None:
            self._background = self._tray_color()
        data = Image.new("RGB", (width, height), self._background)
        data.paste(image, ((width - size) // 2, (height - size) // 2), image)
        self._icon_data = data

    def _tray_color(self) -> tuple[int, int, int]:
        """What the tray shows where we have not drawn yet."""
        try:
            tray = self._window.query_tree().parent
            image = tray.get_image(0, 0, 1, 1, Xlib.X.ZPixmap, 0xFFFFFFFF)
            blue, green, red = bytes(image.data)[:3]
        except Exception:  # not embedded yet, or a display of another depth
            return _BACKGROUND
        return red, green, blue


def has_tray() -> bool:
    """Whether an XEmbed tray runs on this display."""
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
