"""
Notifications over org.freedesktop.Notifications, with buttons and a delivery report.

A notification replaces an earlier one of the same incident and task. Text is escaped if the service
supports markup.

Source: Desktop Notifications Specification 1.3.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

from watchdog_app.base.dbus import (
    NOTIFICATIONS,
    NOTIFICATIONS_PATH,
    NOTIFY_SIGNATURE,
    CallFailed,
    failure_text,
    notify_body,
)
from watchdog_app.base.text.terminal import plain, plain_block, shorten
from watchdog_app.core.model.actions import ACTIONS, button_commands
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.tray.bus import Part, SessionBus, add_match

ResultCallback = Callable[[bool, str], None]  # arguments: delivered, detail
SlotKey = tuple[str, int | None]

_SERVICE = (NOTIFICATIONS, NOTIFICATIONS_PATH)
SHOW_TIMEOUT_S = 1.6  # the daemon shows the notification itself after two seconds
_CLOSE_TIMEOUT_S = 1.0
_MIN_SHOWN_S = 5.0
_MAX_REMEMBERED = 64
_MAX_BODY_CHARS = 2000
# Topics of docs/protocol.md that replace any notification of their task.
_SUPERSEDING_TOPICS = frozenset(("exited", "paused", "stopped", "resumed", "resolved"))
# Notifications of what is over: a later transient one closes them after this time.
_PAST_TOPICS = frozenset(("exited", "restarted", "rescued", "resumed", "resolved"))
_MAX_PAST_S = 60.0


@dataclass(slots=True)
class _ShownNotification:
    notification: Notification
    number: int
    at_mono_s: float
    on_screen: bool = True


class ShownNotifications:
    """The notifications that the service shows, and their numbers. Pure."""

    def __init__(self) -> None:
        self._shown: OrderedDict[SlotKey, _ShownNotification] = OrderedDict()

    def replaced_by(self, notification: Notification) -> int:
        """Return the number of the notification that this one replaces; 0: none."""
        before = self._shown.get(_slot_key(notification)) or self._shown_for_task(notification)
        return 0 if before is None else before.number

    def mark_shown(self, notification: Notification, number: int, now_mono_s: float) -> None:
        """Record that the service shows the notification under `number`."""
        place = _slot_key(notification)
        for other in [at for at, each in self._shown.items() if each.number == number]:
            del self._shown[other]  # the new notification has replaced the old one
        self._shown[place] = _ShownNotification(notification, number, now_mono_s)
        self._shown.move_to_end(place)
        while len(self._shown) > _MAX_REMEMBERED:
            self._shown.popitem(last=False)

    def _shown_for_task(self, notification: Notification) -> _ShownNotification | None:
        """Return the notification on screen that the end or a pause of its task replaces."""
        task = notification.task
        if task is None or notification.topic not in _SUPERSEDING_TOPICS:
            return None
        for (_, of_task), shown in reversed(self._shown.items()):
            reused = _is_pid_reused(shown.notification, notification)
            if of_task == task and shown.on_screen and not reused:
                return shown
        return None

    def outdated(self, status: Status, now_mono_s: float) -> list[int]:
        """
        Return the numbers of notifications on screen that are no longer true.

        These are warnings and stalls whose incident is over, notifications of a pause that has
        ended, and those whose task has ended. A notification of a death stays until a later
        danger needs the space on the screen.
        """
        found: list[int] = []
        last_danger_mono_s = 0.0
        for shown in self._shown.values():
            # The status may be older than a recent notification.
            young = now_mono_s - shown.at_mono_s < _MIN_SHOWN_S
            if not shown.on_screen or not shown.notification.is_transient:
                continue
            if not young and shown.notification.is_over(status):
                found.append(shown.number)
            else:
                last_danger_mono_s = max(last_danger_mono_s, shown.at_mono_s)
        found += [
            shown.number
            for shown in self._shown.values()
            if shown.on_screen
            and shown.notification.topic in _PAST_TOPICS
            and shown.at_mono_s < min(last_danger_mono_s, now_mono_s - _MAX_PAST_S)
        ]
        return found

    def mark_closed(self, number: int) -> None:
        """Record that the notification was closed."""
        for shown in self._shown.values():
            if shown.number == number:
                shown.on_screen = False

    def find(self, number: int) -> Notification | None:
        """Return the notification with this number; None: not one of ours."""
        found = (one.notification for one in self._shown.values() if one.number == number)
        return next(found, None)


def _is_pid_reused(notification: Notification, later: Notification) -> bool:
    """Return whether the pid was reused between two notifications."""
    begun = notification.start_time, later.start_time
    return None not in begun and begun[0] != begun[1]


def _slot_key(notification: Notification) -> SlotKey:
    """Return the key of a notification; it replaces an earlier one with the same key."""
    if not notification.incident:
        return f"\0{notification.id}", None
    return notification.incident, notification.task


class Notifications(Part):
    """
    Shows notifications.

    Args:
        pressed: called with the notification and the key of its button, in the bus's thread;
            "show" for a click on the notification itself.
    """

    watched_names = (NOTIFICATIONS,)

    def __init__(self, pressed: Callable[[Notification, str], None]) -> None:
        self.session: SessionBus | None = None
        self._on_button = pressed
        self._shown = ShownNotifications()
        self._capabilities: frozenset[str] | None = None

    async def connected(self, bus: MessageBus) -> None:
        """Subscribe to the signals of the notification service."""
        self._reset()
        await add_match(
            bus, f"type='signal',interface='{NOTIFICATIONS}',path='{NOTIFICATIONS_PATH}'"
        )

    def disconnected(self) -> None:
        """Forget the numbers of shown notifications."""
        self._reset()

    async def owner_changed(self, name: str, present: bool) -> None:  # noqa: ARG002
        """Reset: a new notification service counts from 1 again."""
        self._reset()

    def handle(self, message: Message) -> Message | None:
        """Handle signals of the notification service: a pressed button or a closed notification."""
        if message.message_type is not MessageType.SIGNAL or message.interface != NOTIFICATIONS:
            return None
        if message.member == "ActionInvoked" and message.signature == "us":
            number, key = message.body
            notification = self._shown.find(number)
            if notification is not None:
                self._on_button(notification, "show" if key == "default" else key)
        elif message.member == "NotificationClosed" and message.signature == "uu":
            self._shown.mark_closed(message.body[0])
        return None

    def show(self, notification: Notification, on_result: ResultCallback) -> None:
        """
        Show a notification; safe to call from any thread.

        Args:
            notification: the notification.
            on_result: called once, within two seconds, with the result.
        """
        if self.session is None or self.session.submit(self._show(notification, on_result)) is None:
            on_result(False, "there is no session bus")

    def close_outdated(self, status: Status) -> None:
        """Close notifications that the status shows to be over; safe to call from any thread."""
        if self.session is not None:
            self.session.submit(self._close_outdated(status, time.monotonic()))

    def close_transient(self) -> None:
        """Close all warnings: the daemon or this process ends, and no status would close them."""
        if self.session is None or not self.session.connected:
            return
        nothing = Status.read({})  # no incident and no task
        closing = self.session.submit(self._close_outdated(nothing, math.inf))
        if closing is not None:
            with suppress(Exception):  # a service that hangs does not delay the end for long
                closing.result(_CLOSE_TIMEOUT_S)

    async def _close_outdated(self, status: Status, now_mono_s: float) -> None:
        for number in self._shown.outdated(status, now_mono_s):
            self._shown.mark_closed(number)
            if self.session is not None:
                with suppress(CallFailed):  # the user closed it at the same moment
                    await self.session.call(*_SERVICE, "CloseNotification", "u", [number])

    async def _show(self, notification: Notification, on_result: ResultCallback) -> None:
        try:
            # One timeout for all steps, including the start of the service.
            await asyncio.wait_for(self._send(notification), SHOW_TIMEOUT_S)
        except TimeoutError:
            on_result(False, f"the notification service did not answer within {SHOW_TIMEOUT_S:g} s")
        except CallFailed as error:
            on_result(False, failure_text(error))
        except Exception as error:  # D-Bus cannot send some texts: report the failure
            on_result(False, f"it could not be sent: {error}")
        else:
            on_result(True, "shown by the companion")

    async def _send(self, notification: Notification) -> None:
        if self.session is None:
            raise CallFailed("", "there is no session bus")
        if self._capabilities is None:
            (known,) = await self.session.call(*_SERVICE, "GetCapabilities")
            self._capabilities = frozenset(known)
        urgency = notification.urgency or "normal"
        has_buttons = "actions" in self._capabilities
        commands = () if has_buttons else button_commands(notification)
        body = "\n".join((notification.body, *commands))
        values = notify_body(
            shorten(plain(notification.title), 200),
            shorten(plain_block(body), _MAX_BODY_CHARS),
            urgency,
            self._shown.replaced_by(notification),
            buttons(notification) if has_buttons else (),
            self._capabilities,
            stays=notification.is_transient,  # `outdated` closes it
        )
        (number,) = await self.session.call(*_SERVICE, "Notify", NOTIFY_SIGNATURE, values)
        self._shown.mark_shown(notification, number, time.monotonic())

    def _reset(self) -> None:
        self._shown = ShownNotifications()  # a restarted service counts from 1
        self._capabilities = None


def buttons(notification: Notification) -> list[str]:
    """
    Return keys and labels alternately, as Notify takes them; "default" is a click on the text.

    Keys unknown to this version are left out, because their buttons would do nothing.
    """
    # Leave the label empty: some services draw a labelled "default" as another button next to
    # "Show".
    found = ["default", ""]
    for action in notification.actions:
        if action.key in ACTIONS:
            found += [action.key, shorten(plain(action.label or action.key), 40)]
    return found
