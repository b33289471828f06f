"""
`watchdog status --watch`: a live view on a terminal, plain blocks or JSON lines elsewhere.

Goes on when the daemon is restarted: says that it is gone, and asks again.
"""

from __future__ import annotations

import os
import sys
import time

from watchdog_app.base.errors import EXIT_OK, DaemonNotRunning, WatchdogError
from watchdog_app.base.text.terminal import Style, plain, style_of, wrap
from watchdog_app.cli.json_output import dumps, timed, without_daemon
from watchdog_app.cli.status_text import render
from watchdog_app.cli.terminal import columns_of, rows_of
from watchdog_app.client.client import Client
from watchdog_app.core.explain.selection import SORTS
from watchdog_app.core.model.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace
    from typing import Any

    from watchdog_app.cli.screen import Screen

_ANSWER_S = 3.0  # a daemon that takes longer is shown as gone; the view stays alive
_FEWEST_TASKS = 3  # rows that are kept on the lowest terminal


class Feed:
    """Readings from the daemon, over its restarts."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self.last: dict[str, Any] | None = None
        self.error: WatchdogError | None = None  # why there is no fresh reading
        self.gone_unix_s: float | None = None

    def read(self) -> bool:
        """Ask once; False, with `error` set, without an answer."""
        try:
            if self._client is None:
                self._client = Client.connect(timeout_s=_ANSWER_S)
            self.last = self._client.call("status")
        except WatchdogError as error:
            self.close()
            self.error = error
            self.gone_unix_s = self.gone_unix_s or time.time()
            return False
        self.error = self.gone_unix_s = None
        return True

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


def watch(args: argparse.Namespace | SimpleNamespace) -> int:
    """Show readings until interrupted or counted out; 3 when there was no daemon to begin with."""
    feed = Feed()
    interval_s = args.interval or 1.0
    try:
        if not feed.read() and feed.error is not None:
            if args.json:
                print(_json_line(feed))
                if isinstance(feed.error, DaemonNotRunning):
                    return feed.error.exit_code
            raise feed.error
        if args.json or not _is_terminal():
            return _stream(feed, args, interval_s)
        return _View(feed, args, interval_s).run()
    finally:
        feed.close()


def _is_terminal() -> bool:
    if sys.platform == "win32":  # neither signals nor keys can be waited for as elsewhere
        return False
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _stream(feed: Feed, args: argparse.Namespace | SimpleNamespace, interval_s: float) -> int:
    """One block or one line a reading, for pipes, files and dumb terminals."""
    left = args.count
    next_mono_s = time.monotonic()
    try:
        while True:
            if args.json:
                print(_json_line(feed), flush=True)
            else:
                print("\n".join(_block(feed, args)), end="\n\n", flush=True)
            if left is not None:
                left -= 1
                if left == 0:
                    return EXIT_OK
            next_mono_s = max(next_mono_s + interval_s, time.monotonic())
            time.sleep(max(0.0, next_mono_s - time.monotonic()))
            feed.read()
    except KeyboardInterrupt:
        return EXIT_OK


def _json_line(feed: Feed) -> str:
    now_unix_s = time.time()
    if feed.error is not None or feed.last is None:
        return dumps(without_daemon(str(feed.error), now_unix_s), indent=None)
    return dumps(timed(feed.last, now_unix_s), indent=None)


def _block(feed: Feed, args: argparse.Namespace | SimpleNamespace) -> list[str]:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    appearance = style_of(args.color)
    if feed.error is not None or feed.last is None:
        return [stamp, *_gone(feed, columns_of(), appearance)]
    return [
        stamp,
        *render(
            Status.read(feed.last),
            time.time(),
            columns_of(),
            appearance,
            everything=args.all,
            sort=args.sort,
        ),
    ]


def _gone(feed: Feed, columns: int | None, appearance: Style) -> list[str]:
    since = time.strftime("%H:%M:%S", time.localtime(feed.gone_unix_s))
    text = f"Nothing new since {since}: {plain(str(feed.error))}"
    lines = wrap(text, columns or 10_000, first="! ")
    lines.append("  This view goes on when it is back.")
    return [appearance.paint(one, "yellow") for one in lines]


class _View:
    """The live view's state: what is shown and how."""

    def __init__(
        self, feed: Feed, args: argparse.Namespace | SimpleNamespace, interval_s: float
    ) -> None:
        self._feed = feed
        self._args = args
        self._interval_s = interval_s
        self._style = style_of(args.color)

    def run(self) -> int:
        from watchdog_app.cli.screen import Screen

        left = self._args.count
        with Screen() as screen:
            next_mono_s = time.monotonic()
            while True:
                screen.draw(self._frame())
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
                next_mono_s = max(next_mono_s + self._interval_s, time.monotonic())
                if not self._wait(screen, next_mono_s):
                    break
                self._feed.read()
        # The last reading stays in the scrollback; the keys that no longer work do not.
        print("\n".join(self._frame()[:-1]).rstrip("\n"))
        return EXIT_OK

    def _wait(self, screen: Screen, until_mono_s: float) -> bool:
        """Answer keys and changes of size until the next reading; False to end."""
        while (left_s := until_mono_s - time.monotonic()) > 0:
            happened = screen.wait(left_s)
            if happened == "quit":
                return False
            if happened == "a":
                self._args.all = not self._args.all
            elif happened == "s":
                self._args.sort = SORTS[(SORTS.index(self._args.sort) + 1) % len(SORTS)]
            if happened:
                screen.draw(self._frame())
        return True

    def _frame(self) -> list[str]:
        """Lines that fill no more than the terminal; the last one says which keys there are."""
        feed, args = self._feed, self._args
        columns, rows = columns_of() or 80, rows_of()
        trouble = [*_gone(feed, columns, self._style), ""] if feed.error is not None else []
        room = rows - len(trouble) - 2
        status = Status.read(feed.last)
        most: int | None = None
        while True:
            lines = render(
                status,
                time.time(),
                columns,
                self._style,
                everything=args.all,
                sort=args.sort,
                most_tasks=most,
            )
            too_many = len(lines) - room
            if too_many <= 0 or (most is not None and most <= _FEWEST_TASKS):
                break
            most = len(status.tasks) if most is None else most
            most = max(_FEWEST_TASKS, most - max(1, too_many // 2))
        dot = self._style.dot
        keys = f"every {self._interval_s:g} s, by {args.sort}{dot}q quit{dot}s sort{dot}"
        keys += f"a {'fewer' if args.all else 'all'}"
        footer = self._style.paint(keys[:columns], "dim")
        lines = lines[: max(1, room)]
        while lines and not lines[-1]:
            lines.pop()
        return [*trouble, *lines, "", footer]
