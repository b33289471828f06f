"""Notifications as lines of text, on the daemon's standard error or any other stream."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import Channel, Delivery

_LINE = 500


class TerminalChannel(Channel):
    """Writes notifications to `stream`; names in them cannot move the cursor or change colours."""

    name = "terminal"

    def __init__(self, _: object = True, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def send(self, notification: Notification) -> Delivery:
        """Write the notification."""
        at = time.strftime("%H:%M:%S", time.localtime(notification.unix_s))
        lines = [f"[{at}] watchdog: {clean(notification.title, _LINE)}"]
        lines += [f"           {clean(line, _LINE)}" for line in notification.body.splitlines()]
        lines += [f"           > {clean(line, _LINE)}" for line in button_commands(notification)]
        text = "\n".join(lines) + "\n"
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            return Delivery(False, f"the terminal cannot be written to: {error}")
        return Delivery(True)
