"""
The icon as a StatusNotifierItem on the session bus, in pure Python.

No GTK, no display, no file: the panel reads pixels and menu over the bus. The
item is there before any panel is, and registers with each one that comes.

Source: StatusNotifierItem, freedesktop.org draft 0.1, as KDE, XFCE, waybar and
the GNOME extension read it.
"""

from __future__ import annotations

import os
import threading

from dbus_fast import Message, NameFlag, Variant
from dbus_fast.aio import MessageBus

from watchdog_app.base.dbus import call
from watchdog_app.tray.bus import BusObject, Part, SessionBus, has_owner
from watchdog_app.tray.dbus_menu import INTERFACE as MENU_INTERFACE
from watchdog_app.tray.dbus_menu import PATH as MENU_PATH
from watchdog_app.tray.dbus_menu import DBusMenu
from watchdog_app.tray.menu_model import Command, CommandKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from watchdog_app.tray.drawing import Renditions
    from watchdog_app.tray.menu_model import Entry

WATCHER = "org.kde.StatusNotifierWatcher"
WATCHER_PATH = "/StatusNotifierWatcher"
PATH = "/StatusNotifierItem"
INTERFACE = "org.kde.StatusNotifierItem"

_SIGNALS = {
    **dict.fromkeys(("NewTitle", "NewIcon", "NewAttentionIcon", "NewOverlayIcon"), ""),
    "NewToolTip": "",
    "NewStatus": "s",
}


class StatusNotifierItem(Part):
    """
    The icon on the bus, with the face of pystray's: registers with every panel that comes.

    Args:
        on_command: called with what a click asks for.
        opened: called when the menu is about to be shown.
        entries: the menu now.
    """

    REPORTS_MENU_OPEN = True  # the panel tells that the menu is about to be shown
    TAKES_RENDITIONS = True  # a picture may be drawn anew for each size
    watched_names = (WATCHER,)

    def __init__(
        self,
        on_command: Callable[[Command], None],
        on_opened: Callable[[], None],
        entries: Callable[[], Iterable[Entry]],
    ) -> None:
        self.session: SessionBus | None = None
        self.has_panel = threading.Event()  # somebody is there to show an icon
        self._menu = DBusMenu(self._emit_for_menu, on_command, on_opened)
        self._on_command = on_command
        self._entries = entries
        self._visible = False
        self._pixmaps: list[list[int | bytes]] = []
        self._title = "watchdog"
        self._ended = threading.Event()
        self._bus: MessageBus | None = None
        self._object = BusObject(
            PATH,
            INTERFACE,
            {
                "Activate": ("ii", "", self._activate),
                "SecondaryActivate": ("ii", "", self._activate),
                "ContextMenu": ("ii", "", lambda *_: []),  # the panel draws the menu
                "Scroll": ("is", "", lambda *_: []),
            },
            _SIGNALS,
            self._properties,
        )

    # What pystray's icons have

    def run(self, ready: Callable[[StatusNotifierItem], None]) -> None:
        """Call `ready` with itself, and return after `stop`."""
        self._ended.clear()
        ready(self)
        self._ended.wait()

    def stop(self) -> None:
        """Let `run` return."""
        self._ended.set()

    @property
    def visible(self) -> bool:
        """Whether it is offered to panels."""
        return self._visible

    @visible.setter
    def visible(self, value: bool) -> None:
        self._visible = value
        if self.session is not None:
            self.session.submit(self._register() if value else self._unregister())

    @property
    def icon(self) -> list[list[int | bytes]]:
        """The picture at each size."""
        return self._pixmaps

    @icon.setter
    def icon(self, picture: Renditions) -> None:
        self._pixmaps = picture.pixmaps()
        self._emit("NewIcon")

    @property
    def title(self) -> str:
        """Of the tooltip."""
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        self._title = title
        self._emit("NewTitle", "NewToolTip")

    def update_menu(self) -> None:
        """Show the menu as it is now."""
        self._menu.update(self._entries())

    # On the bus

    async def connected(self, bus: MessageBus) -> None:
        """Register with the panel that is there."""
        self._bus = bus
        if await has_owner(bus, WATCHER):
            await self.owner_changed(WATCHER, True)

    def disconnected(self) -> None:
        """No panel can be reached for now."""
        self._bus = None
        self.has_panel.clear()

    async def owner_changed(self, name: str, present: bool) -> None:  # noqa: ARG002
        """A panel came, or went."""
        if not present:
            self.has_panel.clear()
            return
        self.has_panel.set()
        await self._register()

    async def _register(self) -> None:
        """Make the item known to the panel, where there are both."""
        if self._bus is None or not self._visible or not self.has_panel.is_set():
            return
        own = f"{INTERFACE}-{os.getpid()}-1"
        await self._bus.request_name(own, NameFlag.DO_NOT_QUEUE)
        await call(self._bus, WATCHER, WATCHER_PATH, "RegisterStatusNotifierItem", "s", [own])

    async def _unregister(self) -> None:
        """Take the item from the panel: it goes with its name."""
        if self._bus is not None:
            await self._bus.release_name(f"{INTERFACE}-{os.getpid()}-1")

    def handle(self, message: Message) -> Message | None:
        """Answer for the item and its menu."""
        if not self._visible:
            return None
        return self._object.handle(message) or self._menu.handle(message)

    def _emit(self, *members: str) -> None:
        """Send signals of changed properties; the panel reads them."""
        if self.session is not None:
            for member in members:
                self.session.signal(PATH, INTERFACE, member, _SIGNALS[member], [])

    def _emit_for_menu(self, member: str, signature: str, body: list[Any]) -> None:
        if self.session is not None:
            self.session.signal(MENU_PATH, MENU_INTERFACE, member, signature, body)

    def _activate(self, *_: Any) -> list[Any]:
        self._on_command(Command(CommandKind.LIVE_VIEW))
        return []

    def _properties(self) -> Mapping[str, Variant]:
        return {
            "Category": Variant("s", "SystemServices"),
            "Id": Variant("s", "watchdog"),
            "Title": Variant("s", self._title),
            "Status": Variant("s", "Active"),
            "WindowId": Variant("i", 0),
            "IconName": Variant("s", ""),
            "IconThemePath": Variant("s", ""),
            "IconPixmap": Variant("a(iiay)", self._pixmaps),
            "OverlayIconName": Variant("s", ""),
            "OverlayIconPixmap": Variant("a(iiay)", []),
            "AttentionIconName": Variant("s", ""),
            "AttentionIconPixmap": Variant("a(iiay)", []),
            "AttentionMovieName": Variant("s", ""),
            "ToolTip": Variant("(sa(iiay)ss)", ["", [], self._title, ""]),
            "ItemIsMenu": Variant("b", False),  # a left click is ours
            "Menu": Variant("o", MENU_PATH),
        }
