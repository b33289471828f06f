"""
List the rescues on disk, newest first: notebook or script, progress, age, size, state, and
whether its training has finished. Without FOLDER or TASK: those that the daemon, its journal and
the guards of `watchdog exec` know of, and those in ./rescues; this folder's come first.

show RESCUE prints the contents of one. show PROGRAM.py [-- ARGUMENTS] compares a program with
what it left: script, arguments and code; model and data are known only when it runs. verify
[RESCUE or FOLDER ...] compares every byte with its checksum. prune FOLDER removes all but the
newest of each training, after it has verified those that stay. It never removes the newest whole
one, one being written, one of a running training, or a folder that contains anything else.

examples:
  watchdog rescues
  watchdog rescues train.ipynb
  watchdog rescues ~/experiments --json
  watchdog rescues show rescues/rescue-0000024713-000002-...
  watchdog rescues show train.py -- --fold 3
  watchdog rescues verify rescues/
  watchdog rescues prune rescues/ --keep 1 --dry-run
  watchdog rescues prune rescues/ --older-than 7d --yes

A folder that is called like a verb: ./show

exit codes: 0 done, 1 failure or a rescue is damaged, 2 usage
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from watchdog_app.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    RescueDamaged,
    RescueError,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.text.quantities import format_bytes, parse_pid
from watchdog_app.base.text.terminal import counted, plain
from watchdog_app.cli import rescues_text
from watchdog_app.cli.output import Output, remark
from watchdog_app.cli.parser import Args, Parser, duration, positive_integer
from watchdog_app.client.client import find_status
from watchdog_app.guard import record
from watchdog_app.history.past import HistorySource
from watchdog_app.rescue.checkpoint import inventory
from watchdog_app.rescue.checkpoint.inventory import Found, Search
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

MIXED = True  # words may follow an option
VERBS = ("list", "show", "verify", "prune")


_KEEP = 2
_MAX_ENTRIES = 1000
_USAGE_FORMS = (
    "[list] [FOLDER or TASK ...] [--json]",
    "show RESCUE | PROGRAM.py [-- ARGUMENTS] [--json]",
    "verify [RESCUE or FOLDER ...] [--json]",
    "prune FOLDER [--keep N] [--older-than AGE] [--dry-run] [--yes] [--json]",
)


def add_arguments(parser: Parser) -> None:
    """Add the verb, the folders and the options."""
    parser.usage = "\n       ".join(f"watchdog rescues {form}" for form in _USAGE_FORMS)
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PATH",
        help="list (default), show, verify or prune; then rescues, folders, notebooks or scripts",
    )
    parser.option(
        "--keep N",
        f"prune: complete rescues of each training that stay; default {_KEEP}, with --older-than 1",
        positive_integer,
    )
    parser.option("--older-than AGE", "prune: only older ones, such as 7d", duration)
    parser.flag("--dry-run", "prune: only say what would go")
    parser.flag("--yes", "prune: do not ask")
    parser.json()
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Run the verb given by the first word."""
    targets = list(args.words)
    verb = targets.pop(0) if targets and targets[0] in VERBS else "list"
    if verb != "prune" and (args.keep or args.older_than is not None or args.dry_run or args.yes):
        raise UsageError("--keep, --older-than, --dry-run and --yes belong to: rescues prune")
    if verb == "prune":
        return _prune_folder(targets, args, out)
    carry_out = {"show": _show_rescue, "verify": _verify_rescues}
    return carry_out.get(verb, _list_rescues)(targets, out)


