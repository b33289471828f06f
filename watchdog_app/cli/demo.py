"""
A real Keras training leaks until a real memory limit. watchdog warns, says how much time is
left, and saves the training at a step boundary. The kernel kills it, and the same command,
started again, resumes from the saved step. The losses are compared, bit for bit, with an
uninterrupted run. Takes one to two minutes and needs TensorFlow.

examples:
  watchdog demo                  tell the story
  watchdog demo --directory DIR  and leave its folder to look at: script, logs, rescues, journal
  watchdog demo --json           one JSON object with the figures at the end

exit codes: 0 every loss identical, 1 not, 2 usage
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.json("print the figures as JSON at the end")
    parser.option("--directory DIR", "play in this new folder, and leave it")


def run(args: Args, out: Output) -> int:
    """Run the demo. Its messages go to standard error if standard output holds JSON."""
    from watchdog_app.demo.sandbox import Sandbox
    from watchdog_app.demo.story import Story

    story = sys.stderr if args.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=story, flush=True)

    # SIGTERM must end the daemon and the two trainings, too: sys.exit runs the cleanup.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = args.directory or tempfile.mkdtemp(prefix="watchdog-demo-")
    if args.directory and os.path.exists(folder) and os.listdir(folder):
        raise UsageError(f"{folder} is not empty. Name a new folder for the demo.")
    sandbox = Sandbox(os.path.abspath(folder))
    done = False
    try:
        sandbox.prepare()
        report = Story(sandbox, say).run()
        done = True
    finally:
        sandbox.close()
        if not done and not (os.path.isdir(folder) and os.listdir(folder)):  # nothing was run
            if not args.directory:
                os.rmdir(folder)
        elif args.directory or not done:
            say(f"          left to look at: {sandbox.folder}")
        else:
            shutil.rmtree(sandbox.folder, ignore_errors=True)
    figures = asdict(report)
    out.result(figures, lambda: summary(figures))
    return EXIT_OK if report.identical else EXIT_FAILURE


def summary(report: dict[str, object]) -> list[str]:
    """Return the figures of a finished demo, one per line."""

    def seconds(key: str) -> str:
        value = report[key]
        if not isinstance(value, float):
            return "not"
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"

    size = report["rescue_bytes"]
    rescued = format_bytes(size if isinstance(size, int) else None)
    saved = f"{seconds('saved_before_death_s')} before the kill, {rescued}"
    identical = f"{'yes' if report['identical'] else 'NO'}: {report['compared']} losses compared"
    return [
        "",
        f"  warned      {seconds('warned_before_death_s')} before the kill",
        f"  saved       {saved} in {report['save_seconds']:.2f} s",
        f"  lost        {report['steps_lost']} of {report['steps']} steps",
        f"  identical   {identical} with the uninterrupted run",
        f"  took        {seconds('seconds')}",
    ]
