"""`watchdog explain`: what was seen and decided, in words."""

from __future__ import annotations

from watchdog_app.cli.text import plain_block
from watchdog_app.errors import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

NAME = "explain"
HELP = "say in words what was seen and decided"
DESCRIPTION = """\
Say in words what watchdog sees, what it foresees and why, what it has decided and what came
of it: for the machine, or for one task."""
EPILOG = """\
examples:
  watchdog explain
  watchdog explain train.ipynb

exit codes: 0 answered, 1 failure, 2 usage, 3 daemon not running"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task, if one is meant."""
    parser.add_argument(
        "task", metavar="TASK", nargs="?", help="pid, notebook, script, path or kernel id"
    )
    parser.add_argument("--json", action="store_true", help="print text and incidents as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    from watchdog_app.protocol.client import Client

    with Client.connect() as daemon:
        result = daemon.call("explain", task=args.task)
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(result))
        return EXIT_OK
    from watchdog_app.cli.terminal import columns_of
    from watchdog_app.cli.text import wrap

    columns = columns_of()
    for line in plain_block(result.get("text") or "Nothing to say.").split("\n"):
        blanks = " " * (len(line) - len(line.lstrip()))
        for part in wrap(line, columns or 10_000, first=blanks):
            print(part.rstrip())
    return EXIT_OK
