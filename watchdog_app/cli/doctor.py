"""`watchdog doctor`: why trainings on this machine crash, before they do."""

from __future__ import annotations

import os
import signal
import sys
import time

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from watchdog_app.doctor.finding import Report

NAME = "doctor"
HELP = "find what would make GPU trainings crash, and how to fix it"
DESCRIPTION = """\
Check what makes trainings crash: the driver, the frameworks of your Python environments,
memory and its limits, disks, heat and power, notifications, and watchdog itself. Each finding
says what is wrong, how it ends a training, and the command that fixes it. Nothing is changed."""
EPILOG = """\
examples:
  watchdog doctor
  watchdog doctor --python ~/venvs/tf        the environment that trainings run in
  watchdog doctor --only driver --only framework --verbose
  watchdog doctor --fast                     import no framework: done in a second
  watchdog doctor --json | jq -r '.findings[] | select(.severity == "error") | .what'

groups: driver, framework, memory, storage, power, desktop, watchdog
What each looks at: docs/doctor.md

exit codes: 0 nothing of severity error, 1 at least one error, 2 usage"""

GROUPS = ("driver", "framework", "memory", "storage", "power", "desktop", "watchdog")
_TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    from watchdog_app.cli.parser import add_color, positive_duration

    parser.add_argument(
        "--python",
        metavar="PATH",
        help="interpreter, environment folder or conda name; default: those found",
    )
    for option, text in (("--only", "only this group; may be repeated"),
                         ("--skip", "leave a group out; may be repeated")):  # fmt: skip
        parser.add_argument(option, action="append", choices=GROUPS, metavar="GROUP", help=text)
    parser.add_argument("--fast", action="store_true", help="import no framework")
    parser.add_argument(
        "--timeout",
        type=positive_duration,
        default=_TIMEOUT_S,
        metavar="TIME",
        help="longest wait for one import or driver; default 1min",
    )
    parser.add_argument("--verbose", action="store_true", help="show also what is fine")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Look, and say what was found."""
    if sys.platform != "linux":
        raise UsageError("watchdog doctor looks at Linux machines only, so far.")
    groups = [name for name in GROUPS if name in (args.only or GROUPS)]
    groups = [name for name in groups if name not in (args.skip or ())]
    if not groups:
        raise UsageError("--skip leaves no group to look at.")
    from watchdog_app.doctor import children
    from watchdog_app.doctor.facts import Facts
    from watchdog_app.doctor.finding import Severity
    from watchdog_app.doctor.machine import Machine
    from watchdog_app.doctor.run import run as look_at

    machine = Machine(python=args.python, fast=args.fast, timeout_s=args.timeout)
    progress = _Progress(wanted=not args.json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, _on_end)
    try:
        report = look_at(Facts(machine, tell=progress.tell), groups)
    finally:
        children.end_all()
        progress.clear()
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(as_json(report, time.time())))
    else:
        from watchdog_app.base.text.terminal import style_of
        from watchdog_app.cli.doctor_text import render
        from watchdog_app.cli.terminal import columns_of

        print("\n".join(render(report, columns_of(), style_of(args.color), args.verbose)))
    code = EXIT_FAILURE if report.count(Severity.ERROR) else EXIT_OK
    sys.stdout.flush()
    return code


def _on_end(number: int, _: object) -> None:
    """End as the signal asks, by way of what has to be left in order."""
    raise SystemExit(128 + number)


def as_json(report: Report, now_unix_s: float) -> dict[str, Any]:
    """The report as docs/doctor.schema.json describes it."""
    from watchdog_app.cli.json_output import timed
    from watchdog_app.doctor.finding import Severity

    body = {
        "schema_version": 1,
        "time_unix_s": now_unix_s,
        "host": {"name": os.uname().nodename},
        "seconds": round(report.seconds, 3),
        "groups": list(report.groups),
        "counts": {severity.value: report.count(severity) for severity in Severity},
        **report.facts,
        "findings": [
            {
                "id": one.id,
                "group": one.group,
                "severity": one.severity.value,
                "checked": one.checked,
                "what": one.what,
                "why": one.why or None,
                "remedy": one.remedy or None,
                "commands": list(one.commands),
                "details": list(one.details),
            }
            for one in report.findings
        ],
    }
    return timed(body, now_unix_s)


class _Progress:
    """One line on the terminal that says what is waited for."""

    def __init__(self, wanted: bool) -> None:
        self._shown = False
        self._wanted = wanted and sys.stderr is not None and sys.stderr.isatty()
        if os.environ.get("TERM", "") == "dumb":
            self._wanted = False

    def tell(self, what: str) -> None:
        """Replace the line. Called from several threads: one write each."""
        if self._wanted:
            from watchdog_app.base.text.terminal import plain, shorten
            from watchdog_app.cli.terminal import columns_of

            room = (columns_of(sys.stderr) or 80) - 1
            sys.stderr.write(f"\r\x1b[K{shorten(plain(what) + ' ...', room)}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away, and say nothing more: a thread may be left behind."""
        self._wanted = False
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
