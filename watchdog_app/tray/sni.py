"""
The icon as a StatusNotifierItem on the session bus, in pure Python.

It needs no GTK, no display and no files: the panel reads pixels and menu over the bus. The item
exists before any panel, and registers with each panel that starts.

The bus's thread answers calls on the menu from the latest layout, without waiting. The menu keeps
its shape: changes are sent as changed properties, which an open menu shows without closing.

Source: StatusNotifierItem, freedesktop.org draft 0.1, as KDE, XFCE, waybar and the GNOME extension
implement it; com.canonical.dbusmenu, version 3 (libdbusmenu, dbus-menu.xml).
"""

from __future__ import annotations

import os
import threading

from dbus_fast import Message, NameFlag, Variant
from dbus_fast.aio import MessageBus

from watchdog_app.base.dbus import call
from watchdog_app.tray.bus import BusObject, Part, SessionBus, has_owner
from watchdog_app.tray.menu_model import Command, CommandKind, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from watchdog_app.tray.drawing import Renditions

WATCHER = "org.kde.StatusNotifierWatcher"
WATCHER_PATH = "/StatusNotifierWatcher"
PATH = "/StatusNotifierItem"
INTERFACE = "org.kde.StatusNotifierItem"

_SIGNALS = {
    **dict.fromkeys(("NewTitle", "NewIcon", "NewAttentionIcon", "NewOverlayIcon"), ""),
    "NewToolTip": "",
    "NewStatus": "s",
}

MENU_PATH = "/MenuBar"
MENU_INTERFACE = "com.canonical.dbusmenu"
_MENU, _ROOT = 0, ""  # number and key of the menu itself

_MENU_SIGNALS = {
    "ItemsPropertiesUpdated": "a(ia{sv})a(ias)",
    "LayoutUpdated": "ui",
    "ItemActivationRequested": "iu",
}


class StatusNotifierItem(Part):
    """
    The icon on the bus, with the interface of pystray's icons; registers with every panel.

    Args:
        on_command: called with the command of a click.
        on_opened: called before the panel shows the menu.
        entries: returns the current menu.
    """

    REPORTS_MENU_OPEN = True  # the panel reports when it is about to show the menu
    TAKES_RENDITIONS = True  # `icon` takes a `Renditions`, which draws each size
    watched_names = (WATCHER,)

    def __init__(
        self,
        on_command: Callable[[Command], None],
        on_opened: Callable[[], None],
        entries: Callable[[], Iterable[Entry]],
    ) -> None:
        self.session: SessionBus | None = None
        self.has_panel = threading.Event()  # set while a panel can show icons
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

    # The interface of pystray's icons

    def run(self, ready: Callable[[StatusNotifierItem], None]) -> None:
        """Call `ready` with this icon, and return after `stop`."""
        self._ended.clear()
        ready(self)
        self._ended.wait()

    def stop(self) -> None:
        """Make `run` return."""
        self._ended.set()

    @property
    def visible(self) -> bool:
        """Whether the icon is registered with panels."""
        return self._visible

    @visible.setter
    def visible(self, value: bool) -> None:
        self._visible = value
        if self.session is not None:
            self.session.submit(self._register() if value else self._unregister())

    @property
    def icon(self) -> list[list[int | bytes]]:
        """The pixels of each size."""
        return self._pixmaps

    @icon.setter
    def icon(self, picture: Renditions) -> None:
        self._pixmaps = picture.pixmaps()
        self._emit("NewIcon")

    @property
    def title(self) -> str:
        """Text of the tooltip."""
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        self._title = title
        self._emit("NewTitle", "NewToolTip")

    def update_menu(self) -> None:
        """Send the current menu to the panel."""
        self._menu.update(self._entries())

    # On the bus

    async def connected(self, bus: MessageBus) -> None:
        """Register with the panel, if one runs."""
        self._bus = bus
        if await has_owner(bus, WATCHER):
            await self.owner_changed(WATCHER, True)

    def disconnected(self) -> None:
        """Record that no panel can be reached."""
        self._bus = None
        self.has_panel.clear()

    async def owner_changed(self, name: str, present: bool) -> None:  # noqa: ARG002
        """Handle the start or the end of a panel."""
        if not present:
            self.has_panel.clear()
            return
        self.has_panel.set()
        await self._register()

    async def _register(self) -> None:
        """Register the item with the panel, if the item is visible and a panel runs."""
        if self._bus is None or not self._visible or not self.has_panel.is_set():
            return
        own = f"{INTERFACE}-{os.getpid()}-1"
        await self._bus.request_name(own, NameFlag.DO_NOT_QUEUE)
        await call(self._bus, WATCHER, WATCHER_PATH, "RegisterStatusNotifierItem", "s", [own])

    async def _unregister(self) -> None:
        """Remove the item from the panel by releasing its bus name."""
        if self._bus is not None:
            await self._bus.release_name(f"{INTERFACE}-{os.getpid()}-1")

    def handle(self, message: Message) -> Message | None:
        """Answer calls on the item and its menu."""
        if not self._visible:
            return None
        return self._object.handle(message) or self._menu.handle(message)

    def _emit(self, *members: str) -> None:
        """Send signals of changed properties; the panel then reads them."""
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
            "ItemIsMenu": Variant("b", False),  # a left click calls Activate
            "Menu": Variant("o", MENU_PATH),
        }


