"""`watchdog record`: record the memory of a running task as a trace for `replay`."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.quantities import format_bytes, format_duration
from watchdog_app.base.text.terminal import counted, plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_duration

DESCRIPTION = """\
Record, ten times a second, the memory of a running task and its limits, until the task ends,
the time is over, or Ctrl-C. Needs no daemon and no root. TASK is a pid, a notebook, a script, or
a part of its name. NAME.json, in the same folder, records how the task ended. To play the
trace: watchdog replay FILE"""
EPILOG = """\
examples:
  watchdog record train.ipynb
  watchdog record 4711 --output leak.csv.gz --for 10min

exit codes: 0 recorded, 1 failure or no such task, 2 usage"""

_MAX_HZ = 50.0
_OUTCOMES = {
    "oom": "The kernel killed it.",
    "ok": "It ended; the kernel has killed nothing.",
    "running": "It still runs.",
    "unknown": "It ended. Why is not known.",
}


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.task("pid, notebook or script")
    parser.option("-o, --output FILE", "default: the task's name and time, .csv.gz")
    parser.option("--for TIME", "end after 30s, 10min", positive_duration, dest="for_s")
    parser.option("--hz N", "samples a second; 10", _parse_hz, default=10.0)
    parser.flag("--force", "write over a file that is there")


def run(args: Args, out: Output) -> int:
    """Record until the task ends, the time is over or the user stops the recording."""
    from watchdog_app.base.linux import cgroups
    from watchdog_app.core.replay import recorder, trace
    from watchdog_app.machine.sensors import open_machine

    machine = open_machine()
    try:
        found = recorder.find_target(machine, args.task, time.monotonic(), time.time())
        path = args.output or _default_path(found.task.name)
        if not args.force and os.path.exists(path):
            raise UsageError(f"{path} is there already. --force writes over it.")
        resource = found.resource
        out.lines(
            f"Recording {plain(found.task.name)} (pid {found.process.pid}) against "
            f"{plain(resource.label)}, {format_bytes(resource.limit)}. Ctrl-C ends it."
        )
        kills = recorder.KillCount(found.groups, cgroups.group_oom_kills, cgroups.host_oom_kills)
        recording = recorder.Recorder(machine, found, kills)
        began = time.monotonic()
        end = _catch_stop_signals()
        rows = recording.rows(args.hz, args.for_s, ends=end.is_set, sleep=end.wait)
        try:
            samples = trace.write(path, rows)
        except OSError as error:
            kept = "What is there already can be played. " if os.path.isfile(path) else ""
            raise WatchdogError(
                f"The trace cannot be written to {plain(path)}: {error.strerror or error}. "
                f"{kept}--output names another file."
            ) from error
        lasted = time.monotonic() - began
        outcome = recording.outcome()
        recorder.write_side(path, outcome, lasted, found, kills.first_s)
    finally:
        machine.close()
    out.lines(
        f"{counted(samples, 'sample')} over {format_duration(lasted)} "
        f"in {plain(path)}. {_OUTCOMES[outcome]}"
    )
    if not samples:
        out.lines("Nothing was recorded: it ended before the first look.")
        return EXIT_FAILURE
    out.lines(f"Play it with: watchdog replay {plain(path)}")
    return EXIT_OK


def _catch_stop_signals() -> threading.Event:
    """Return an event that SIGINT, SIGTERM or SIGHUP sets; a second signal ends the process."""
    asked = threading.Event()

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup SIGHUP stays ignored
            signal.signal(number, end)
    return asked


def _default_path(task: str) -> str:
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in plain(task)).lstrip(".-")
    return f"{safe[:80] or 'task'}-{time.strftime('%Y%m%d-%H%M%S')}.csv.gz"


def _parse_hz(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= _MAX_HZ:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0.01 to {_MAX_HZ:g}")
    return value
