"""
Channels that show notifications to people: their interface.

To add one, write a module with a `Channel` and add a row of `CHANNELS` in `core.model.settings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from watchdog_app.base.errors import ConfigError
from watchdog_app.base.records import dataclass
from watchdog_app.core.model.settings import CHANNELS, NotifySettings
from watchdog_app.core.model.status import Notification, Status


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a notification in one channel."""

    delivered: bool
    detail: str = ""  # if not delivered: the reason and advice


class Channel:
    """
    One way to show a notification.

    Its class is called with its setting of `[notify]`, or with the keys of its table
    `[notify.NAME]` as keyword arguments. It raises ValueError or TypeError for bad values.
    """

    name: str
    also_with_tray = True  # used even if a tray has shown the notification
    needed = True  # its failure is a fault; False: a machine may lack it
    standing = False  # whether notifications are on a screen that `close_over` may close

    def send(self, notification: Notification) -> Delivery:
        """
        Show the notification and report whether that worked.

        Runs in the channel's own thread, blocks some seconds at most, never raises.
        """
        raise NotImplementedError

    def close_over(self, status: Status) -> None:
        """Remove what the status shows to be no longer true. Runs in the channel's own thread."""


def open_channels(settings: NotifySettings) -> Sequence[Channel]:
    """
    The channels that are turned on.

    Raises:
        ConfigError: a channel refuses the values of its table `[notify.NAME]`.
    """
    found = []
    for name, place in CHANNELS.items():
        setting, table = getattr(settings, name, None), settings.tables.get(name)
        if not setting and table is None:
            continue
        module, _, class_name = place.partition(":")
        channel = getattr(import_module(f"{__name__}.{module}"), class_name)
        try:
            found.append(channel(setting) if table is None else channel(**table))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"[notify.{name}] is not accepted: {error}.") from error
    return found
