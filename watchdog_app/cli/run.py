"""
Run the daemon in the foreground, until Ctrl-C, SIGTERM or watchdog stop. A user has one daemon.
Its log goes to standard error; SIGHUP makes it read its configuration again. This command is
for service managers; by hand, use watchdog start.

examples:
  watchdog run
  watchdog run --verbose               every decision with its figures
  systemctl --user enable --now watchdog

exit codes: 0 ended as asked, 1 failure (another daemon of yours runs already),
  2 the configuration holds a mistake
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.cli.output import Output
    from watchdog_app.cli.parser import Args, Parser


FLAGS = {"-v": "verbose", "--verbose": "verbose"}  # options that need no argparse
DEFAULTS = {"config": None, "verbose": False}


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.option("--config FILE", "read this file instead of your own")
    parser.flag("-v, --verbose", "log more")


def run(args: Args, out: Output) -> int:  # noqa: ARG001 - every command has the same signature
    """Run the daemon until it is stopped."""
    from watchdog_app.base.own_process import load_lazily

    load_lazily("inspect", "locale")  # before the daemon's other modules are imported
    from watchdog_app.daemon.app import main

    return main(args.config, args.verbose)
