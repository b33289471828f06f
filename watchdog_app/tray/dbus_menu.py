"""
The menu on the bus: com.canonical.dbusmenu.

Answers are made from the layout as it was last set, in the bus's thread, and
wait for nothing. The tree keeps its shape: a change is sent as changed
properties, which an open menu takes without closing.

Source: com.canonical.dbusmenu, version 3 (libdbusmenu, dbus-menu.xml).
"""

from __future__ import annotations

from dbus_fast import Message, Variant

from watchdog_app.tray.bus import BusObject
from watchdog_app.tray.menu_model import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from watchdog_app.tray.menu_model import Command

PATH = "/MenuBar"
INTERFACE = "com.canonical.dbusmenu"
_MENU, _ROOT = 0, ""  # number and key of the menu itself

_SIGNALS = {
    "ItemsPropertiesUpdated": "a(ia{sv})a(ias)",
    "LayoutUpdated": "ui",
    "ItemActivationRequested": "iu",
}


class DBusMenu:
    """
    The menu as an object on the bus.

    Lines are numbered from the top, those of a submenu behind its own; 0 is the menu itself.

    Args:
        signal: sends a signal of this interface: member, signature, values.
        clicked: called with the command of a line, in the bus's thread.
        opened: called when the menu is about to be shown.
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
        self._children: dict[int, list[int]] = {_MENU: []}  # lines of a submenu, by its number
        self._object = BusObject(
            PATH,
            INTERFACE,
            {
                "GetLayout": ("iias", "u(ia{sv}av)", self._get_layout),
                "GetGroupProperties": ("aias", "a(ia{sv})", self._get_group_properties),
                "GetProperty": ("is", "v", self._get_property),
                "Event": ("isvu", "", self._event),
                "EventGroup": ("a(isvu)", "ai", self._event_group),
                "AboutToShow": ("i", "b", self._about_to_show),
                "AboutToShowGroup": ("ai", "aiai", self._about_to_show_group),
            },
            _SIGNALS,
            lambda: {
                "Version": Variant("u", 3),
                "Status": Variant("s", "normal"),
                "TextDirection": Variant("s", "ltr"),
                "IconThemePath": Variant("as", []),
            },
        )

    def update(self, entries: Iterable[Entry]) -> None:
        """The menu from now on. From any thread, but from one at a time."""
        lines: list[Entry] = []
        below: dict[int, list[int]] = {}

        def number(entry: Entry) -> int:
            lines.append(entry)
            own = len(lines) - 1
            below[own] = [number(child) for child in entry.children]
            return own

        number(Entry(_ROOT, children=tuple(entries)))
        before, self._entries, self._children = self._entries, lines, below
        if len(before) != len(lines):  # the icon has just come
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
        self._signal(member, _SIGNALS[member], values)

    def handle(self, message: Message) -> Message | None:
        """The answer to a call on the menu; None: it is for something else."""
        return self._object.handle(message)

    def _get_layout(self, parent: int, depth: int, names: list[str]) -> list[Any]:
        self._entry_at(parent)
        return [self._revision, self._layout_tree(parent, depth, names)]

    def _layout_tree(self, number: int, depth: int, names: Iterable[str]) -> list[Any]:
        """A line as (ia{sv}av), `depth` levels deep; -1: all of them."""
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
            # The panel may be slow: what it clicks was enabled, and is asked again.
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
        return [False]  # what is shown is current; what changes is sent when it does

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
        found["label"] = entry.label.replace("_", "__")  # a single one underlines what follows
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
