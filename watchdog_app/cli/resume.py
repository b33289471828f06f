"""
Resume a paused task. --all resumes everything that watchdog has paused. Works without a daemon:
each pause is recorded before it happens. A task that someone else has stopped, for example with
Ctrl-Z, is left alone.

examples:
  watchdog resume train.ipynb
  watchdog resume --all

exit codes: 0 it runs again, 1 failure, 2 usage,
  3 daemon not running and nothing written down
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    DaemonNotRunning,
    ProtocolError,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, remark
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request


def add_arguments(parser: Parser) -> None:
    """Add the task or --all."""
    parser.task(optional=True)
    parser.flag("--all", "everything that watchdog has paused")
    parser.json()


def run(args: Args, out: Output) -> int:
    """Resume through the daemon; if it does not answer, use its record of paused tasks."""
    if bool(args.task) == args.all:
        raise UsageError("Name one task, or write --all.")
    task = None if args.all else args.task
    try:
        result = request("task.resume", task=task, wait_s=30.0)
    except (DaemonNotRunning, ProtocolError) as error:
        # A daemon that is stopped, hangs or is overloaded does not answer either.
        result = _resume_offline(task, error)
    resumed, failures = result.get("resumed") or [], result.get("failures") or []
    out.result({"resumed": resumed, "failures": failures}, lambda: _report_lines(resumed, failures))
    return EXIT_FAILURE if failures or not (resumed or args.all) else EXIT_OK


def _resume_offline(task: str | None, error: WatchdogError) -> dict[str, Any]:
    """
    Resume the tasks that an ended daemon recorded as paused.

    Raises:
        WatchdogError: no record was found; `error` with a list of all stopped tasks.
    """
    from watchdog_app.daemon import offline

    found = offline.resume(task)
    if found is None:
        # The record may be lost, so the error names all stopped tasks.
        raise type(error)(f"{error}{offline.stopped_tasks()}") from error
    return found


def _report_lines(resumed: list[dict[str, Any]], failures: list[Any]) -> list[str]:
    lines = []
    for one in resumed:
        pid = one.get("task")
        name = plain(one.get("name") or pid or "?")
        where = f" (pid {pid})" if pid and str(pid) != name else ""
        lines.append(f"{name}{where} resumed.")
    for failure in failures:
        remark(failure, lead="")
    if not resumed and not failures:
        return ["Nothing was paused by watchdog."]
    if any(one.get("kind") in ("script", "module") for one in resumed):
        lines.append(
            "A script that reads from its terminal stops again there: type fg in that terminal."
        )
    return lines
