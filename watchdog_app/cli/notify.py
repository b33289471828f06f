"""
Send a test notification through each channel of [notify] in the configuration, or those named. Say
what each channel answered. Quiet hours do not hold it back. With [notify.ntfy] answers = true it
has a button. `watchdog history` shows that its answer has arrived.

examples:
  watchdog notify test
  watchdog notify test ntfy --json

exit codes: 0 every channel has shown it, 1 one has not, or there is none. Without names the channel
desktop, which is on by default, counts only if no other is on.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request

_TIMEOUT_S = 90.0  # a channel first sends what waits for it


def add_arguments(parser: Parser) -> None:
    """Add the verb."""
    verb = parser.subcommands(dest="verb", required=True)
    test = verb("test", "send a test notification through each channel, or those named")
    test.positional("CHANNEL", "such as ntfy; absent: all that are on", nargs="*")
    test.json("print the answers as JSON")


def run(args: Args, out: Output) -> int:
    """Ask the daemon to send it, and print the answer of each channel."""
    answer = request("notify.test", wait_s=_TIMEOUT_S, channels=args.channel)
    out.result(answer, lambda: format_answer(answer))
    worked = {each["name"]: each["delivered"] for each in answer["channels"]}
    if not args.channel and len(worked) > 1:
        worked.pop("desktop", None)
    return EXIT_OK if worked and all(worked.values()) else EXIT_FAILURE


def format_answer(answer: dict[str, Any]) -> list[str]:
    """One line for each channel."""
    lines = [
        f"{plain(each['name'])}: {'sent' if each['delivered'] else plain(each['detail'])}"
        for each in answer["channels"]
    ]
    return lines or ["No channel is turned on. See [notify] in: watchdog config"]
