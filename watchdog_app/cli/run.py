"""`watchdog run`: be the daemon, in the foreground."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

NAME = "run"
HELP = "be the daemon, in the foreground"
DESCRIPTION = """\
Be the daemon, in the foreground, until Ctrl-C, SIGTERM or watchdog stop. One runs a user.
What it does is written to standard error; SIGHUP makes it read its configuration again.
A service manager starts this; by hand, watchdog start is what you want."""
EPILOG = """\
examples:
  watchdog run
  watchdog run --verbose               every decision with its figures
  systemctl --user enable --now watchdog

exit codes: 0 ended as asked, 1 failure (another daemon of yours runs already),
  2 the configuration holds a mistake"""

FLAGS = {"-v": "verbose", "--verbose": "verbose"}  # by the words that need no parser
DEFAULTS = {"config": None, "verbose": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--config", metavar="FILE", help="read this file instead of your own")
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")


def run(args: argparse.Namespace) -> int:
    """Run until told to end."""
    from watchdog_app.daemon.app import main

    return main(args.config, args.verbose)