def _list_rescues(targets: Sequence[str], out: Output) -> int:
    with out.progress("searching for rescues"):
        found, search, roots = _find_rescues(targets)
    found.sort(
        key=lambda rescue: (rescue.created_unix_s or 0.0, rescue.name.sequence), reverse=True
    )
    here = os.path.join(os.getcwd(), "")
    own = [each for each in found if targets or each.path.startswith(here)]
    others = [each for each in found if each not in own]
    lines = list[str]()
    for group, head in ((own, "In this folder:"), (others, "In other folders:")):
        lines += [*[""][: len(lines)], head] if own and others else []
        if group:
            lines += rescues_text.table(group, time.time(), out.columns, out.style)
    lines = lines if found else [_describe_none_found(roots)]
    out.result(
        {
            "rescues": [rescues_text.as_json(rescue) for rescue in found],
            "being_written": search.writing,
            "left_half_written": search.partial,
            "unreadable": search.unreadable,
            "cut_short": search.cut_short,
            "searched": roots,
        },
        lambda: [*lines, *rescues_text.remarks(search)],
    )
    return EXIT_OK


def _show_rescue(targets: Sequence[str], out: Output) -> int:
    if targets and targets[0].endswith(".py") and os.path.isfile(targets[0]):
        script = targets[0]
        folder = os.path.join(os.path.dirname(os.path.realpath(script)), "rescues")
        found = rescues_text.compare_program(
            script, targets[1:], [*outermost(known_rescue_folders()), folder]
        )
        out.result(found, lambda: rescues_text.comparison_lines(found["rescues"], out.columns))
        return EXIT_OK
    if len(targets) != 1:
        raise UsageError("Name one rescue or program: watchdog rescues show PATH")
    rescue = _examine_rescue(targets[0])
    if rescue.condition != "complete":
        raise WatchdogError(_describe_incomplete(rescue))
    try:
        with LoadedRescue(rescue.path) as loaded:
            meta, tensors = loaded.meta, loaded.tensors
    except RescueError as error:
        raise WatchdogError(f"{rescue.path}: {error}.") from error
    out.result(
        {"rescue": rescues_text.details_json(rescue, meta, tensors)},
        lambda: rescues_text.details(
            rescue, meta, tensors, now_unix_s=time.time(), columns=out.columns
        ),
    )
    return EXIT_OK


def _verify_rescues(targets: Sequence[str], out: Output) -> int:
    with out.progress("searching for rescues"):
        found, search, roots = _find_rescues(targets)
    if not found:
        raise WatchdogError(_describe_none_found(roots))
    results = []
    code = EXIT_OK
    for rescue in found:
        error = _verify_checksums(rescue, out)
        if error is not None and not os.path.lexists(rescue.path):
            continue  # its training removed the rescue during the check
        problem = None if error is None else str(error)
        word = "DAMAGED" if isinstance(error, RescueDamaged) else "NOT READ"
        code = EXIT_OK if code == EXIT_OK and error is None else EXIT_FAILURE
        results.append({"path": rescue.path, "whole": problem is None, "problem": problem})
        if not out.is_json:
            outcome = "whole" if problem is None else f"{word}: {problem}"
            out.lines(f"{plain(rescue.path)}: {plain(outcome)}")
    if out.is_json:
        out.json({"rescues": results, "unreadable": search.unreadable})
    elif code == EXIT_OK:
        size = inventory.total_bytes(found)
        out.lines(
            f"{counted(len(results), 'rescue')}, {format_bytes(size)}: every byte as written."
        )
    if search.unreadable:
        remark(f"not looked into: {'; '.join(search.unreadable)}")
        code = EXIT_FAILURE
    return code


