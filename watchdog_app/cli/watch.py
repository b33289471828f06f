"""
Print notifications in a terminal, over ssh or into a log: time, urgency, what happened and what
to do. The view survives a restart of the daemon; Ctrl-C ends it. The desktop and
notify.command get every notification as well.

examples:
  watchdog watch
  watchdog watch --bell                 ring for critical ones
  watchdog watch --json | jq .title     one JSON object a line

Past notifications: watchdog history
Current use: watchdog status --watch

exit codes: 0 ended by Ctrl-C, 1 failure, 2 usage, 3 daemon not running at the start
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from watchdog_app.base.errors import EXIT_OK, DaemonNotRunning, ProtocolError
from watchdog_app.base.text.terminal import Style, plain, wrap
from watchdog_app.cli.output import Output, format_timestamp, remark
from watchdog_app.cli.parser import Args, Parser, positive_integer
from watchdog_app.client.client import Client
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.status import Notification

# A printed notification counts as delivered only if nothing else could show it: the terminal may be
# out of view, so printing a notification must not keep it from the desktop.
_RETRY_S = 2.0
_INDENT = " " * 21


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.json("one JSON object a line")
    parser.flag("--bell", "ring the terminal bell for critical ones")
    parser.option("--count N", "end after N notifications", positive_integer)
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Print notifications until interrupted or `count` is reached."""
    left = args.count
    try:
        for notification in _follow_notifications():
            _print_notification(notification, args, out)
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _follow_notifications() -> Iterator[dict[str, Any]]:
    """
    Yield notifications, also after restarts of the daemon.

    Raises:
        DaemonNotRunning: no daemon runs at the start.
    """
    client = Client.connect()
    _remark("Waiting for notifications; Ctrl-C ends this.")
    while True:
        try:
            with client:
                yield from _read_notifications(client)
        except (DaemonNotRunning, ProtocolError) as error:
            _remark(f"{error} Notifications continue when the daemon is back.")
        client = _reconnect()
        _remark("The daemon is back.")


def _read_notifications(client: Client) -> Iterator[dict[str, Any]]:
    client.call("subscribe", topics=["notifications"])
    for message in client.notifications(None):
        notification = message.get("params")
        if message.get("method") != "notification" or not isinstance(notification, dict):
            continue
        yield notification
        # Report it only after the write succeeded: a closed pipe shows nothing.
        if isinstance(notification.get("id"), str):
            client.notify(
                "notification.shown",
                id=notification["id"],
                delivered=True,
                detail="written by watchdog watch",
            )


def _reconnect() -> Client:
    while True:
        time.sleep(_RETRY_S)
        try:
            return Client.connect()
        except (DaemonNotRunning, ProtocolError):
            continue


def _print_notification(notification: dict[str, Any], args: Args, out: Output) -> None:
    if args.json:
        out.json(notification, indent=None)
        return
    read = Notification.read(notification)
    bell = "\a" if args.bell and read.urgency == "critical" else ""
    out.lines("\n".join(render(read, out.columns, out.style)) + bell)


def render(notification: Notification, columns: int | None, appearance: Style) -> list[str]:
    """
    Return a notification as text: date, time, urgency and title; then its body and commands.

    Args:
        notification: the notification from the daemon.
        columns: width of the terminal; None: no wrapping.
        appearance: colours and symbols.
    """
    at = notification.unix_s if notification.unix_s is not None else time.time()
    urgency = plain(notification.urgency or "normal")
    word = "" if urgency in ("normal", "low") else f"{urgency.upper()}: "
    # On a narrow terminal the text starts on the line below the time, and uses the full width.
    wide = columns is None or columns >= 60
    indent = _INDENT if wide else "  "
    first = f"{format_timestamp(at)}  {word}" if wide else f"{format_timestamp(at)}\n{indent}{word}"
    head = wrap(plain(notification.title or "?"), columns, first=first, rest=indent)
    found = [appearance.paint(line, "" if urgency == "low" else "bold") for line in head]
    for line in notification.body.splitlines():
        found += wrap(plain(line), columns, first=indent, rest=indent)
    for command in button_commands(notification):
        found += wrap(plain(command), columns, first=f"{indent}> ", rest=f"{indent}  ")
    return found


def _remark(text: str) -> None:
    """Print on standard error, so that a pipe gets only notifications."""
    remark(text, lead=f"{format_timestamp(time.time())}  ")
