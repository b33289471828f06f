"""
`watchdog status --watch`: redrawn in place on a terminal, blocks or JSON lines elsewhere.

When the daemon is restarted, the view says so and asks again.
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
from watchdog_app.core.model.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace
    from typing import Any

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
    left = args.count
    frames = _Frames() if not args.json and _is_terminal() else None
    try:
        if not feed.read() and feed.error is not None:
            if args.json:
                print(_json_line(feed))
                if isinstance(feed.error, DaemonNotRunning):
                    return feed.error.exit_code
            raise feed.error
        next_mono_s = time.monotonic()
        while True:
            if args.json:
                print(_json_line(feed), flush=True)
            elif frames is not None:
                frames.draw(feed, args)
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
    finally:
        feed.close()


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


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
    lines.append("  This view continues when the daemon is back.")
    return [appearance.paint(one, "yellow") for one in lines]


class _Frames:
    """Readings drawn in place of one another; the last one stays on the terminal."""

    def __init__(self) -> None:
        self._lines = 0  # of the frame that is shown
        self._columns = 0

    def draw(self, feed: Feed, args: argparse.Namespace | SimpleNamespace) -> None:
        """Replace the frame before, without clearing in between."""
        columns = columns_of() or 80
        lines = _fitted(feed, args, columns, rows_of() - 1)
        start = f"\x1b[{self._lines}F" if self._lines else ""
        if self._lines and columns != self._columns:
            start = "\x1b[H\x1b[2J"  # a narrower terminal has wrapped what is shown
        # A line is erased before it is written: the cursor of a full line stands on its last
        # character. 2026 (one frame at a time) is ignored by terminals that do not know it.
        body = "".join(f"\x1b[K{line}\n" for line in lines)
        sys.stdout.write(f"\x1b[?2026h{start}{body}\x1b[J\x1b[?2026l")
        sys.stdout.flush()
        self._lines, self._columns = len(lines), columns


def _fitted(
    feed: Feed, args: argparse.Namespace | SimpleNamespace, columns: int, rows: int
) -> list[str]:
    """The lines of a reading with as many tasks as the terminal has rows for."""
    style = style_of(args.color)
    trouble = [*_gone(feed, columns, style), ""] if feed.error is not None else []
    rows -= len(trouble)
    status = Status.read(feed.last)
    most: int | None = None
    while True:
        lines = render(
            status,
            time.time(),
            columns,
            style,
            everything=args.all,
            sort=args.sort,
            most_tasks=most,
        )
        too_many = len(lines) - rows
        if too_many <= 0 or (most is not None and most <= _FEWEST_TASKS):
            break
        most = len(status.tasks) if most is None else most
        most = max(_FEWEST_TASKS, most - max(1, too_many // 2))
    return trouble + lines[: max(1, rows)]
