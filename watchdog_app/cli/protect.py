"""
Turn protection off or on; without a word, say which it is. While it is off, watchdog warns of
nothing, saves nothing and pauses nothing. It still samples, writes its journal, reports deaths,
and does what you ask for. The setting survives a restart of the daemon.

examples:
  watchdog protect                 is it on?
  watchdog protect off --for 1h    off for an hour
  watchdog protect off             off until it is switched on
  watchdog protect on

For one notebook alone, write a rule: watchdog config rule --help
To be told nothing for a while, and protected all the same: watchdog snooze
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.quantities import moment
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_duration
from watchdog_app.client.client import request


def add_arguments(parser: Parser) -> None:
    """Add the state and its duration."""
    parser.add_argument(
        "state", nargs="?", choices=("on", "off"), metavar="on|off", help="absent: say which it is"
    )
    parser.option(
        "--for TIME",
        "with off: on again after this long, such as 30m or 2h",
        positive_duration,
        dest="for_s",
    )
    parser.json("print the answer as JSON")


def run(args: Args, out: Output) -> int:
    """Switch protection, or print its state."""
    if args.for_s is not None and args.state != "off":
        raise UsageError("--for goes with off: watchdog protect off --for 1h")
    if args.state is None:
        answer = (request("status").get("daemon") or {}).get("protection") or {}
    else:
        answer = request("protection.set", on=args.state == "on", for_s=args.for_s)
    out.result(answer, lambda: format_answer(answer, unchanged=args.state is None))
    return EXIT_OK


def format_answer(answer: dict[str, Any], unchanged: bool) -> list[str]:
    """Describe the daemon's answer; `unchanged`: the command only asked for the state."""
    if answer.get("on") is not False:
        return [
            "Protection is on: watchdog warns, saves and pauses as it is configured to."
            if unchanged
            else "Protection is on again."
        ]
    until = moment(answer.get("until_unix_s"))
    return [
        f"Protection is off until {until}." if until else "Protection is off.",
        "Nothing is warned of, saved or paused meanwhile; a training may die unsaved.",
        "Switch it on again: watchdog protect on",
    ]
