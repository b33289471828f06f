"""
Show every Python task, the resources near their limit, and how long they last. A task is a
notebook or script with its child processes. ETA is the time to exhaustion with its 80 %
interval; - means that no exhaustion is predicted, N/A that a figure is not known.
Marks: ~ growing, ! warning, !! critical, ? unknown.

examples:
  watchdog status                      once
  watchdog status --watch              until Ctrl-C; watchdog top has keys
  watchdog status --json | jq '.tasks[] | {name, ram_bytes, eta_s}'
  watchdog status --watch --json       one JSON object a line
  watchdog status --gpu                GPUs only: clocks, PCIe, ECC, all their programs
  watchdog status --check              one line for Nagios, Icinga or a prompt

exit codes: 0 answered, 1 failure, 2 usage, 3 daemon not running
  with --check: 0 ok, 1 warning, 2 critical (or usage), 3 unknown: no daemon,
  or a reading too old to judge by
"""

from __future__ import annotations

import os
import sys
import time

from watchdog_app.base.errors import EXIT_OK, DaemonNotRunning, UsageError, WatchdogError
from watchdog_app.base.text.terminal import counted, plain, wrap
from watchdog_app.cli.output import format_timestamp, terminal_rows, type_program, with_timestamp
from watchdog_app.client.client import request
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Status

TYPE_CHECKING = False  # importing argparse and typing takes longer than this command
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import SimpleNamespace
    from typing import Any

    from watchdog_app.cli.output import Output
    from watchdog_app.cli.parser import Args, Parser


# The options as argparse would parse them, so that the dispatcher needs no argparse.
DEFAULTS: dict[str, Any] = {
    "json": False,
    "watch": False,
    "check": False,
    "all": False,
    "gpu": False,
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
    "--gpu": "gpu",
    "-g": "gpu",
}

_ANSWER_S = 3.0  # a slower daemon counts as absent, so that --watch stays responsive


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    from watchdog_app.cli.parser import positive_duration, positive_integer
    from watchdog_app.core.explain.selection import SORTS

    parser.json("print the status object as JSON")
    parser.flag("-w, --watch", "repeat until interrupted")
    parser.flag("--check", "print one line; the exit code tells how things are")
    parser.flag("-a, --all", "include small idle interpreters and distant limits")
    parser.flag("-g, --gpu", "show the GPUs only, with every figure and program")
    parser.option("--sort BY", f"one of {', '.join(SORTS)}", choices=SORTS, default="urgency")
    parser.option(
        "-i, --interval TIME",
        "with --watch: time between two readings, such as 500ms; default 1s",
        positive_duration,
    )
    parser.option("-n, --count N", "with --watch: end after so many readings", positive_integer)
    parser.color_option()


def run(args: Args | SimpleNamespace, out: Output) -> int:
    """Print the status once, or with --watch until interrupted."""
    _check_options(args)
    if args.watch:
        return _watch(args, out)
    try:
        raw = request("status")
    except WatchdogError as error:
        return _report_no_daemon(args, out, error)
    now_unix_s = time.time()
    if args.json:
        out.json(with_timestamp(raw, now_unix_s))
    elif args.check:
        line, code = check(Status.read(raw), now_unix_s)
        out.lines(line)
        return code
    else:
        status = Status.read(raw)
        out.lines(*_render(status, args, out, hints=_saving_hints(status, out.columns)))
    return EXIT_OK


def _saving_hints(status: Status, columns: int | None) -> list[str]:
    """Return the paragraph on trainings that cannot be saved, unless the user has turned it off."""
    if all(task.can_save is not False for task in status.tasks):
        return []  # imports below take longer than this command
    from watchdog_app import config
    from watchdog_app.core.explain.saving import saving_paragraph
    from watchdog_app.install.pythons import has_watchdog

    try:
        wanted = config.load(warn=lambda _: None)[0].hints.saving
    except WatchdogError:  # the daemon reports the mistake in the file
        wanted = True
    if not wanted:
        return []
    return saving_paragraph(status.tasks, columns, has_watchdog, type_program)


def _render(
    status: Status,
    args: Args | SimpleNamespace,
    out: Output,
    hints: Sequence[str] = (),
) -> list[str]:
    from watchdog_app.cli.status_text import render

    return render(
        status,
        time.time(),
        out.columns,
        out.style,
        everything=args.all,
        sort=args.sort,
        hints=hints,
        gpus_only=args.gpu,
    )


def _report_no_daemon(args: Args | SimpleNamespace, out: Output, error: WatchdogError) -> int:
    paused: list[str] = []
    guards: list[str] = []
    if isinstance(error, DaemonNotRunning):
        from watchdog_app.cli import offline_status

        paused = offline_status.paused_task_lines()
        guards = offline_status.guard_lines()
    if args.check:
        line, code = unreachable(" ".join([f"{error}.", *paused] if paused else [str(error)]))
        out.lines(line)
        return code
    if args.json:
        found = status_without_daemon(str(error), time.time())
        problems = [("pauses", *paused)] if paused else []
        problems += [("guards", each, "watchdog limit TASK SIZE") for each in guards]
        for source, message, remedy in problems:
            found["problems"].append({"source": source, "message": message, "remedy": remedy})
        out.json(found)
        if isinstance(error, DaemonNotRunning):
            return error.exit_code  # the printed object already contains the error
    if paused or guards:
        notes = [" ".join(paused)] if paused else []
        if guards:
            notes += ["Under a guard, which needs no daemon:", *(f"  {each}" for each in guards)]
        raise DaemonNotRunning("\n".join((str(error), *notes)))
    raise error


