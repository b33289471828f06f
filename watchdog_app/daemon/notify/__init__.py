"""
Showing notifications to people: what a channel is, and the table of channels.

A new channel is a module with a `Channel`, a row of CHANNELS and its setting in `[notify]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from watchdog_app.core.model.decisions import Notification
from watchdog_app.core.model.settings import NotifySettings

_ACTION_KEYS = frozenset(("save", "pause", "resume"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a notification in one channel."""

    delivered: bool
    detail: str = ""  # where it was not delivered: why, and what to do


class Channel(Protocol):
    """One way to show a notification. Its class is called with its setting of `[notify]`."""

    name: str
    beside_tray: bool  # also where a tray has shown it
    needed: bool  # its failure is a fault; else a machine that lacks it lacks nothing

    def send(self, notification: Notification) -> Delivery:
        """
        Show it, and say whether that worked.

        It is called in a thread of the channel's own, blocks some seconds at most, never raises.
        """


# Setting of `[notify]` that switches it on, module and class; loaded when it is on.
CHANNELS = {
    "desktop": "desktop:DesktopChannel",
    "terminal": "terminal:TerminalChannel",
    "command": "command:CommandChannel",
}


def open_channels(settings: NotifySettings) -> Sequence[Channel]:
    """The channels that are switched on."""
    found = []
    for name, place in CHANNELS.items():
        setting = getattr(settings, name)
        if setting:
            module, _, class_name = place.partition(":")
            channel = getattr(import_module(f"{__name__}.{module}"), class_name)
            found.append(channel(setting))
    return found


def action_commands(notification: Notification) -> list[str]:
    """
    The commands of a notification's buttons, for channels that show no buttons.

    Commands that its text names already, or that only show more, are left out.
    """
    return [
        each.command
        for each in notification.actions
        if each.key in _ACTION_KEYS and each.command and each.command not in notification.body
    ]
