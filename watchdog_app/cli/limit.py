"""`watchdog limit`: more memory for a program in an airbag, or its end; which airbags there are."""

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

    from watchdog_app.airbag.record import BagRecord

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
    """Tell its keeper."""
    from watchdog_app.airbag import starting, wishes
    from watchdog_app.base.text.terminal import plain
    from watchdog_app.cli.bags_seen import every

    bags = every()
    if args.task is None:
        if args.go_on or args.end:
            raise UsageError("Say which one: watchdog limit TASK --end; watchdog limit lists them.")
        _list(bags, args.json)
        return EXIT_OK
    wish = _wish(args)
    bag = _find(args.task, bags)
    try:
        said = wishes.ask(bag.socket_path, wish)
    except TargetGone:
        if bag.group is None or not os.path.isdir(bag.group):
            raise
        # Keeper and second were killed at one blow: another keeper goes on where that one stood.
        if starting.adopt(bag.folder):
            said = wishes.ask(bag.socket_path, wish)
        else:
            said = _without_keeper(bag, wish)
    print(plain(said))
    return EXIT_OK


def _without_keeper(bag: BagRecord, wish: dict[str, Any]) -> str:
    """Free what is held from here: no keeper can be started any more."""
    import signal

    from watchdog_app.airbag import groups
    from watchdog_app.base.text.quantities import format_bytes

    group = bag.group or ""
    limit = wish.get("limit_bytes", _NO_LIMIT)
    name = os.path.basename(group).removesuffix(".scope")
    if wish.get("end") is True and groups.bag_of(bag.pid) == name:
        os.kill(bag.pid, signal.SIGTERM)
    groups.release_orphan(group, limit)
    bag.remove()
    if wish.get("end") is True:
        return f"{bag.name} was asked to end. Its supervisor had been killed."
    where = "the machine's own limit" if limit == _NO_LIMIT else format_bytes(limit)
    return (
        f"{bag.name} continues. Its supervisor had been killed, so nothing saves it at a limit: "
        f"the kernel kills it at {where}."
    )


def _wish(args: argparse.Namespace) -> dict[str, Any]:
    wanted = [args.size is not None, args.go_on, args.end]
    if sum(wanted) != 1:
        raise UsageError(
            f"Say one thing to do with {args.task}: a size such as 16G, --go-on or --end."
        )
    if args.size is not None:
        return {"limit_bytes": args.size}
    return {"go_on": True} if args.go_on else {"end": True}  # as the guard's own socket calls them


def _find(wanted: str, bags: list[BagRecord]) -> BagRecord:
    from watchdog_app.airbag import groups
    from watchdog_app.base.text.terminal import plain

    by_group = {
        os.path.basename(bag.group).removesuffix(".scope"): bag for bag in bags if bag.group
    }
    pid = _pid(wanted)
    if pid is not None:
        found = by_group.get(groups.bag_of(pid) or "")
        if found is not None:
            return found
    name = os.path.basename(wanted)
    named = [
        bag for bag in bags if (bag.name == name if pid_in(wanted) is None else bag.pid == pid)
    ]
    if len(named) == 1:
        return named[0]
    if len(named) > 1:
        which = ", ".join(f"{plain(bag.name)} (pid {bag.pid})" for bag in named)
        raise TaskNotFound(f"{plain(wanted)} fits several: {which}. Name one by its pid.")
    known = ", ".join(f"{plain(bag.name)} (pid {bag.pid})" for bag in bags)
    raise WatchdogError(
        f"{plain(wanted)} is in no airbag. "
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


def _list(bags: list[BagRecord], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"bags": [bag.to_json() for bag in bags]}, indent=2))
        return
    from watchdog_app.cli.bags_seen import line

    if not bags:
        print("No program runs in an airbag. Start one with: watchdog exec -- COMMAND")
    for bag in bags:
        print(line(bag))