def _check_options(args: Args | SimpleNamespace) -> None:
    if args.check and (args.json or args.watch):
        raise UsageError("--check prints its one line once; leave out --json and --watch.")
    if args.gpu and (args.json or args.check):
        raise UsageError("--json and --check include the GPUs already; leave out --gpu.")
    for option in ("interval", "count"):
        if getattr(args, option) is not None and not args.watch:
            raise UsageError(f"--{option} belongs to --watch; add --watch or leave it out.")


def status_without_daemon(message: str, now_unix_s: float) -> dict[str, Any]:
    """Return a status object without a daemon: all values unknown, `problems` has the reason."""
    from watchdog_app.core.model.status import SCHEMA_VERSION, Host, Problem

    what, _, remedy = message.partition(". ")
    what = what.rstrip(".")
    found = Status(
        schema_version=SCHEMA_VERSION,
        time_unix_s=now_unix_s,
        level=Level.UNKNOWN,
        headline=what,
        host=Host(name=os.uname().nodename if hasattr(os, "uname") else None),
        problems=(Problem(source="daemon", message=f"{what}.", remedy=remedy or None),),
    )
    return with_timestamp(found.to_json(), now_unix_s)


def check(status: Status, now_unix_s: float) -> tuple[str, int]:
    """
    Return one line with performance data after `|`, and the exit code.

    Returns:
        The line and the code. 0: nothing needs action. 1: a warning, or a part of the machine
        cannot
        be read. 2: critical. 3: the reading is too old.
    """
    level, text = status.summary(now_unix_s)
    text = plain(text).replace("|", "/")
    word = level.word if level.exit_code else Level.OK.word  # the words of monitoring plugins
    return f"WATCHDOG {word} - {text} | {_performance_data(status)}", level.exit_code


def unreachable(message: str) -> tuple[str, int]:
    """Return the line and the exit code if no daemon answers."""
    first = message.split("\n", maxsplit=1)[0].replace("|", "/")
    return f"WATCHDOG {Level.UNKNOWN.word} - {first}", Level.UNKNOWN.exit_code


def _performance_data(status: Status) -> str:
    """
    Return performance data as `label=value;warn;crit;min;max`.

    Source: the Monitoring Plugins' development guidelines.
    """
    host = status.host
    found = [f"tasks={len(status.tasks)}"]
    for label, limit, free in (
        ("ram", host.memory_total_bytes, host.memory_available_bytes),
        ("swap", host.swap_total_bytes, host.swap_free_bytes),
    ):
        if limit is not None and free is not None:
            found.append(f"{label}={limit - free}B;;;0;{limit}")
    for gpu in status.gpus:
        if gpu.parent_id is not None:
            continue
        name = f"gpu{'N/A' if gpu.index is None else gpu.index}"
        if gpu.memory_used_bytes is not None and gpu.usable_bytes is not None:
            found.append(f"{name}={gpu.memory_used_bytes}B;;;0;{gpu.usable_bytes}")
        if gpu.temperature_c is not None:
            found.append(f"{name}_temperature={gpu.temperature_c:.0f}")
    known = [one.eta_s for one in status.resources if one.eta_s is not None]
    if known:
        found.append(f"eta={min(known):.0f}s")
    return " ".join(found)


def _watch(args: Args | SimpleNamespace, out: Output) -> int:
    """
    Show readings until interrupted or `count` is reached, also over restarts of the daemon.

    Returns:
        The exit code; 3 if no daemon answers at the start.
    """
    interval_s, left = args.interval or 1.0, args.count
    redraws = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    last, last_unix_s = Status(), 0.0  # 0: no reading yet
    next_mono_s = time.monotonic()
    try:
        while True:
            error: WatchdogError | None = None
            try:
                raw = with_timestamp(request("status", wait_s=_ANSWER_S), time.time())
                last, last_unix_s = Status.read(raw), time.time()
            except WatchdogError as found:
                error, raw = found, status_without_daemon(str(found), time.time())
            if args.json:
                out.json(raw, indent=None)
                if not last_unix_s and isinstance(error, DaemonNotRunning):
                    return error.exit_code  # the printed object already contains the error
            if error is not None and not last_unix_s:
                raise error
            if not args.json:
                outage = [] if error is None else _outage_lines(error, last_unix_s, out)
                if redraws:
                    _draw([*outage, *[""] * bool(outage), *_render(last, args, out)])
                else:
                    now = format_timestamp(time.time())
                    out.lines(now, *(outage or _render(last, args, out)), "")
            if left is not None:
                left -= 1
                if left == 0:
                    return EXIT_OK
            next_mono_s = max(next_mono_s + interval_s, time.monotonic())
            time.sleep(max(0.0, next_mono_s - time.monotonic()))
    except KeyboardInterrupt:
        return EXIT_OK


def _outage_lines(error: WatchdogError, since_unix_s: float, out: Output) -> list[str]:
    since = time.strftime("%H:%M:%S", time.localtime(since_unix_s))
    lines = wrap(f"Nothing new since {since}: {plain(str(error))}", out.columns, first="! ")
    lines.append("  This view continues when the daemon is back.")
    return [Level.WARNING.paint(one, out.style) for one in lines]


def _draw(lines: list[str]) -> None:
    """Draw a reading over the previous one; the last one stays on the terminal."""
    rows = terminal_rows() - 1
    if len(lines) > rows:
        lines[rows - 1 :] = [f"and {counted(len(lines) - rows + 1, 'more line')}"]
    # Do not clear the screen first, to avoid flicker. Erase each line before writing it: after a
    # full line the cursor is on its last character. Mode 2026 (synchronized output) is ignored by
    # terminals without it.
    body = "".join(f"\x1b[K{line}\n" for line in lines)
    sys.stdout.write(f"\x1b[?2026h\x1b[H{body}\x1b[J\x1b[?2026l")
    sys.stdout.flush()
