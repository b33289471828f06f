"""
Notifications on the desktop, by a helper process for each.

The desktop libraries would cost the daemon 12 MB and could hang or crash it. So a helper is started
for each notification. It reads the notification as JSON on standard input and answers with one line
of JSON whether it was shown.

The helper has ended before a user could press a button. So there are no buttons, and the text names
the commands instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from watchdog_app.base import children
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.daemon.notify import Channel, Delivery, ask

DEADLINE_S = 8.0
_MOST_REMEMBERED = 64

_Place = tuple[str, int | None]  # incident and task


class DesktopChannel(Channel):
    """
    Shows notifications on the desktop of this user's session.

    A notification replaces an earlier one of the same incident and task on the screen. A warning
    stays there while it is true.

    Args:
        deadline_s: time limit of the helper, after which the notification counts as not shown.
        env: environment of the helper; None: that of this process.
        helper: command line of the helper.
    """

    name = "desktop"
    also_with_tray = needed = False

    def __init__(
        self,
        _: object = True,
        *,
        deadline_s: float = DEADLINE_S,
        env: Mapping[str, str] | None = None,
        helper: Sequence[str] = children.module_argv("watchdog_app.daemon.notify.desktop_helper"),
    ) -> None:
        self._ask = partial(ask, helper, deadline_s=deadline_s, env=env, service="the desktop")
        self._service = ""  # bus name of the process that shows the notifications
        self._shown: dict[_Place, tuple[Notification, int]] = {}  # with their numbers

    def send(self, notification: Notification) -> Delivery:
        """Show the notification; blocks up to the deadline."""
        place = _place(notification)
        _, replaces = self._shown.get(place, (None, 0))
        answer = self._ask(
            {
                **notification.to_json(),
                "body": "\n".join([notification.body, *button_commands(notification)]),
                "replaces": replaces,
                "service": self._service,
                "stays": notification.is_transient,
            }
        )
        number, service = answer.get("number"), str(answer.get("service"))
        if isinstance(number, int) and number > 0:
            if service != self._service:
                self._shown.clear()
                self._service = service
            self._shown.pop(place, None)
            while len(self._shown) >= _MOST_REMEMBERED:
                del self._shown[next(iter(self._shown))]
            self._shown[place] = (notification, number)
            self._update_standing()
        return Delivery(answer.get("delivered") is True, str(answer.get("detail", "")))

    def close_over(self, status: Status) -> None:
        """Close notifications on the screen that are no longer true."""
        over = [
            place
            for place, (each, _) in self._shown.items()
            if each.is_transient and each.is_over(status)
        ]
        if over:
            numbers = [self._shown.pop(place)[1] for place in over]
            self._ask({"close": numbers, "service": self._service})
            self._update_standing()

    def _update_standing(self) -> None:
        self.standing = any(each.is_transient for each, _ in self._shown.values())


def _place(notification: Notification) -> _Place:
    return notification.incident or f"\0{notification.id}", notification.task
