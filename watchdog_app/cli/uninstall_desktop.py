"""`watchdog uninstall-desktop`: take away all that `install-desktop` placed."""

from __future__ import annotations

import os

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.install_desktop import open_placed
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser

DESCRIPTION = """\
Remove every file that `watchdog install-desktop` and "Start at login" placed, and the folders
made for them. A file that you have changed since stays, and is named each time until you remove
it. Configuration, journal and rescues stay. A running daemon keeps running until `watchdog
stop`."""
EPILOG = """\
examples:
  watchdog uninstall-desktop && pipx uninstall watchdog-app

exit codes: 0 nothing of it is left, 1 failure or a file that you changed is left, 2 usage"""


def add_arguments(parser: Parser) -> None:
    """No options."""


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same face
    """Remove the files."""
    from watchdog_app.install.login import LoginStart

    placed = open_placed()
    if not (placed.files or placed.enabled or placed.left):
        placed.remove()
        out.lines("Nothing was placed for this user.")
        return EXIT_OK
    before = len({*placed.files, *placed.left})
    login = LoginStart(os.environ, "watchdog", placed)
    login.undo()
    report = placed.remove()
    login.reload()
    out.lines(f"{before - len(report.kept)} files removed.")
    for path in report.kept:
        out.lines(f"Left, because it was changed since: {plain(path)}")
    if report.kept:
        out.lines("Remove what is left by hand, if you do not want to keep it.")
        return EXIT_FAILURE
    return EXIT_OK
