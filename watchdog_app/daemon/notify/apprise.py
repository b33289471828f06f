"""Notifications to the services that the package apprise knows, by a helper for each."""

from __future__ import annotations

from collections.abc import Sequence

from watchdog_app.base import children
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import Channel, Delivery, plain_text
from watchdog_app.daemon.notify.helper import ask, delivery

_DEADLINE_S = 20.0


class AppriseChannel(Channel):
    """
    Sends notifications to all of these services.

    Args:
        urls: of the services, in the form of apprise; they contain passwords.
    """

    name = "apprise"

    def __init__(self, *, urls: Sequence[str]) -> None:
        if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
            raise ValueError("urls must be a list of texts")
        self._urls = urls

    def send(self, notification: Notification) -> Delivery:
        """Send the notification; blocks for 20 s at most."""
        title, body = plain_text(notification, button_commands(notification))
        text = {"title": title, "body": body, "urgency": notification.urgency}
        argv = children.module_argv("watchdog_app.daemon.notify.apprise_helper")
        answer = ask(argv, {"urls": self._urls, **text}, _DEADLINE_S, service="apprise")
        return delivery(answer, self._urls)
