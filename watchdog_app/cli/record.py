"""`watchdog record`: the memory of a running task as a trace that `replay` plays."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

from watchdog_app.cli.parser import positive_duration
from watchdog_app.errors import EXIT_OK, UsageError

NAME = "record"
HELP = "record the memory of a running task as a trace"
DESCRIPTION = """\
Write down, ten times a second, what a running task uses and what it could run into, until
it ends, the time is over, or Ctrl-C. Needs no daemon and no root. TASK is a pid, a notebook
or a script, or part of the name. A file NAME.json beside the trace says how it ended.
Play the trace with: watchdog replay FILE"""
EPILOG = """\
examples:
  watchdog record train.ipynb
  watchdog record 4711 --output leak.csv.gz --for 10min

exit codes: 0 recorded, 1 failure or no such task, 2 usage"""

_MOST_HZ = 50.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("task", metavar="TASK", help="pid, notebook or script")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="default: the task's name and time, .csv.gz"
    )
    parser.add_argument(
        "--for", dest="for_s", type=positive_duration, metavar="TIME", help="end after 30s, 10min"
    )
    parser.add_argument("--hz", type=_hz, default=10.0, metavar="N", help="looks a second; 10")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def run(args: argparse.Namespace) -> int:
    """Record until the end."""
    from watchdog_app.cli.text import plain
    from watchdog_app.sensors.machine import open_machine
    from watchdog_app.traces import recorder, trace
    from watchdog_app.units import format_bytes, format_duration

    machine = open_machine()
    try:
        found = recorder.find(machine, args.task, time.monotonic(), time.time())
        path = args.output or _name(found.task.name)
        if not args.force and os.path.exists(path):
            raise UsageError(f"{path} is there already. --force writes over it.")
        ceiling = found.ceiling
        print(
            f"Recording {plain(found.task.name)} (pid {found.task.key.pid}) against "
            f"{plain(ceiling.label)}, {format_bytes(ceiling.limit)}. Ctrl-C ends it.",
            flush=True,
        )
        before = recorder.kills(machine, found)
        began = time.monotonic()
        counted = 0

        def until_interrupted() -> Iterator[recorder.Row]:
            nonlocal counted
            try:
                for row in recorder.rows(machine, found, args.hz, args.for_s):
                    counted += 1
                    yield row
            except KeyboardInterrupt:
                return

        trace.write(path, until_interrupted(), found.columns)
        lasted = time.monotonic() - began
        outcome = recorder.ending(machine, found, before)
        recorder.write_side(path, outcome, lasted, found)
    finally:
        machine.close()
    how = {"oom": "The kernel killed it.", "ok": "It ended.", "running": "It still runs."}[outcome]
    print(f"{counted} samples over {format_duration(lasted)} in {plain(path)}. {how}")
    print(f"Play it with: watchdog replay {plain(path)}")
    return EXIT_OK


def _name(task: str) -> str:
    from watchdog_app.cli.text import plain

    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in plain(task)).lstrip(".-")
    return f"{safe[:80] or 'task'}-{time.strftime('%Y%m%d-%H%M%S')}.csv.gz"


def _hz(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= _MOST_HZ:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0.01 to {_MOST_HZ:g}")
    return value
