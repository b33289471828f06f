"""
Notifications to the services that the package apprise knows, by a helper process for each.

The helper is this module, run with `python -m`: apprise takes 44 MB, which the daemon never pays.
It reads {"urls", "title", "body", "urgency"} as JSON on standard input, and writes {"delivered":
bool, "detail": str} as the last line of standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from watchdog_app.base import children
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import Channel, Delivery, ask, delivery, plain_text

_DEADLINE_S = 20.0
_KINDS = {"low": "info", "normal": "warning", "critical": "failure"}


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
        argv = children.module_argv("watchdog_app.daemon.notify.apprise")
        answer = ask(argv, {"urls": self._urls, **text}, _DEADLINE_S, service="apprise")
        return delivery(answer, self._urls)


def main() -> int:
    """Send the notification from standard input."""
    failures = send_all(json.loads(sys.stdin.buffer.read()))
    print(json.dumps({"delivered": not failures, "detail": "; ".join(failures)}))
    return 1 if failures else 0


def send_all(request: dict[str, Any]) -> list[str]:
    """What has failed. Services are named by their number, because their addresses are secrets."""
    try:
        import apprise
    except ImportError:
        return ["the package is missing: pip install apprise"]
    failures = []
    for number, url in enumerate(request["urls"], 1):
        service = apprise.Apprise()
        if not service.add(url):
            failures.append(f"apprise does not understand number {number} of urls")
        elif not service.notify(request["body"], request["title"], _KINDS[request["urgency"]]):
            failures.append(f"number {number} of urls did not take it")
    return failures


if __name__ == "__main__":
    sys.exit(main())
