"""
pystray's menu as com.canonical.dbusmenu has it: numbered nodes with properties. Pure.

A number stays with its item as long as the item is there. So a change is sent as changed
properties, which an open menu takes without closing.

Source: com.canonical.dbusmenu, version 3 (libdbusmenu, dbus-menu.xml).
"""

from __future__ import annotations

from dataclasses import dataclass

from watchdog_app.tray.pystray_api import Menu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    Properties = Mapping[str, str | bool | int]

ROOT = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the menu, or the menu itself (number 0)."""

    number: int
    properties: Properties
    item: Any = None  # pystray's; None: the root or a separator
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This one and everything below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def shape(self) -> Any:
        """What must be the same for a change to be one of properties alone."""
        return self.number, tuple(child.shape() for child in self.children)


EMPTY = Node(ROOT, {"children-display": "submenu"})


class Numbering:
    """Numbers of items over time: by their key, or by their place where they have none."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._last = ROOT

    def layout(self, menu: Menu | None) -> Node:
        """The menu as it is now. Numbers of items that are gone are not given again."""
        used: dict[tuple[str, ...], int] = {}
        root = Node(ROOT, EMPTY.properties, None, self._children(menu or (), (), used))
        self._numbers = used
        return root

    def _children(
        self, menu: Iterable[Any], above: tuple[str, ...], used: dict[tuple[str, ...], int]
    ) -> tuple[Node, ...]:
        nodes = []
        for place, item in enumerate(menu):
            path = (*above, getattr(item, "key", None) or f"\0{place}")
            if path in used:
                path = (*path, f"\0{place}")
            number = self._numbers.get(path)
            if number is None:
                self._last += 1
                number = self._last
            used[path] = number
            if item is Menu.SEPARATOR:
                nodes.append(Node(number, {"type": "separator", "visible": True}))
                continue
            below = self._children(item.submenu or (), path, used)
            nodes.append(Node(number, _properties(item, bool(below)), item, below))
        return tuple(nodes)


def changes(before: Node, after: Node) -> list[Node] | None:
    """
    The nodes whose properties differ; None: lines came or went, and the layout has to be read.
    """
    if before.shape() != after.shape():
        return None
    pairs = zip(before.walk(), after.walk(), strict=True)
    return [new for old, new in pairs if old.properties != new.properties]


def _properties(item: Any, has_children: bool) -> Properties:
    # All that can change is said even where it is the default: a property that is left out
    # afterwards would have to be told as removed, which not every panel understands.
    found: dict[str, str | bool | int] = {
        "label": item.text.replace("_", "__"),  # a single one underlines what follows
        "enabled": bool(item.enabled),
        "visible": True,
    }
    checked = item.checked
    if checked is not None:
        found["toggle-type"] = "radio" if item.radio else "checkmark"
        found["toggle-state"] = int(checked)
    if has_children:
        found["children-display"] = "submenu"
    return found
