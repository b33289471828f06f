"""
Ask the agent in a training to save a complete rescue at its next step. The training continues
afterwards.

examples:
  watchdog checkpoint train.ipynb --wait
  watchdog checkpoint --all --wait --timeout 2min      before a shutdown

The training needs the agent: callbacks=[Rescue("rescues/")], or watchdog agent --help.

exit codes: 0 saved (without --wait: asked), 1 one could not be saved, 2 usage,
  3 daemon not running
"""

from __future__ import annotations

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_duration
from watchdog_app.client.client import request
from watchdog_app.core.explain.agent_lines import save_line

_TIMEOUT_S = 300.0
_ANSWER_S = 10.0  # longer than the daemon's own timeout, so that the daemon's reason arrives


def add_arguments(parser: Parser) -> None:
    """Add the task or --all, and the options for waiting."""
    parser.task(optional=True)
    parser.flag("--all", "every training that has an agent")
    parser.flag("--wait", "until it is saved, or cannot be")
    parser.option(
        "--timeout TIME",
        "with --wait: give up after this time, such as 90s; default 5min",
        positive_duration,
    )
    parser.json()


def run(args: Args, out: Output) -> int:
    """Send the request; with --wait show the progress."""
    if bool(args.task) == args.all:
        raise UsageError("Name one task, or write --all.")
    if args.timeout is not None and not args.wait:
        raise UsageError("--timeout belongs to --wait; add --wait or leave it out.")
    timeout_s = args.timeout or _TIMEOUT_S
    with out.progress("saving at the next step" if args.wait else ""):
        result = request(
            "task.checkpoint",
            task=None if args.all else args.task,
            wait=args.wait,
            timeout_s=timeout_s if args.wait else None,
            wait_s=timeout_s + _ANSWER_S,
        )
    requests = result.get("requests") or []
    nothing = "No training with an agent is running; there is nothing to save."
    out.result(result, lambda: [*map(save_line, requests)] or [nothing])
    good = ("done",) if args.wait else ("done", "requested")
    failed = [one for one in requests if one.get("status") not in good]
    return EXIT_FAILURE if failed else EXIT_OK
