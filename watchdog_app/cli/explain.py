"""`watchdog explain`: what was seen and decided, in words."""

from __future__ import annotations

from watchdog_app.cli.color import look
from watchdog_app.cli.explain_text import find_task, render
from watchdog_app.cli.terminal import columns_of
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

_MOST_ENTRIES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task, if one is meant."""
    from watchdog_app.cli.parser import add_color

    parser.add_argument(
        "task", metavar="TASK", nargs="?", help="pid, notebook, script, path or kernel id"
    )
    parser.add_argument("--json", action="store_true", help="print text and incidents as JSON")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for all that there is on it, and put it into words."""
    from watchdog_app.protocol.client import Client

    with Client.connect() as daemon:
        result = daemon.call("explain", task=args.task)
        if args.json:
            from watchdog_app.cli.json_output import dumps

            print(dumps(result))
            return EXIT_OK
        task = find_task(daemon.call("status"), args.task) if args.task else None
        entries = daemon.call(
            "history",
            task=str(task["pid"]) if task and task.get("pid") else args.task,
            limit=_MOST_ENTRIES,
            kinds=["decision", "outcome", "death"],
        ).get("entries")
    lines = render(result.get("text") or "", entries or [], columns_of(), look(args.color))
    print("\n".join(lines))
    return EXIT_OK
