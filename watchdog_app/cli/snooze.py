"""
Suppress notifications: those of one task, of one incident, or all. Saves and pauses continue, and
critical notifications still appear: a pause, the last seconds, a death. If the danger remains
when the time is over, it is shown again.

examples:
  watchdog snooze                        all notifications, for 15 minutes
  watchdog snooze train.ipynb --for 1h   those of this notebook
  watchdog snooze 19a42c51d8f-3          those of this incident (watchdog status --json)
  watchdog snooze train.ipynb --end      show them again
"""

from __future__ import annotations

import argparse
from typing import Any

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.quantities import moment
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, positive_duration
from watchdog_app.client.client import request
from watchdog_app.core.model.status import Status

_DEFAULT_S = 900.0
_MAX_S = 86400.0  # the protocol's maximum


def add_arguments(parser: Parser) -> None:
    """Add the target and the duration."""
    parser.task(
        "pid, notebook, script, path or kernel id, or an incident; absent: all notifications",
        optional=True,
    )
    parser.option(
        "--for TIME",
        "how long, such as 30m or 2h (default: 15m; a day at most)",
        _parse_duration,
        dest="for_s",
    )
    parser.flag("--end", "hold them back no longer")
    parser.json("print the answer as JSON")


def _parse_duration(text: str) -> float:
    """Parse a duration that the daemon accepts: above 0, at most a day; return seconds."""
    seconds = positive_duration(text)
    if seconds > _MAX_S:
        raise argparse.ArgumentTypeError("at most 1 d; say it again when that is over")
    return seconds


def run(args: Args, out: Output) -> int:
    """Send the request to the daemon."""
    if args.end and args.for_s is not None:
        raise UsageError("Choose one of --for and --end.")
    for_s = 0.0 if args.end else args.for_s or _DEFAULT_S
    target = _snooze_target(Status.read(request("status")), args.task)
    answer = request("snooze", for_s=for_s, **target)
    out.result(answer, lambda: [format_answer(answer)])
    return EXIT_OK


def _snooze_target(status: Status, target: str | None) -> dict[str, Any]:
    """Return the request's parameter: the incident if the target names one, else the task."""
    if target is None:
        return {}
    snoozed = status.daemon.snoozed if status.daemon is not None else ()
    incidents = {one.id for one in status.incidents} | {one.incident for one in snoozed}
    return {"incident" if target in incidents else "task": target}


def format_answer(answer: dict[str, Any]) -> str:
    """Describe the daemon's answer in a sentence."""
    if answer.get("incident") is not None:
        whose = f"of incident {plain(answer['incident'])}"
    elif answer.get("task") is not None:
        whose = f"about {plain(answer.get('name') or answer['task'])}"
    else:
        whose = "of every kind"
    until = moment(answer.get("until_unix_s"))
    if not until:
        return f"Notifications {whose} are shown again."
    return f"Notifications {whose} are suppressed until {until}, except critical ones."
