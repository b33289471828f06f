"""`watchdog history`: what happened, also when the daemon is gone."""

from __future__ import annotations

import argparse
import time

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.terminal import style_of
from watchdog_app.cli.terminal import columns_of

NAME = "history"
HELP = "list past incidents, decisions and deaths"
DESCRIPTION = """\
List what happened, newest first: incidents, decisions with their outcomes, deaths with their
causes, starts and stops of the daemon. A series of saves of one training is one entry. Times
are local. Works without a daemon, from the journal."""
EPILOG = """\
examples:
  watchdog history --since 2h
  watchdog history --task train.ipynb --kind death
  watchdog history --since 2026-11-21 --until '2026-11-21 18:00' --json

exit codes: 0 answered, 1 failure, 2 usage, 3 daemon not running and no journal"""

KINDS = ("incident", "decision", "outcome", "death", "restart", "daemon")

_LIMIT = 50
_FORMS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_CLOCKS = ("%H:%M:%S", "%H:%M")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    from watchdog_app.cli.parser import add_color, positive_integer

    parser.add_argument(
        "--since", type=moment, metavar="WHEN", help="2h, 3d, 14:30 or '2026-11-21 14:30'"
    )
    parser.add_argument("--until", type=moment, metavar="WHEN", help="as --since")
    parser.add_argument("--task", metavar="TASK", help="pid, or part of a name or path")
    parser.add_argument(
        "--kind",
        action="append",
        choices=KINDS,
        metavar="KIND",
        help=f"only these; may be repeated: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--limit",
        type=positive_integer,
        default=_LIMIT,
        metavar="N",
        help=f"most entries, the newest; default {_LIMIT}",
    )
    parser.add_argument("--json", action="store_true", help="print the entries as JSON")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the daemon, or read the journal it left."""
    if args.since is not None and args.until is not None and args.since > args.until:
        raise UsageError("--since is later than --until; nothing can lie between.")
    from watchdog_app.history.past import Source

    wanted = {
        "since_unix_s": args.since,
        "until_unix_s": args.until,
        "task": args.task,
        "limit": args.limit,
        "kinds": args.kind or list(KINDS),
    }
    source = Source()
    found = source.history(**wanted)
    entries = found or []
    if source.missing is not None:
        from watchdog_app.cli import guards_seen

        entries = guards_seen.entries(entries, wanted)
        if found is None and not entries:
            raise source.missing
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps({"schema_version": 1, "entries": entries}))
        return EXIT_OK
    from watchdog_app.cli.history_text import render

    print("\n".join(render(entries, columns_of(), style_of(args.color))))
    if len(entries) == args.limit:
        print(f"Only the newest {args.limit}; more with --limit.")
    return EXIT_OK


def moment(text: str) -> float:
    """Seconds of the epoch from a span before now, a clock time of today, or a date."""
    from watchdog_app.base.text.quantities import parse_duration

    now_unix_s = time.time()
    try:
        return now_unix_s - parse_duration(text)
    except ValueError:
        pass
    for form in _FORMS:
        try:
            return time.mktime(time.strptime(text, form))
        except (ValueError, OverflowError):
            continue
    today = time.strftime("%Y-%m-%d ", time.localtime(now_unix_s))
    for form in _CLOCKS:
        try:
            return time.mktime(time.strptime(today + text, f"%Y-%m-%d {form}"))
        except (ValueError, OverflowError):
            continue
    raise argparse.ArgumentTypeError(
        f"{text!r} is no time; write a span such as 2h, a clock time such as 14:30, "
        "or a date such as 2026-11-21"
    )
