"""Entries of the menu's model as pystray's `Menu` and `MenuItem`."""

from __future__ import annotations

import sys

from watchdog_app.tray.pystray_api import Menu, MenuItem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from watchdog_app.tray.menu_model import Entry, Wish


class KeyedItem(MenuItem):  # type: ignore[misc]
    """A menu item that keeps its key when the menu is rebuilt."""

    def __init__(self, key: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.key = key


def items(entries: Iterable[Entry], wanted: Callable[[Wish], None]) -> list[MenuItem]:
    """
    pystray's items for the entries.

    Args:
        entries: of one level.
        wanted: called with the wish of an item that is clicked.
    """
    return [_item(entry, wanted) for entry in entries]


def _item(entry: Entry, wanted: Callable[[Wish], None]) -> MenuItem:
    if not entry.label:
        return Menu.SEPARATOR
    action: Any = None
    if entry.children:
        action = Menu(*items(entry.children, wanted))
    elif entry.wish is not None:
        wish = entry.wish
        action = lambda _icon, _item: wanted(wish)  # noqa: E731 - one line, and no name for it
    checked = entry.checked
    return KeyedItem(
        entry.key,
        _label(entry.label),
        action,
        checked=None if checked is None else lambda _: checked,
        radio=entry.radio,
        default=entry.default,
        enabled=entry.enabled,
    )


def _label(text: str) -> str:
    """Windows underlines what follows an ampersand; the D-Bus menu sees to its own underscores."""
    return text.replace("&", "&&") if sys.platform == "win32" else text
