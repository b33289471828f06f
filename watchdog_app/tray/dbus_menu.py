"""
The menu on the bus: com.canonical.dbusmenu.

Answers are made from the layout as it was last set, in the bus's thread, and
wait for nothing. The tree keeps its shape: a change is sent as changed
properties, which an open menu takes without closing.

Source: com.canonical.dbusmenu, version 3 (libdbusmenu, dbus-menu.xml).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from dbus_fast import Message, Variant

from watchdog_app.tray.dbus_object import BusObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from watchdog_app.tray.menu_model import Command, Entry

PATH = "/MenuBar"
INTERFACE = "com.canonical.dbusmenu"

_SIGNALS = {
    "ItemsPropertiesUpdated": "a(ia{sv})a(ias)",
    "LayoutUpdated": "ui",
    "ItemActivationRequested": "iu",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the menu, or the menu itself (number 0)."""

    number: int
    properties: Mapping[str, str | bool | int]
    command: Command | None = None  # what a click asks for; None: nothing
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This one and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()


EMPTY = Node(0, {"children-display": "submenu"})


def layout(entries: Iterable[Entry]) -> Node:
    """Entries as numbered nodes, top to bottom; a panel hides those that are not visible."""
    numbers = count(1)

    def nodes(level: Iterable[Entry]) -> tuple[Node, ...]:
        return tuple(
            Node(next(numbers), _properties(entry), entry.command, nodes(entry.children))
            for entry in level
        )

    return Node(0, EMPTY.properties, None, nodes(entries))


def _properties(entry: Entry) -> dict[str, str | bool | int]:
    if not entry.label:
        return {"type": "separator", "visible": entry.visible}
    found: dict[str, str | bool | int] = {
        "label": entry.label.replace("_", "__"),  # a single one underlines what follows
        "enabled": entry.enabled,
        "visible": entry.visible,
    }
    if entry.checked is not None:
        found["toggle-type"] = "radio" if entry.radio else "checkmark"
        found["toggle-state"] = int(entry.checked)
    if entry.children:
        found["children-display"] = "submenu"
    return found


class DBusMenu:
    """
    The menu as an object on the bus.

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
        self._root = EMPTY
        self._nodes: dict[int, Node] = {EMPTY.number: EMPTY}
        self._object = BusObject(
            PATH,
            INTERFACE,
            {
                "GetLayout": ("iias", "u(ia{sv}av)", self._get_layout),
                "GetGroupProperties": ("aias", "a(ia{sv})", self._get_group),
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

    def set(self, root: Node) -> None:
        """The menu from now on. From any thread, but from one at a time."""
        before, nodes = self._nodes, {node.number: node for node in root.walk()}
        self._root, self._nodes = root, nodes
        if before.keys() != nodes.keys():  # the icon has just come, or goes
            self._revision += 1
            self._send("LayoutUpdated", [self._revision, root.number])
            return
        changed = [
            node for node in nodes.values() if node.properties != before[node.number].properties
        ]
        if changed:
            updated = [[node.number, _variants(node, ())] for node in changed]
            self._send("ItemsPropertiesUpdated", [updated, []])

    def _send(self, member: str, values: list[Any]) -> None:
        self._signal(member, _SIGNALS[member], values)

    def handle(self, message: Message) -> Message | None:
        """The answer to a call on the menu; None: it is for something else."""
        return self._object.handle(message)

    def _get_layout(self, parent: int, depth: int, names: list[str]) -> list[Any]:
        return [self._revision, _tree(self._node(parent), depth, names)]

    def _get_group(self, numbers: list[int], names: list[str]) -> list[Any]:
        wanted = numbers or list(self._nodes)
        found = [self._nodes[number] for number in wanted if number in self._nodes]
        return [[[node.number, _variants(node, names)] for node in found]]

    def _get_property(self, number: int, name: str) -> list[Any]:
        return [_variants(self._node(number), (name,))[name]]

    def _event(self, number: int, kind: str, *_: Any) -> list[Any]:
        node = self._node(number)
        if kind == "clicked":
            # The panel may be slow: what it clicks was enabled, and is asked again.
            if node.command is not None and node.properties.get("enabled") and not node.children:
                self._clicked(node.command)
        elif kind == "opened" and number == self._root.number:
            self._opened()
        return []

    def _event_group(self, events: Iterable[list[Any]]) -> list[Any]:
        unknown = []
        for number, kind, *more in events:
            if number in self._nodes:
                self._event(number, kind, *more)
            else:
                unknown.append(number)
        return [unknown]

    def _about_to_show(self, number: int) -> list[Any]:
        if self._node(number) is self._root:
            self._opened()
        return [False]  # what is shown is current; what changes is sent when it does

    def _about_to_show_group(self, numbers: list[int]) -> list[Any]:
        if self._root.number in numbers:
            self._opened()
        return [[], [number for number in numbers if number not in self._nodes]]

    def _node(self, number: int) -> Node:
        node = self._nodes.get(number)
        if node is None:
            raise LookupError(f"there is no item {number}")
        return node


def _tree(node: Node, depth: int, names: Iterable[str]) -> list[Any]:
    """The node as (ia{sv}av), `depth` levels deep; -1: all of them."""
    below = () if depth == 0 else node.children
    return [
        node.number,
        _variants(node, names),
        [Variant("(ia{sv}av)", _tree(child, depth - 1, names)) for child in below],
    ]


def _variants(node: Node, names: Iterable[str]) -> dict[str, Variant]:
    wanted = frozenset(names)
    return {
        name: Variant(
            "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s", value
        )
        for name, value in node.properties.items()
        if not wanted or name in wanted
    }
