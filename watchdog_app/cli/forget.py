"""
Delete the stored runs of a program; the rest of the history stays.

examples:
  watchdog forget train.py
  watchdog forget --all

exit codes: 0 done, 1 failure, 2 usage, 3 daemon not running
"""

from __future__ import annotations

import os

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.terminal import counted
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.positional("SCRIPT", "name or path of a script or notebook", nargs="?")
    parser.flag("--all", "of every program")
    parser.json("as JSON")


def run(args: Args, out: Output) -> int:
    """Send the request to the daemon."""
    if (args.script is None) != args.all:
        raise UsageError("Name a script or notebook, or give --all.")
    program = args.script
    if program is not None and os.path.sep in program:
        program = os.path.realpath(program)
    answer = request("runs.forget", program=program)
    out.result(answer, lambda: [f"Forgotten: {counted(answer['forgotten'], 'run')}."])
    return EXIT_OK
