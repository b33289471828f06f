"""Entries of the menu's model as pystray's `Menu` and `MenuItem`."""

from __future__ import annotations

import sys

from watchdog_app.tray.pystray_api import Menu, MenuItem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from watchdog_app.tray.menu_model import Command, Entry


class Line(MenuItem):  # type: ignore[misc]
    """A menu item that knows its entry."""

    def __init__(self, entry: Entry, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entry = entry


def items(
    entries: Iterable[Entry], wanted: Callable[[Command], None], every: bool = False
) -> list[MenuItem]:
    """
    pystray's items for the entries.

    Args:
        entries: of one level.
        wanted: called with the command of an item that is clicked.
        every: invisible entries and separators are lines too, which the panel hides and draws.
    """
    return [_item(entry, wanted, every) for entry in entries]


def _item(entry: Entry, wanted: Callable[[Command], None], every: bool) -> MenuItem:
    if not entry.label and not every:
        return Menu.SEPARATOR
    action: Any = None
    if entry.children:
        action = Menu(*items(entry.children, wanted, every))
    elif entry.command is not None:
        command = entry.command
        action = lambda _icon, _item: wanted(command)  # noqa: E731 - one line, and no name for it
    checked = entry.checked
    return Line(
        entry,
        _label(entry.label),
        action,
        checked=None if checked is None else lambda _: checked,
        radio=entry.radio,
        default=entry.default,
        visible=every or entry.visible,
        enabled=entry.enabled,
    )


def _label(text: str) -> str:
    """Windows underlines what follows an ampersand; the D-Bus menu sees to its own underscores."""
    return text.replace("&", "&&") if sys.platform == "win32" else text