def _prune_folder(targets: Sequence[str], args: Args, out: Output) -> int:
    if len(targets) != 1:
        raise UsageError("Name one folder: watchdog rescues prune FOLDER")
    if not os.path.isdir(targets[0]):
        raise WatchdogError(f"{targets[0]} is no folder. Nothing was removed.")
    keep = args.keep or (_KEEP if args.older_than is None else 1)
    search = Search()
    pruned: list[Found] = []
    remaining: list[tuple[Found, str]] = []
    for folder in inventory.find_rescue_folders(targets[0], search):
        found = inventory.rescues_in(folder)
        inventory.find_partials(folder, search)
        gone, kept = _select_to_prune(found, keep, args.older_than, out)
        pruned += gone
        remaining += kept
    paths = [rescue.path for rescue in pruned] + search.partial
    size = sum(inventory.disk_usage_bytes(path) or 0 for path in paths)
    ask = not (args.dry_run or args.yes)
    if paths and ask and (args.json or not sys.stdin or not sys.stdin.isatty()):
        raise UsageError(
            f"{counted(len(paths), 'rescue')} would be removed. Say --yes to do it, or --dry-run "
            "to see which."
        )
    if not args.json:
        word = "goes" if ask or args.dry_run else "removed"
        out.lines(*(f"stays   {plain(rescue.path)}: {plain(why)}" for rescue, why in remaining))
        out.lines(*(f"{word:<7} {plain(path)}" for path in paths))
        out.lines(*(() if paths else ["Nothing to remove."]))
    removed: list[str] = []
    problems: list[str] = []
    if paths and not args.dry_run and (not ask or _confirm_removal(len(paths), format_bytes(size))):
        for path in paths:
            try:
                if inventory.remove(path):
                    removed.append(path)
            except OSError as error:
                problems.append(f"{path} could not be removed: {error.strerror or error}")
    if args.json:
        out.json(
            {
                "dry_run": args.dry_run,
                "chosen": paths,
                "bytes": size,
                "removed": removed,
                "stay": [{"path": rescue.path, "reason": why} for rescue, why in remaining],
                "problems": problems,
            }
        )
    elif args.dry_run and paths:
        out.lines(f"{counted(len(paths), 'rescue')}, {format_bytes(size)}. Nothing was removed.")
    elif paths:
        out.lines(f"{counted(len(removed), 'rescue')} removed of {len(paths)}.")
    for problem in problems:
        remark(problem)
    return EXIT_FAILURE if problems else EXIT_OK


def _select_to_prune(
    found: Sequence[Found], keep: int, older_than_s: float | None, out: Output
) -> tuple[list[Found], list[tuple[Found, str]]]:
    """As `inventory.to_prune`, but a rescue counts as complete only after its checksums match."""
    known = {rescue.path: rescue for rescue in found}
    read: set[str] = set()
    while True:
        pruned, remaining = inventory.to_prune(
            list(known.values()), keep, older_than_s, time.time()
        )
        unread = set(known) - read - {rescue.path for rescue in pruned} if pruned else set()
        unread = {path for path in unread if known[path].condition == "complete"}
        if not unread:
            return pruned, remaining
        for path in unread:
            error = _verify_checksums(known[path], out)
            if error is not None:
                known[path] = replace(known[path], condition="damaged", problem=str(error))
        read |= unread


def _verify_checksums(rescue: Found, out: Output) -> Exception | None:
    """Compare every byte of a rescue with its checksum; return the error, or None."""
    with out.progress("reading") as progress:
        try:
            inventory.verify(
                rescue.path,
                lambda done, total: progress.update(f"reading: {100 * done // max(1, total)} %"),
            )
        except (RescueError, OSError) as error:
            return error
    return None


def _find_rescues(targets: Sequence[str]) -> tuple[list[Found], Search, list[str]]:
    """
    Return the rescues that the words name, the search's other results, and the searched folders.
    """
    search = Search()
    found: dict[str, Found] = {}
    roots: list[str] = []
    tasks: list[str] = []
    for word in targets:
        path = os.path.abspath(os.path.expanduser(word))
        if RescueName.parse(os.path.basename(path)) and os.path.lexists(path):
            found[path] = _examine_rescue(path)
        elif os.path.isdir(path):
            roots.append(path)
        else:
            tasks.append(word)
    names_by_folder = known_rescue_folders() if not targets or tasks else {}
    known = outermost(names_by_folder)
    roots = roots if targets else known
    contents = {
        root: {
            folder: inventory.rescues_in(folder)
            for folder in inventory.find_rescue_folders(root, search)
        }
        for root in dict.fromkeys((*roots, *known))
    }
    folders: set[str] = set()
    for root in roots:
        folders.update(contents[root])
        found.update((one.path, one) for rescues in contents[root].values() for one in rescues)
    for word in tasks:
        named = {
            folder
            for folder, names in names_by_folder.items()
            if any(matches(word, name) for name in names)
        }
        hits = [
            (folder, rescue)
            for root in known
            for folder, rescues in contents[root].items()
            for rescue in rescues
            if root in named or matches(word, rescue.program)
        ]
        if not hits:
            raise WatchdogError(
                f"{word} is no folder and no rescue, and no rescue of a notebook or script of that "
                "name is known here. Name the folder: watchdog rescues FOLDER"
            )
        folders.update(folder for folder, _ in hits)
        found.update((rescue.path, rescue) for _, rescue in hits)
    for folder in sorted(folders):
        inventory.find_partials(folder, search)
    return list(found.values()), search, roots


