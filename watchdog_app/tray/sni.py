"""
The icon as a StatusNotifierItem on the session bus: a backend for pystray in pure Python.

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
from watchdog_app.tray.bus import Part, SessionBus, has_owner
from watchdog_app.tray.dbus_menu import EMPTY, DBusMenu, layout
from watchdog_app.tray.dbus_menu import INTERFACE as MENU_INTERFACE
from watchdog_app.tray.dbus_menu import PATH as MENU_PATH
from watchdog_app.tray.dbus_object import BusObject
from watchdog_app.tray.drawing import SIZES, argb
from watchdog_app.tray.pystray_api import BaseIcon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WATCHER = "org.kde.StatusNotifierWatcher"
WATCHER_PATH = "/StatusNotifierWatcher"
PATH = "/StatusNotifierItem"
INTERFACE = "org.kde.StatusNotifierItem"

_CALL_S = 5.0
_XML = """
<property name="Category" type="s" access="read"/><property name="Id" type="s" access="read"/>
<property name="Title" type="s" access="read"/><property name="Status" type="s" access="read"/>
<property name="WindowId" type="i" access="read"/><property name="IconName" type="s" access="read"/>
<property name="IconThemePath" type="s" access="read"/>
<property name="IconPixmap" type="a(iiay)" access="read"/>
<property name="OverlayIconName" type="s" access="read"/>
<property name="OverlayIconPixmap" type="a(iiay)" access="read"/>
<property name="AttentionIconName" type="s" access="read"/>
<property name="AttentionIconPixmap" type="a(iiay)" access="read"/>
<property name="AttentionMovieName" type="s" access="read"/>
<property name="ToolTip" type="(sa(iiay)ss)" access="read"/>
<property name="ItemIsMenu" type="b" access="read"/><property name="Menu" type="o" access="read"/>
<method name="ContextMenu"><arg name="x" type="i" direction="in"/>
<arg name="y" type="i" direction="in"/></method>
<method name="Activate"><arg name="x" type="i" direction="in"/>
<arg name="y" type="i" direction="in"/></method>
<method name="SecondaryActivate"><arg name="x" type="i" direction="in"/>
<arg name="y" type="i" direction="in"/></method>
<method name="Scroll"><arg name="delta" type="i" direction="in"/>
<arg name="orientation" type="s" direction="in"/></method>
<signal name="NewTitle"/><signal name="NewIcon"/><signal name="NewAttentionIcon"/>
<signal name="NewOverlayIcon"/><signal name="NewToolTip"/>
<signal name="NewStatus"><arg name="status" type="s"/></signal>"""


class StatusNotifierPart(Part):
    """The item on the bus: registers with every panel that comes, shows what it is given."""

    watched = (WATCHER,)

    def __init__(self) -> None:
        self.session: SessionBus | None = None
        self.icon: Icon | None = None  # None: there is nothing to show yet
        self.has_panel = threading.Event()  # somebody is there to show an icon
        self.menu = DBusMenu(self._menu_signal, self._clicked, self._opened)
        self.on_menu_opened: Callable[[], None] = lambda: None
        self._bus: MessageBus | None = None
        self._object = BusObject(
            PATH,
            INTERFACE,
            {
                "Activate": ("", self._activate),
                "SecondaryActivate": ("", self._activate),
                "ContextMenu": ("", lambda *_: []),  # the panel draws the menu
                "Scroll": ("", lambda *_: []),
            },
            self._properties,
            _XML,
        )

    async def connected(self, bus: MessageBus) -> None:
        """Register with the panel that is there."""
        self._bus = bus
        if await has_owner(bus, WATCHER):
            await self.owner_changed(WATCHER, True)

    def lost(self) -> None:
        """No panel can be reached for now."""
        self._bus = None
        self.has_panel.clear()

    async def owner_changed(self, name: str, present: bool) -> None:  # noqa: ARG002
        """A panel came, or went."""
        if not present:
            self.has_panel.clear()
            return
        self.has_panel.set()
        await self.register()

    async def register(self) -> None:
        """Make the item known to the panel, where there are both."""
        if self._bus is None or self.icon is None or not self.has_panel.is_set():
            return
        own = f"{INTERFACE}-{os.getpid()}-1"
        await self._bus.request_name(own, NameFlag.DO_NOT_QUEUE)
        await call(self._bus, WATCHER, WATCHER_PATH, "RegisterStatusNotifierItem", "s", [own])

    async def unregister(self) -> None:
        """Take the item from the panel: it goes with its name."""
        if self._bus is not None:
            await self._bus.release_name(f"{INTERFACE}-{os.getpid()}-1")

    def handle(self, message: Message) -> Message | None:
        """Answer for the item and its menu."""
        if self.icon is None:
            return None
        return self._object.handle(message) or self.menu.handle(message)

    def signal(self, *members: str) -> None:
        """Say that something of the item has changed; the panel reads it."""
        if self.session is not None:
            for member in members:
                self.session.signal(PATH, INTERFACE, member, "", [])

    def _menu_signal(self, member: str, signature: str, body: list[Any]) -> None:
        if self.session is not None:
            self.session.signal(MENU_PATH, MENU_INTERFACE, member, signature, body)

    def _activate(self, *_: Any) -> list[Any]:
        icon = self.icon
        if icon is not None:
            icon()
        return []

    def _clicked(self, item: Any) -> None:
        if self.icon is not None:
            item(self.icon)

    def _opened(self) -> None:
        self.on_menu_opened()

    def _properties(self) -> Mapping[str, Variant]:
        icon = self.icon
        pixmaps: list[Any] = [] if icon is None else icon.shown_pixmaps
        title = "watchdog" if icon is None else icon.title or icon.name
        return {
            "Category": Variant("s", "SystemServices"),
            "Id": Variant("s", "watchdog"),
            "Title": Variant("s", title),
            "Status": Variant("s", "Active"),
            "WindowId": Variant("i", 0),
            "IconName": Variant("s", ""),
            "IconThemePath": Variant("s", ""),
            "IconPixmap": Variant("a(iiay)", pixmaps),
            "OverlayIconName": Variant("s", ""),
            "OverlayIconPixmap": Variant("a(iiay)", []),
            "AttentionIconName": Variant("s", ""),
            "AttentionIconPixmap": Variant("a(iiay)", []),
            "AttentionMovieName": Variant("s", ""),
            "ToolTip": Variant("(sa(iiay)ss)", ["", [], title, ""]),
            "ItemIsMenu": Variant("b", False),  # a left click is ours
            "Menu": Variant("o", MENU_PATH),
        }


class Icon(BaseIcon):  # type: ignore[misc]
    """
    pystray's icon on a session bus.

    Args:
        name: as in pystray.
        icon: a PIL image, or `drawing.Renditions`, which is drawn for each size.
        title: of the tooltip.
        menu: pystray's menu.
        part: where it is shown.
    """

    HAS_NOTIFICATION = False  # `notifications` does it better
    SAYS_WHEN_OPENED = True  # the panel tells that the menu is about to be shown
    TAKES_RENDITIONS = True  # a picture may be drawn anew for each size

    def __init__(
        self, name: str, icon: Any, title: str, menu: Any, part: StatusNotifierPart
    ) -> None:
        super().__init__(name, icon, title, menu)
        self._part = part
        self._ended = threading.Event()
        self.shown_pixmaps: list[Any] = []

    def _show(self) -> None:
        self._part.icon = self
        if self._part.session is not None:
            self._part.session.submit(self._part.register())

    def _hide(self) -> None:
        self._part.icon = None
        if self._part.session is not None:
            self._part.session.submit(self._part.unregister())

    def _update_icon(self) -> None:
        self.shown_pixmaps = _pixmaps(self._icon)
        self._icon_valid = True
        self._part.signal("NewIcon")

    def _update_title(self) -> None:
        self._part.signal("NewTitle", "NewToolTip")

    def _update_menu(self) -> None:
        self._part.menu.set(layout(self._menu) if self._menu else EMPTY)

    def _run(self) -> None:
        self._mark_ready()
        self._ended.wait()

    def _run_detached(self) -> None:
        self._mark_ready()

    def _stop(self) -> None:
        self._ended.set()


def _pixmaps(icon: Any) -> list[Any]:
    if hasattr(icon, "pixmaps"):
        return list(icon.pixmaps())
    image = icon.convert("RGBA")
    return [[size, size, argb(image.resize((size, size)))] for size in SIZES]
