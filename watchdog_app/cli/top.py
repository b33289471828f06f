"""
Show a live view: every task with its trend and time to exhaustion, every limit as a bar with
its forecast, and what is wrong. Enter plots the last 15 minutes of a task and its forecast.
s saves, p pauses and r resumes, each after a question; e explains. Works over ssh, from 80
columns, in 16 colours, and in ASCII. Without a daemon it says how to start one and waits.

examples:
  watchdog top
  watchdog top --task 4711
  ssh workstation -t watchdog top

In a script: watchdog status --json

exit codes: 0 ended by q or Ctrl-C, 1 failure, 2 usage or no terminal
"""

from __future__ import annotations

import sys

from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_integer


def add_arguments(parser: Parser) -> None:
    """Add the task to choose, and the option of the tray."""
    parser.option("--task PID", "choose this task and open its plot", positive_integer)
    parser.flag("--window", "be the one live view of this desktop, which the tray brings forward")


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same signature
    """Show the live view until the user quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "watchdog top draws on a terminal, and this is none. In a script or a pipe: "
            "watchdog status --watch, or --json"
        )
    from watchdog_app.base import paths

    paths.add_vendored()
    try:
        from watchdog_app.top.app import TopApp
    except ImportError as error:
        raise WatchdogError(
            f"watchdog top needs the library textual, which cannot be loaded here: {error}. "
            "Install it with: pip install 'textual>=0.86'; or use: watchdog status --watch"
        ) from error
    if not sys.stderr.isatty():
        # Textual draws on standard error. If that is a file, draw on standard output instead.
        sys.__stderr__ = sys.__stdout__  # type: ignore[misc]
    from watchdog_app.top.glyphs import replace_missing_glyphs

    if sys.__stderr__ is not None:
        replace_missing_glyphs(sys.__stderr__)
    app = TopApp(args.task, in_window=args.window)
    app.run()
    return app.return_code or EXIT_OK
