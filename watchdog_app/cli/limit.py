"""
Change the memory limit of a program started by watchdog exec. A program that was stopped at its
limit continues once the limit is raised. Without words: list these programs. Needs no daemon.

examples:
  watchdog limit
  watchdog limit train.py 16G
  watchdog limit 4711 16G
  watchdog limit 4711 --go-on
  watchdog limit 4711 --end

TASK is the pid of any process in the group, or the name of the program, script or notebook.

exit codes: 0 done, 1 failure, 2 usage
"""

from __future__ import annotations

import os
import time
from typing import Any

from watchdog_app.base.errors import EXIT_OK, TargetGone, TaskNotFound, UsageError, WatchdogError
from watchdog_app.base.text.quantities import format_duration, parse_pid
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli import offline_status
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, size
from watchdog_app.client.client import find_status
from watchdog_app.guard import cgroup, control, messages, process, record
from watchdog_app.guard.record import GuardRecord

MIXED = True  # words may follow an option


_NO_GUARD = "There is none: watchdog exec -- COMMAND makes one."


def add_arguments(parser: Parser) -> None:
    """Add the task, the size and the options."""
    parser.task("pid or name", optional=True)
    parser.positional("SIZE", "such as 16G", nargs="?", type=size)
    parser.flag("--go-on", "no limit but the machine's, at which the kernel kills")
    parser.flag("--end", "save it if it still runs, and end it")
    parser.json("the list as JSON")


def run(args: Args, out: Output) -> int:
    """Send the change to the guard's supervisor, or list the guards."""
    guards = offline_status.running_guards()
    if args.task is None:
        if args.go_on or args.end:
            raise UsageError("Say which one: watchdog limit TASK --end; watchdog limit lists them.")
        out.result({"guards": [guard.to_json() for guard in guards]}, lambda: _list_lines(guards))
        return EXIT_OK
    request = _build_request(args)
    guard = _find_guard(args.task, guards)
    try:
        reply = control.send_request(guard.socket_path, request)
    except TargetGone:
        if guard.group is None or not os.path.isdir(guard.group):
            raise
        # The supervisor and its standby were both killed. Start another one for the group.
        process.adopt_orphans()
        reply = control.send_request(guard.socket_path, request)
    out.lines(plain(reply))
    return EXIT_OK


def _build_request(args: Args) -> dict[str, Any]:
    wanted = [args.size is not None, args.go_on, args.end]
    if sum(wanted) != 1:
        raise UsageError(
            f"Say one thing to do with {args.task}: a size such as 16G, --go-on or --end."
        )
    if args.size is not None:
        return {"limit_bytes": args.size}
    return {"unlimited": True} if args.go_on else {"end": True}  # the verbs of the guard's socket


def _find_guard(target: str, guards: list[GuardRecord]) -> GuardRecord:
    by_group = {
        os.path.basename(guard.group).removesuffix(".scope"): guard
        for guard in guards
        if guard.group
    }
    pid = _find_pid(target)
    if pid is not None:
        found = by_group.get(cgroup.guard_of_process(pid) or "")
        if found is not None:
            return found
    name = os.path.basename(target)
    named = [
        guard
        for guard in guards
        if (guard.name == name if parse_pid(target) is None else guard.pid == pid)
    ]
    if len(named) == 1:
        return named[0]
    if named:
        raise TaskNotFound(
            f"{plain(target)} fits several: {_format_names(named)}. Name one by its pid."
        )
    runs = pid is not None and os.path.exists(f"/proc/{pid}")
    ended = None if runs else _describe_ended(target)
    if ended is not None:
        raise WatchdogError(ended)
    there = f"There are: {_format_names(guards)}." if guards else _NO_GUARD
    raise WatchdogError(f"{plain(target)} is under no guard. {there}")


def _describe_ended(target: str) -> str | None:
    """How the newest past guard of this name or pid ended; None: there is none."""
    name, pid = os.path.basename(target), parse_pid(target)
    for guard in record.read_past():
        if guard.pid == pid if pid is not None else guard.name == name:
            ago = format_duration(max(0.0, time.time() - (guard.ended_unix_s or 0.0)))
            return messages.describe_ended(guard, ago)
    return None


def _format_names(guards: list[GuardRecord]) -> str:
    return ", ".join(f"{plain(guard.name)} (pid {guard.pid})" for guard in guards)


def _find_pid(target: str) -> int | None:
    if parse_pid(target) is not None:
        return parse_pid(target)
    status = find_status()  # only the daemon knows the names of notebooks
    tasks = () if status is None else status.tasks
    found = [task.pid for task in tasks if target in (task.name, task.notebook, task.script)]
    return found[0] if len(found) == 1 else None


def _list_lines(guards: list[GuardRecord]) -> list[str]:
    nothing = "No program runs under a guard. Start one with: watchdog exec -- COMMAND"
    return [*map(offline_status.format_guard, guards)] or [nothing]
