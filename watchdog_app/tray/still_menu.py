"""
A menu that is open: its lines stay where they are under the pointer. Pure.

Labels change and nothing else moves: what is gone is said to be and can no longer be clicked,
what is new comes with the next opening.
"""

from __future__ import annotations

from dataclasses import replace

from watchdog_app.tray.labels import plain
from watchdog_app.tray.menu_model import Entry


def held(
    opened: tuple[Entry, ...], now: tuple[Entry, ...], alive: frozenset[str] = frozenset()
) -> tuple[Entry, ...]:
    """
    What an open menu shows of the menu as it is now.

    Args:
        opened: the entries when it was opened, or as they were held since.
        now: as they would be in a menu that is opened now.
        alive: keys of tasks that run, whether they have a line in that menu or not.
    """
    fresh = {entry.key: entry for entry in now}
    return tuple(
        entry
        if entry.key in alive and entry.key not in fresh
        else _held(entry, fresh.get(entry.key))
        for entry in opened
    )


def _held(before: Entry, now: Entry | None) -> Entry:
    if not before.label:
        return before  # a separator
    if now is None:
        return _gone(before)
    # A menu is as wide as it was when it was opened: more would be cut off.
    label = plain(now.label, max(1, len(before.label)))
    return replace(now, label=label, children=held(before.children, now.children))


def _gone(entry: Entry) -> Entry:
    label = entry.label
    if entry.key.startswith("task-"):
        label = plain(f"{entry.label.partition(': ')[0]} has ended", max(1, len(label)))
    children = tuple(_off(child) for child in entry.children)
    return replace(entry, label=label, enabled=False, wish=None, children=children)


def _off(entry: Entry) -> Entry:
    children = tuple(_off(child) for child in entry.children)
    return replace(entry, enabled=False, wish=None, children=children)
