"""
Notifications over org.freedesktop.Notifications, with buttons, and whether they were shown.

Source: Desktop Notifications Specification 1.3. A notification replaces an earlier
one of its incident and task; text is escaped where the service knows markup.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

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
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.tray import labels
from watchdog_app.tray.bus import Part, SessionBus, add_match
from watchdog_app.tray.notification_gate import NotificationGate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from watchdog_app.core.model.status import Button, Notification, Status

    ResultCallback = Callable[[bool, str], None]  # delivered, detail

_SERVICE = (NOTIFICATIONS, NOTIFICATIONS_PATH)
SHOW_TIMEOUT_S = 1.6  # the daemon waits two seconds and then shows it by itself


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
        self._gate = NotificationGate()
        self._capabilities: frozenset[str] | None = None
        self._waiting: dict[str, asyncio.TimerHandle] = {}

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
        """Another notification service counts from 1 again."""
        self._reset()

    def handle(self, message: Message) -> Message | None:
        """Signals of the notification service: a button, or the end of a notification."""
        if message.message_type is not MessageType.SIGNAL or message.interface != NOTIFICATIONS:
            return None
        if message.member == "ActionInvoked" and message.signature == "us":
            number, key = message.body
            notification = self._gate.find(number)
            if notification is not None:
                self._on_button(notification, "show" if key == "default" else key)
        elif message.member == "NotificationClosed" and message.signature == "uu":
            self._gate.mark_closed(message.body[0])
        return None

    def show(self, notification: Notification, on_result: ResultCallback) -> None:
        """Show a notification, from any thread; `on_result` is called once, within two seconds."""
        if self.session is None or self.session.submit(self._show(notification, on_result)) is None:
            on_result(False, "there is no session bus")

    def close_outdated(self, status: Status) -> None:
        """Close notifications that a status shows to be over; from any thread."""
        if self.session is not None:
            self.session.submit(self._close_outdated(status))

    async def _close_outdated(self, status: Status) -> None:
        for number in self._gate.outdated(status, time.monotonic()):
            self._gate.mark_closed(number)
            if self.session is not None:
                with suppress(CallFailed):  # its user has closed it in this moment
                    await self.session.call(*_SERVICE, "CloseNotification", "u", [number])

    async def _show(self, notification: Notification, on_result: ResultCallback) -> None:
        verdict = self._gate.decide(notification, time.monotonic())
        incident = notification.incident
        self._cancel_waiting(incident)
        if verdict.wait_s > 0:
            loop = asyncio.get_running_loop()
            self._waiting[incident] = loop.call_later(verdict.wait_s, self._show_late, notification)
            on_result(
                True, f"held back for {verdict.wait_s:.0f} s: the same was shown a moment ago"
            )
            return
        try:
            # One limit for all of it: a service that is being started is waited for, too.
            await asyncio.wait_for(self._send(notification, verdict.replaces), SHOW_TIMEOUT_S)
        except TimeoutError:
            on_result(False, f"the notification service did not answer within {SHOW_TIMEOUT_S:g} s")
        except CallFailed as error:
            on_result(False, failure_text(error))
        except Exception as error:  # a text that the bus cannot carry: said, and not lost
            on_result(False, f"it could not be sent: {error}")
        else:
            on_result(True, "shown by the companion")

    async def _send(self, notification: Notification, replaces: int) -> None:
        if self.session is None:
            raise CallFailed("", "there is no session bus")
        if self._capabilities is None:
            (known,) = await self.session.call(*_SERVICE, "GetCapabilities")
            self._capabilities = frozenset(known)
        urgency = notification.urgency or "normal"
        has_buttons = "actions" in self._capabilities
        body = labels.plain_block(
            notification.body if has_buttons else body_with_commands(notification)
        )
        values = notify_body(
            labels.plain(notification.title, 200),
            body,
            urgency,
            replaces,
            buttons(notification) if has_buttons else (),
            self._capabilities,
        )
        (number,) = await self.session.call(*_SERVICE, "Notify", NOTIFY_SIGNATURE, values)
        self._gate.mark_shown(notification, number, time.monotonic())

    def _show_late(self, notification: Notification) -> None:
        self._waiting.pop(notification.incident, None)
        self.show(notification, lambda *_: None)

    def _cancel_waiting(self, incident: str) -> None:
        waiting = self._waiting.pop(incident, None)
        if waiting is not None:
            waiting.cancel()

    def _reset(self) -> None:
        self._gate.forget_numbers()
        self._capabilities = None


def buttons(notification: Notification) -> list[str]:
    """
    Keys and labels by turns, as Notify takes them; "default" is a click on the text.

    Keys that this version does not know are left out: a button that does nothing is a lie.
    """
    # Without a label: some services draw a button for it, beside the one that says "Show".
    found = ["default", ""]
    for action in notification.actions:
        if action.key in ACTIONS:
            found += [action.key, labels.plain(action.label or action.key, 40)]
    return found


def body_with_commands(notification: Notification) -> str:
    """The text and, for a service without buttons, what does the same in a terminal."""
    lines = [notification.body]
    for action in notification.actions:
        if action.command and is_task_request(action):
            lines += [action.command] if action.command not in lines[0] else []
    return "\n".join(lines)


def is_task_request(button: Button) -> bool:
    """Whether a button asks the daemon for something about its task."""
    action = ACTIONS.get(button.key)
    return action is not None and bool(action.method) and action.key != "snooze"
