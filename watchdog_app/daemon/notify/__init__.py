"""
Channels that show notifications to people: their interface, and the table of channels.

To add one, write a module with a `Channel` and add a row of CHANNELS and its setting in `[notify]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.settings import NotifySettings
from watchdog_app.core.model.status import Notification

_ACTION_KEYS = frozenset(("save", "pause", "resume"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a notification in one channel."""

    delivered: bool
    detail: str = ""  # if not delivered: the reason and advice


class Channel(Protocol):
    """One way to show a notification. Its class is called with its setting of `[notify]`."""

    name: str
    also_with_tray: bool  # used even if a tray has shown the notification
    needed: bool  # its failure is a fault; False: a machine may lack it

    def send(self, notification: Notification) -> Delivery:
        """
        Show the notification and report whether that worked.

        Runs in the channel's own thread, blocks some seconds at most, never raises.
        """


# Setting of `[notify]` that turns it on: module and class, imported when on.
CHANNELS = {
    "desktop": "desktop:DesktopChannel",
    "terminal": "terminal:TerminalChannel",
    "command": "command:CommandChannel",
}


def open_channels(settings: NotifySettings) -> Sequence[Channel]:
    """The channels that are turned on."""
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

    Leaves out commands that the text already names, and commands that only show more.
    """
    return [
        each.command
        for each in notification.actions
        if each.key in _ACTION_KEYS and each.command and each.command not in notification.body
    ]
