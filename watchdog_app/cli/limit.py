"""`watchdog limit`: more memory for a program under a guard, or its end; which guards there are."""

from __future__ import annotations

import os

from watchdog_app.base.errors import (
    EXIT_OK,
    DaemonNotRunning,
    TargetGone,
    TaskNotFound,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.text.quantities import pid_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from watchdog_app.guard.record import GuardRecord

_NO_LIMIT = 1 << 60

NAME = "limit"
MIXED = True  # words may follow an option
HELP = "change the limit of a program started by exec, or end it"
DESCRIPTION = """\
Change the memory limit of a program started by watchdog exec. A program that was stopped at its
limit continues once the limit is raised. Without words: list these programs. Needs no daemon."""
EPILOG = """\
examples:
  watchdog limit
  watchdog limit train.py 16G
  watchdog limit 4711 16G
  watchdog limit 4711 --go-on
  watchdog limit 4711 --end

TASK is the pid of any process in the group, or the name of the program, script or notebook.

exit codes: 0 done, 1 failure, 2 usage"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose, and how much."""
    from watchdog_app.cli.parser import size

    parser.add_argument("task", nargs="?", metavar="TASK", help="pid or name")
    parser.add_argument("size", nargs="?", type=size, metavar="SIZE", help="such as 16G")
    parser.add_argument(
        "--go-on", action="store_true", help="no limit but the machine's, at which the kernel kills"
    )
    parser.add_argument("--end", action="store_true", help="save it if it still runs, and end it")
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Tell its supervisor."""
    from watchdog_app.base.text.terminal import plain
    from watchdog_app.cli.guards_seen import every
    from watchdog_app.guard import control, process

    guards = every()
    if args.task is None:
        if args.go_on or args.end:
            raise UsageError("Say which one: watchdog limit TASK --end; watchdog limit lists them.")
        _list(guards, args.json)
        return EXIT_OK
    request = _request(args)
    guard = _find(args.task, guards)
    try:
        said = control.ask(guard.socket_path, request)
    except TargetGone:
        if guard.group is None or not os.path.isdir(guard.group):
            raise
        # Supervisor and standby were killed at one blow: another one goes on from there.
        if process.adopt(guard.folder):
            said = control.ask(guard.socket_path, request)
        else:
            said = _without_supervisor(guard, request)
    print(plain(said))
    return EXIT_OK


def _without_supervisor(guard: GuardRecord, request: dict[str, Any]) -> str:
    """Free what is held from here: no supervisor can be started any more."""
    import signal

    from watchdog_app.base.text.quantities import format_bytes
    from watchdog_app.guard import backends, cgroup

    group = guard.group or ""
    limit = request.get("limit_bytes", _NO_LIMIT)
    name = os.path.basename(group).removesuffix(".scope")
    if request.get("end") is True and cgroup.guard_of(guard.pid) == name:
        os.kill(guard.pid, signal.SIGTERM)
    backends.release_orphan(group, limit)
    guard.remove()
    if request.get("end") is True:
        return f"{guard.name} was asked to end. Its supervisor had been killed."
    where = "the machine's own limit" if limit == _NO_LIMIT else format_bytes(limit)
    return (
        f"{guard.name} continues. Its supervisor had been killed, so nothing saves it at a limit: "
        f"the kernel kills it at {where}."
    )


def _request(args: argparse.Namespace) -> dict[str, Any]:
    wanted = [args.size is not None, args.go_on, args.end]
    if sum(wanted) != 1:
        raise UsageError(
            f"Say one thing to do with {args.task}: a size such as 16G, --go-on or --end."
        )
    if args.size is not None:
        return {"limit_bytes": args.size}
    return {"go_on": True} if args.go_on else {"end": True}  # as the guard's own socket calls them


def _find(wanted: str, guards: list[GuardRecord]) -> GuardRecord:
    from watchdog_app.base.text.terminal import plain
    from watchdog_app.guard import cgroup

    by_group = {
        os.path.basename(guard.group).removesuffix(".scope"): guard
        for guard in guards
        if guard.group
    }
    pid = _pid(wanted)
    if pid is not None:
        found = by_group.get(cgroup.guard_of(pid) or "")
        if found is not None:
            return found
    name = os.path.basename(wanted)
    named = [
        guard
        for guard in guards
        if (guard.name == name if pid_in(wanted) is None else guard.pid == pid)
    ]
    if len(named) == 1:
        return named[0]
    if len(named) > 1:
        which = ", ".join(f"{plain(guard.name)} (pid {guard.pid})" for guard in named)
        raise TaskNotFound(f"{plain(wanted)} fits several: {which}. Name one by its pid.")
    known = ", ".join(f"{plain(guard.name)} (pid {guard.pid})" for guard in guards)
    raise WatchdogError(
        f"{plain(wanted)} is under no guard. "
        + (
            f"There are: {known}."
            if known
            else "There is none: watchdog exec -- COMMAND makes one."
        )
    )


def _pid(wanted: str) -> int | None:
    if pid_in(wanted) is not None:
        return pid_in(wanted)
    from watchdog_app.client.client import Client
    from watchdog_app.core.model.status import Status

    try:  # a notebook's name is known to the daemon alone
        with Client.connect() as daemon:
            tasks = Status.read(daemon.call("status")).tasks
    except (DaemonNotRunning, WatchdogError):
        return None
    found = [one.pid for one in tasks if wanted in (one.name, one.notebook, one.script)]
    return found[0] if len(found) == 1 else None


def _list(guards: list[GuardRecord], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"guards": [guard.to_json() for guard in guards]}, indent=2))
        return
    from watchdog_app.cli.guards_seen import line

    if not guards:
        print("No program runs under a guard. Start one with: watchdog exec -- COMMAND")
    for guard in guards:
        print(line(guard))
