"""`watchdog status`: what runs, what it uses, how long that lasts."""

from __future__ import annotations

import sys
import time

from watchdog_app.base.errors import EXIT_OK, DaemonNotRunning, UsageError, WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace
    from typing import Any

NAME = "status"
HELP = "show every Python task, its memory, and how long that lasts"
DESCRIPTION = """\
Show every Python task, the resources near their limit, and how long they last. A task is a
notebook or script with its child processes. ETA is the time to exhaustion with its 80 %
interval; - means that no exhaustion is predicted, N/A that a figure is not known.
Marks: ~ growing, ! warning, !! critical, ? unknown."""
EPILOG = """\
examples:
  watchdog status                      once
  watchdog status --watch              until Ctrl-C; watchdog top has keys
  watchdog status --json | jq '.tasks[] | {name, ram_bytes, eta_s}'
  watchdog status --watch --json       one JSON object a line
  watchdog status --check              one line for Nagios, Icinga or a prompt

The fields of the JSON: docs/status-json.md.

exit codes: 0 answered, 1 failure, 2 usage, 3 daemon not running
  with --check: 0 ok, 1 warning, 2 critical (or usage), 3 unknown: no daemon,
  or a reading too old to judge by"""

# What argparse makes of no words and of plain flags, for the dispatcher to run without it.
DEFAULTS: dict[str, Any] = {
    "json": False,
    "watch": False,
    "check": False,
    "all": False,
    "sort": "urgency",
    "interval": None,
    "count": None,
    "color": "auto",
}
FLAGS = {
    "--json": "json",
    "--watch": "watch",
    "-w": "watch",
    "--check": "check",
    "--all": "all",
    "-a": "all",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    from watchdog_app.cli.parser import add_color, positive_duration, positive_integer
    from watchdog_app.core.explain.selection import SORTS

    parser.add_argument("--json", action="store_true", help="print the status object as JSON")
    parser.add_argument("-w", "--watch", action="store_true", help="repeat until interrupted")
    parser.add_argument(
        "--check", action="store_true", help="print one line; the exit code tells how things are"
    )
    parser.add_argument(
        "-a",
        "--all",
        action="store_true",
        help="include small idle interpreters and distant limits",
    )
    parser.add_argument(
        "--sort", choices=SORTS, metavar="BY", default="urgency", help=f"one of {', '.join(SORTS)}"
    )
    parser.add_argument(
        "-i",
        "--interval",
        type=positive_duration,
        metavar="TIME",
        help="with --watch: time between two readings, such as 500ms; default 1s",
    )
    parser.add_argument(
        "-n",
        "--count",
        type=positive_integer,
        metavar="N",
        help="with --watch: end after so many readings",
    )
    add_color(parser)


def run(args: argparse.Namespace | SimpleNamespace) -> int:
    """Ask once, or with --watch until interrupted."""
    _refuse_contradictions(args)
    if args.watch:
        from watchdog_app.cli.live_status import watch

        return watch(args)
    from watchdog_app.client.client import Client

    try:
        with Client.connect() as daemon:
            raw = daemon.call("status")
    except WatchdogError as error:
        return _without_daemon(args, error)
    now_unix_s = time.time()
    if args.json:
        from watchdog_app.cli.json_output import dumps, timed

        print(dumps(timed(raw, now_unix_s)))
        return EXIT_OK
    from watchdog_app.core.model.status import Status

    status = Status.read(raw)
    if args.check:
        from watchdog_app.cli.check import check

        line, code = check(status, now_unix_s)
        print(line)
        return code
    from watchdog_app.base.text.terminal import style_of
    from watchdog_app.cli.status_text import render
    from watchdog_app.cli.terminal import columns_of

    lines = render(
        status,
        now_unix_s,
        columns_of(),
        style_of(args.color),
        everything=args.all,
        sort=args.sort,
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return EXIT_OK


def _without_daemon(args: argparse.Namespace | SimpleNamespace, error: WatchdogError) -> int:
    more: list[str] = []
    guards: list[str] = []
    if isinstance(error, DaemonNotRunning):
        from watchdog_app.cli import guards_seen
        from watchdog_app.cli.left_paused import left_paused

        more = left_paused()
        guards = guards_seen.running()
    if args.check:
        from watchdog_app.cli.check import unreachable

        line, code = unreachable(" ".join([f"{error}.", *more] if more else [str(error)]))
        print(line)
        return code
    if args.json:
        from watchdog_app.cli.json_output import dumps, without_daemon

        found = without_daemon(str(error), time.time())
        if more:
            found["problems"].append({"source": "pauses", "message": more[0], "remedy": more[1]})
        for each in guards:
            remedy = "watchdog limit TASK SIZE"
            found["problems"].append({"source": "guards", "message": each, "remedy": remedy})
        print(dumps(found))
        if isinstance(error, DaemonNotRunning):
            return error.exit_code  # the object has said it
    if more or guards:
        told = [" ".join(more)] if more else []
        if guards:
            told += ["Under a guard, which needs no daemon:", *(f"  {each}" for each in guards)]
        raise DaemonNotRunning("\n".join((str(error), *told)))
    raise error


def _refuse_contradictions(args: argparse.Namespace | SimpleNamespace) -> None:
    if args.check and (args.json or args.watch):
        raise UsageError("--check prints its one line once; leave out --json and --watch.")
    for option in ("interval", "count"):
        if getattr(args, option) is not None and not args.watch:
            raise UsageError(f"--{option} belongs to --watch; add --watch or leave it out.")