def _examine_rescue(word: str) -> Found:
    path = os.path.abspath(os.path.expanduser(word))
    name = RescueName.parse(os.path.basename(path))
    if name is None:
        if os.path.isdir(path):
            raise UsageError(
                f"{word} is a folder that is no rescue itself; the rescues in it: "
                f"watchdog rescues {word}"
            )
        raise WatchdogError(f"{word} is no rescue: a rescue is a folder called rescue-...")
    rescue = inventory.examine(path, name)
    if rescue is None:
        raise WatchdogError(f"There is no {word}.")
    return rescue


def _describe_incomplete(rescue: Found) -> str:
    what = "is damaged" if rescue.condition == "damaged" else "cannot be read"
    return f"{rescue.path} {what}: {rescue.problem}. A resume passes it over for the one before."


def _describe_none_found(roots: Sequence[str]) -> str:
    if not roots:
        return (
            "No rescue yet: daemon, journal and guards know of none, and there is no ./rescues. A "
            "training with an agent writes its first one when memory runs out, or on: watchdog "
            "checkpoint TASK. How to get an agent: watchdog help saving"
        )
    return f"No rescue in {', '.join(plain(root) for root in roots[:5])}."


def _confirm_removal(number: int, size: str) -> bool:
    try:
        answer = input(f"Remove {counted(number, 'rescue')}, {size}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def known_rescue_folders() -> dict[str, set[str | int]]:
    """
    Return the folders that the daemon, its journal and guards know, each with names of its tasks.

    Works without a daemon.
    """
    found: dict[str, set[str | int]] = {}

    def add(folder: str, *names: object) -> None:
        if os.path.isabs(folder) and os.path.isdir(folder):
            known = (one if isinstance(one, int) else str(one) for one in names if one)
            found.setdefault(folder, set()).update(known)

    add(os.path.abspath("rescues"))
    status = find_status()
    for task in status.tasks if status is not None else ():
        if task.agent is not None and task.agent.directory is not None:
            add(task.agent.directory, task.name, task.notebook, task.script, task.pid)
    for entry in _read_history():
        for key in ("evidence", "rescue", "agent"):
            part = entry.get(key)
            values = part if isinstance(part, dict) else {}
            folder = values.get("directory") or os.path.dirname(str(values.get("path") or ""))
            add(str(folder), entry.get("name"), entry.get("path"))
    for guard in (*record.read_all(), *record.read_past()):
        for rescue in guard.rescues:
            add(os.path.dirname(rescue.path), guard.name, guard.pid, rescue.pid)
    return found


def outermost(folders: Iterable[str]) -> list[str]:
    """Return the folders, without those inside of others."""
    found: list[str] = []
    for folder in sorted(folders):
        if not any(folder.startswith(os.path.join(each, "")) for each in found):
            found.append(folder)
    return found


def matches(query: str, program: str | int | None) -> bool:
    """Return whether a typed word matches a program's name, path or pid."""
    if not program or not query:
        return False
    pid = parse_pid(query)
    if pid is not None or isinstance(program, int):
        return pid == program
    if query.startswith(("./", "../")):
        query = os.path.abspath(query)
    return program == query or query.casefold() in os.path.basename(program).casefold()


def _read_history() -> list[dict[str, Any]]:
    source = HistorySource()
    for ask in (source.history, source.read_journal):
        with suppress(WatchdogError, OSError):
            return ask(limit=_MAX_ENTRIES, kinds=["outcome", "exit"]) or []
    return []  # not an error: the user can name folders
