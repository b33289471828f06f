"""
`watchdog watch`: notifications as lines of text, as they come.

Goes on when the daemon is restarted. What it wrote counts as delivered where
nothing else could show it: a line in a terminal that nobody looks at must not
keep a notification from the desktop.
"""

from __future__ import annotations

import sys
import time

from watchdog_app.base.errors import EXIT_OK, DaemonNotRunning, ProtocolError
from watchdog_app.base.text.terminal import Style, plain, style_of, wrap
from watchdog_app.cli.terminal import columns_of
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.status import Notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from watchdog_app.client.client import Client

NAME = "watch"
HELP = "print notifications as lines of text as they arrive"
DESCRIPTION = """\
Print notifications in a terminal, over ssh or into a log: time, urgency, what happened and what
to do. The view survives a restart of the daemon; Ctrl-C ends it. The desktop and
notify.command get every notification as well."""
EPILOG = """\
examples:
  watchdog watch
  watchdog watch --bell                 ring for critical ones
  watchdog watch --json | jq .title     one JSON object a line

Past notifications: watchdog history
Current use: watchdog status --watch

exit codes: 0 ended by Ctrl-C, 1 failure, 2 usage, 3 daemon not running at the start"""

_RETRY_S = 2.0
_COLORS = {"low": "green", "normal": "yellow", "critical": "alarm"}
_INDENT = " " * 21
_LONG = 10_000  # columns where nobody said how wide a line may be


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How to write them."""
    from watchdog_app.cli.parser import add_color, positive_integer

    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--bell", action="store_true", help="ring the terminal bell for critical ones"
    )
    parser.add_argument(
        "--count", type=positive_integer, metavar="N", help="end after N notifications"
    )
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Follow them until interrupted or counted out."""
    left = args.count
    try:
        for notification in _follow():
            _write(notification, args)
            if left is not None:
                left -= 1
                if left == 0:
                    break
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def _follow() -> Iterator[dict[str, Any]]:
    """
    Notifications, over restarts of the daemon.

    Raises:
        DaemonNotRunning: there is none at first.
    """
    from watchdog_app.client.client import Client

    client = Client.connect()
    _remark("Waiting for notifications; Ctrl-C ends this.")
    while True:
        try:
            with client:
                yield from _notifications(client)
        except (DaemonNotRunning, ProtocolError) as error:
            _remark(f"{error} Notifications continue when the daemon is back.")
        client = _again()
        _remark("The daemon is back.")


def _notifications(client: Client) -> Iterator[dict[str, Any]]:
    client.call("subscribe", topics=["notifications"])
    for message in client.notifications(None):
        notification = message.get("params")
        if message.get("method") != "notification" or not isinstance(notification, dict):
            continue
        yield notification
        # After it was written: a pipe that is closed shows nothing.
        if isinstance(notification.get("id"), str):
            client.notify(
                "notification.shown",
                id=notification["id"],
                delivered=True,
                detail="written by watchdog watch",
            )


def _again() -> Client:
    from watchdog_app.client.client import Client

    while True:
        time.sleep(_RETRY_S)
        try:
            return Client.connect()
        except (DaemonNotRunning, ProtocolError):
            continue


def _write(notification: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(notification, indent=None), flush=True)
        return
    read = Notification.read(notification)
    bell = "\a" if args.bell and read.urgency == "critical" else ""
    print("\n".join(lines(read, columns_of(), style_of(args.color))) + bell, flush=True)


def lines(notification: Notification, columns: int | None, appearance: Style) -> list[str]:
    """
    A notification as text: date, time, urgency, title; below it the rest, and what to type.

    Args:
        notification: as the daemon sent it.
        columns: of the terminal; None: nothing is folded.
        appearance: colours and symbols.
    """
    at = notification.unix_s if notification.unix_s is not None else time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    urgency = plain(notification.urgency or "normal")
    word = "" if urgency in ("normal", "low") else f"{urgency.upper()}: "
    limit = columns or _LONG
    # On a narrow terminal the text gets the whole width below the time.
    indent = _INDENT if limit >= 60 else "  "
    first = f"{stamp}  {word}" if limit >= 60 else f"{stamp}\n{indent}{word}"
    head = wrap(plain(notification.title or "?"), limit, first=first, rest=indent)
    found = [appearance.paint(line, _COLORS.get(urgency, "yellow")) for line in head]
    for line in notification.body.splitlines():
        found += wrap(plain(line), limit, first=indent, rest=indent)
    for command in commands(notification):
        found += wrap(plain(command), limit, first=f"{indent}> ", rest=f"{indent}  ")
    return found


def commands(notification: Notification) -> list[str]:
    """What the buttons do, without what the text says already and what only shows something."""
    found = []
    for button in notification.actions:
        action = ACTIONS.get(button.key)
        only_shows = action is not None and not action.method
        if button.command and button.command not in notification.body and not only_shows:
            found.append(button.command)
    return found


def _remark(text: str) -> None:
    """On standard error: a pipe gets notifications alone."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{stamp}  {plain(text)}", file=sys.stderr, flush=True)
