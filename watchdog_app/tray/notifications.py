"""
Notifications over org.freedesktop.Notifications, with buttons, and whether they were shown.

Source: Desktop Notifications Specification 1.3. A notification replaces an earlier
one of its incident and task; text is escaped where the service knows markup.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
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
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.tray.bus import Part, SessionBus, add_match

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from watchdog_app.core.model.status import Button, Notification, Status

    ResultCallback = Callable[[bool, str], None]  # delivered, detail
    SlotKey = tuple[str, int | None]

_SERVICE = (NOTIFICATIONS, NOTIFICATIONS_PATH)
SHOW_TIMEOUT_S = 1.6  # the daemon waits two seconds and then shows it by itself
_MIN_SHOWN_S = 5.0
_MAX_REMEMBERED = 64
_MAX_BODY_CHARS = 2000
# Topics of docs/protocol.md that replace any notification of their task.
_SUPERSEDING_TOPICS = frozenset(("exited", "paused", "stopped", "resumed", "resolved"))
# Closed once their task or incident has ended; the rest stays on the screen.
_TRANSIENT_TOPICS = frozenset(
    ("warning", "paused", "stopped", "pause_failed", "stalled", "rescue_failed")
)


@dataclass(slots=True)
class _ShownNotification:
    notification: Notification
    number: int
    at_mono_s: float
    on_screen: bool = True


class ShownNotifications:
    """Which notifications a notification service shows, and under which number. Pure."""

    def __init__(self) -> None:
        self._shown: OrderedDict[SlotKey, _ShownNotification] = OrderedDict()

    def replaced_by(self, notification: Notification) -> int:
        """Number of the notification that this one takes the place of; 0: of none."""
        before = self._shown.get(_slot_key(notification)) or self._shown_for_task(notification)
        return 0 if before is None else before.number

    def mark_shown(self, notification: Notification, number: int, now_mono_s: float) -> None:
        """Record that the service shows it under `number`."""
        place = _slot_key(notification)
        for other in [at for at, each in self._shown.items() if each.number == number]:
            del self._shown[other]  # it has taken that one's place
        self._shown[place] = _ShownNotification(notification, number, now_mono_s)
        self._shown.move_to_end(place)
        while len(self._shown) > _MAX_REMEMBERED:
            self._shown.popitem(last=False)

    def _shown_for_task(self, notification: Notification) -> _ShownNotification | None:
        """The notification on the screen that the end or a pause of its task replaces."""
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
        Numbers of the notifications on the screen that are no longer true.

        Warnings whose incident is over, and notifications whose task has ended. A death stays.
        """
        open_ = {one.id for one in status.incidents}
        tasks = {one.pid: one.start_time for one in status.tasks}
        found = []
        for shown in self._shown.values():
            notification, topic = shown.notification, shown.notification.topic
            # A status may be older than a notification that has just come.
            young = now_mono_s - shown.at_mono_s < _MIN_SHOWN_S
            if young or not shown.on_screen or topic not in _TRANSIENT_TOPICS:
                continue
            task, begun = notification.task, notification.start_time
            gone = task is not None and (task not in tasks or begun not in (None, tasks[task]))
            over = topic == "warning" and notification.incident not in open_
            if gone or over:
                found.append(shown.number)
        return found

    def mark_closed(self, number: int) -> None:
        """Record that it was closed."""
        for shown in self._shown.values():
            if shown.number == number:
                shown.on_screen = False

    def find(self, number: int) -> Notification | None:
        """The notification that was shown under this number; None: it is not ours."""
        found = (one.notification for one in self._shown.values() if one.number == number)
        return next(found, None)


def _is_pid_reused(notification: Notification, later: Notification) -> bool:
    """Whether a pid was given again between two notifications."""
    begun = notification.start_time, later.start_time
    return None not in begun and begun[0] != begun[1]


def _slot_key(notification: Notification) -> SlotKey:
    """A notification replaces an earlier one with the same key."""
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
        """Another notification service counts from 1 again."""
        self._reset()

    def handle(self, message: Message) -> Message | None:
        """Signals of the notification service: a button, or the end of a notification."""
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
        """Show a notification, from any thread; `on_result` is called once, within two seconds."""
        if self.session is None or self.session.submit(self._show(notification, on_result)) is None:
            on_result(False, "there is no session bus")

    def close_outdated(self, status: Status) -> None:
        """Close notifications that a status shows to be over; from any thread."""
        if self.session is not None:
            self.session.submit(self._close_outdated(status))

    async def _close_outdated(self, status: Status) -> None:
        for number in self._shown.outdated(status, time.monotonic()):
            self._shown.mark_closed(number)
            if self.session is not None:
                with suppress(CallFailed):  # its user has closed it in this moment
                    await self.session.call(*_SERVICE, "CloseNotification", "u", [number])

    async def _show(self, notification: Notification, on_result: ResultCallback) -> None:
        try:
            # One limit for all of it: a service that is being started is waited for, too.
            await asyncio.wait_for(self._send(notification), SHOW_TIMEOUT_S)
        except TimeoutError:
            on_result(False, f"the notification service did not answer within {SHOW_TIMEOUT_S:g} s")
        except CallFailed as error:
            on_result(False, failure_text(error))
        except Exception as error:  # a text that the bus cannot carry: said, and not lost
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
        body = notification.body if has_buttons else body_with_commands(notification)
        values = notify_body(
            shorten(plain(notification.title), 200),
            shorten(plain_block(body), _MAX_BODY_CHARS),
            urgency,
            self._shown.replaced_by(notification),
            buttons(notification) if has_buttons else (),
            self._capabilities,
        )
        (number,) = await self.session.call(*_SERVICE, "Notify", NOTIFY_SIGNATURE, values)
        self._shown.mark_shown(notification, number, time.monotonic())

    def _reset(self) -> None:
        self._shown = ShownNotifications()  # a service that was restarted counts from 1
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
            found += [action.key, shorten(plain(action.label or action.key), 40)]
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
