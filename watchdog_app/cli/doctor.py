"""
Check what makes trainings crash: the driver, the frameworks of your Python environments,
memory and its limits, disks, heat and power, notifications, and watchdog itself. Each finding
says what is wrong, how it ends a training, and the command that fixes it. Nothing is changed.

examples:
  watchdog doctor
  watchdog doctor --python ~/venvs/tf        the environment that trainings run in
  watchdog doctor --only driver --only framework --verbose
  watchdog doctor --fast                     import no framework: done in a second
  watchdog doctor --json | jq -r '.findings[] | select(.severity == "error") | .what'

groups: driver, framework, memory, storage, power, desktop, watchdog

exit codes: 0 nothing of severity error, 1 at least one error, 2 usage
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError
from watchdog_app.base.text.terminal import Style, counted, pad, plain, wrap
from watchdog_app.cli.output import Output, with_timestamp
from watchdog_app.cli.parser import Args, Parser, positive_duration
from watchdog_app.core.model.levels import Level
from watchdog_app.doctor import children
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Report, Severity
from watchdog_app.doctor.machine import Machine
from watchdog_app.doctor.run import run as run_checks

_TIMEOUT_S = 60.0
_TITLES = {
    "driver": "GPU and driver",
    "framework": "Frameworks",
    "memory": "Memory and its limits",
    "storage": "Disks and shared memory",
    "power": "Power and heat",
    "desktop": "Desktop",
    "watchdog": "watchdog itself",
}
GROUPS = tuple(_TITLES)
# Level and word of each severity.
_SEVERITY_LABELS = {
    Severity.ERROR: (Level.CRITICAL, "error"),
    Severity.WARNING: (Level.WARNING, "warning"),
    Severity.INFO: (Level.WATCH, "note"),
    Severity.OK: (Level.OK, "ok"),
}
_INDENT = 12
_MAX_COLUMNS = 100  # longer lines are hard to read


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.option(
        "--python PATH", "interpreter, environment folder or conda name; default: those found"
    )
    parser.option(
        "--only GROUP", "only this group; may be repeated", action="append", choices=GROUPS
    )
    parser.flag("--fast", "import no framework")
    parser.option(
        "--timeout TIME",
        "longest wait for one import or driver; default 1min",
        positive_duration,
        default=_TIMEOUT_S,
    )
    parser.flag("--verbose", "show also what is fine")
    parser.json("print the findings as JSON")
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Run the checks and print the findings."""
    if sys.platform != "linux":
        raise UsageError("watchdog doctor looks at Linux machines only, so far.")
    groups = [name for name in GROUPS if name in (args.only or GROUPS)]
    machine = Machine(python=args.python, fast=args.fast, timeout_s=args.timeout)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup SIGHUP stays ignored
            signal.signal(number, _exit_on_signal)
    with out.progress() as progress:
        try:
            report = run_checks(Facts(machine, report_progress=progress.update), groups)
        finally:
            children.kill_all()
    if args.json:
        out.json(as_json(report, time.time()))
    else:
        out.lines(*render(report, out.columns, out.style, args.verbose))
    return EXIT_FAILURE if report.count(Severity.ERROR) else EXIT_OK


def _exit_on_signal(number: int, _: object) -> None:
    """Exit with the signal's exit code; SystemExit lets the `finally` blocks clean up."""
    raise SystemExit(128 + number)


def as_json(report: Report, now_unix_s: float) -> dict[str, Any]:
    """Return the report in the format of docs/doctor.schema.json."""
    body = {
        "time_unix_s": now_unix_s,
        "host": {"name": os.uname().nodename},
        "seconds": round(report.seconds, 3),
        "groups": list(report.groups),
        "counts": {severity.value: report.count(severity) for severity in Severity},
        **report.facts,
        "findings": [
            {
                **asdict(finding),
                "group": finding.group,
                "severity": finding.severity.value,
                "why": finding.why or None,
                "remedy": finding.remedy or None,
            }
            for finding in report.findings
        ],
    }
    return with_timestamp(body, now_unix_s)


def render(report: Report, columns: int | None, style: Style, verbose: bool) -> list[str]:
    """
    Render the report as lines of text.

    Args:
        report: the doctor's report.
        columns: width of the terminal; None: a pipe or a file.
        style: colours and symbols.
        verbose: also show findings that are fine, and all details.
    """
    room = min(columns or _MAX_COLUMNS, _MAX_COLUMNS)
    lines = [style.paint(line, "bold") for line in wrap(_verdict(report), room)]
    fine = 0
    for group in report.groups:
        found = [finding for finding in report.findings if finding.group == group]
        shown = [finding for finding in found if verbose or finding.severity is not Severity.OK]
        fine += len(found) - len(shown)
        if not shown:
            continue
        lines += ["", style.paint(_TITLES.get(group, group), "bold")]
        for finding in shown:
            lines += _render_finding(finding, room, style, verbose)
    if fine:
        lines += ["", f"{counted(fine, 'answer')} without anything to do; --verbose shows them."]
    return lines


def _verdict(report: Report) -> str:
    """Return the first sentence."""
    kinds = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
    parts = [counted(report.count(kind), word) for kind, word in kinds if report.count(kind)]
    if report.count(Severity.ERROR):
        meaning = "Trainings fail or lose work until the errors are mended."
    elif report.count(Severity.WARNING):
        meaning = "No error; what is warned of can end a training."
    else:
        meaning = "Nothing was found that ends trainings."
    return f"watchdog doctor: {', '.join(parts) or 'nothing to mend'}. {meaning}"


def _render_finding(finding: Finding, room: int, style: Style, verbose: bool) -> list[str]:
    level, word = _SEVERITY_LABELS[finding.severity]
    blank = " " * _INDENT
    label = pad(f"{level.mark:2} {word}", _INDENT)
    first, *rest = wrap(plain(finding.what), room, first=label, rest=blank)
    lines = [style.paint(first[:2], level.color) + first[2:], *rest]
    if finding.severity is Severity.OK and not verbose:
        return lines
    if finding.why:
        lines += wrap(plain(finding.why), room, first=f"{blank}Why: ", rest=f"{blank}     ")
    if finding.remedy or finding.commands:
        remedy = plain(finding.remedy) or "Run:"
        lines += wrap(remedy, room, first=f"{blank}Do:  ", rest=f"{blank}     ")
    # Never fold a command: users copy it as it is.
    lines += [
        style.paint(f"{blank}       {plain(command)}", "bold") for command in finding.commands
    ]
    if verbose or finding.severity in (Severity.ERROR, Severity.WARNING):
        for detail in finding.details:
            folded = wrap(plain(detail), room, first=f"{blank}     | ", rest=f"{blank}     | ")
            lines += [style.paint(line, "dim") for line in folded]
    return lines
