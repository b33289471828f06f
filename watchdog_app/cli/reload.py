"""
Make the daemon read its configuration again. If the file has a mistake, this command prints it
and the current settings stay in force.

examples:
  watchdog config check && watchdog reload

exit codes: 0 the new settings are in force, 1 the file holds a mistake,
  2 usage, 3 daemon not running
"""

from __future__ import annotations

from watchdog_app.base.errors import EXIT_OK
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args
from watchdog_app.client.client import request


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same signature
    """Send the request to the daemon."""
    request("reload")
    out.lines("The daemon has read its configuration; the new settings are in force.")
    return EXIT_OK