class DBusMenu:
    """
    The menu as an object on the bus.

    Entries are numbered from the top, those of a submenu after their parent; 0 is the menu itself.

    Args:
        signal: sends a signal of this interface: member, signature, values.
        clicked: called with the command of an entry, in the bus's thread.
        opened: called before the panel shows the menu.
    """

    def __init__(
        self,
        signal: Callable[[str, str, list[Any]], None],
        clicked: Callable[[Command], None],
        opened: Callable[[], None],
    ) -> None:
        self._signal = signal
        self._clicked = clicked
        self._opened = opened
        self._revision = 1
        self._entries: list[Entry] = [Entry(_ROOT)]
        # numbers of a submenu's entries, by the submenu's number
        self._children: dict[int, list[int]] = {_MENU: []}
        self._object = BusObject(
            MENU_PATH,
            MENU_INTERFACE,
            {
                "GetLayout": ("iias", "u(ia{sv}av)", self._get_layout),
                "GetGroupProperties": ("aias", "a(ia{sv})", self._get_group_properties),
                "GetProperty": ("is", "v", self._get_property),
                "Event": ("isvu", "", self._event),
                "EventGroup": ("a(isvu)", "ai", self._event_group),
                "AboutToShow": ("i", "b", self._about_to_show),
                "AboutToShowGroup": ("ai", "aiai", self._about_to_show_group),
            },
            _MENU_SIGNALS,
            lambda: {
                "Version": Variant("u", 3),
                "Status": Variant("s", "normal"),
                "TextDirection": Variant("s", "ltr"),
                "IconThemePath": Variant("as", []),
            },
        )

    def update(self, entries: Iterable[Entry]) -> None:
        """Set the menu. Any thread may call it, but only one at a time."""
        lines: list[Entry] = []
        below: dict[int, list[int]] = {}

        def number(entry: Entry) -> int:
            lines.append(entry)
            own = len(lines) - 1
            below[own] = [number(child) for child in entry.children]
            return own

        number(Entry(_ROOT, children=tuple(entries)))
        before, self._entries, self._children = self._entries, lines, below
        if len(before) != len(lines):  # the first menu
            self._revision += 1
            self._emit("LayoutUpdated", [self._revision, _MENU])
            return
        changed = [
            [number, _variants(new)]
            for number, (old, new) in enumerate(zip(before, lines, strict=True))
            if number != _MENU and _properties(old) != _properties(new)
        ]
        if changed:
            self._emit("ItemsPropertiesUpdated", [changed, []])

    def _emit(self, member: str, values: list[Any]) -> None:
        self._signal(member, _MENU_SIGNALS[member], values)

    def handle(self, message: Message) -> Message | None:
        """Return the answer to a call on the menu; None: the call is not for the menu."""
        return self._object.handle(message)

    def _get_layout(self, parent: int, depth: int, names: list[str]) -> list[Any]:
        self._entry_at(parent)
        return [self._revision, self._layout_tree(parent, depth, names)]

    def _layout_tree(self, number: int, depth: int, names: Iterable[str]) -> list[Any]:
        """Return an entry as (ia{sv}av), with `depth` levels below it; -1: all levels."""
        below = () if depth == 0 else self._children[number]
        return [
            number,
            _variants(self._entries[number], names),
            [Variant("(ia{sv}av)", self._layout_tree(child, depth - 1, names)) for child in below],
        ]

    def _get_group_properties(self, numbers: list[int], names: list[str]) -> list[Any]:
        known = [number for number in numbers or self._children if number in self._children]
        return [[[number, _variants(self._entries[number], names)] for number in known]]

    def _get_property(self, number: int, name: str) -> list[Any]:
        return [_variants(self._entry_at(number), (name,))[name]]

    def _event(self, number: int, kind: str, *_: Any) -> list[Any]:
        entry = self._entry_at(number)
        if kind == "clicked":
            # The panel may show an old menu: check again that the entry is enabled.
            if entry.command is not None and entry.enabled and not entry.children:
                self._clicked(entry.command)
        elif kind == "opened" and number == _MENU:
            self._opened()
        return []

    def _event_group(self, events: Iterable[list[Any]]) -> list[Any]:
        unknown = []
        for number, kind, *more in events:
            if number in self._children:
                self._event(number, kind, *more)
            else:
                unknown.append(number)
        return [unknown]

    def _about_to_show(self, number: int) -> list[Any]:
        self._entry_at(number)
        if number == _MENU:
            self._opened()
        return [False]  # the panel has the current menu: changes are sent at once

    def _about_to_show_group(self, numbers: list[int]) -> list[Any]:
        if _MENU in numbers:
            self._opened()
        return [[], [number for number in numbers if number not in self._children]]

    def _entry_at(self, number: int) -> Entry:
        if number not in self._children:
            raise LookupError(f"there is no item {number}")
        return self._entries[number]


def _properties(entry: Entry) -> dict[str, str | bool | int]:
    if entry.key == _ROOT:
        return {"children-display": "submenu"}
    found: dict[str, str | bool | int] = {"visible": entry.visible}
    if not entry.label:
        found["type"] = "separator"
    else:
        # a single underscore underlines the next character
        found["label"] = entry.label.replace("_", "__")
        found["enabled"] = entry.enabled
    if entry.checked is not None:
        found["toggle-type"] = "radio" if entry.radio else "checkmark"
        found["toggle-state"] = int(entry.checked)
    if entry.children:
        found["children-display"] = "submenu"
    return found


def _variants(entry: Entry, names: Iterable[str] = ()) -> dict[str, Variant]:
    wanted = frozenset(names)
    return {
        name: Variant(
            "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s", value
        )
        for name, value in _properties(entry).items()
        if not wanted or name in wanted
    }
