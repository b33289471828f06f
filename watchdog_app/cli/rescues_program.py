"""`watchdog rescues show PROGRAM.py`: compare a program with its rescues, in all known folders."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from watchdog_app.base.errors import EXIT_OK, RescueError, WatchdogError
from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.base.text.terminal import plain, wrap
from watchdog_app.client.client import find_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from watchdog_app.cli.output import Output
    from watchdog_app.rescue.checkpoint.runs import SavedRun
    from watchdog_app.rescue.identity.program_key import Program

_MAX_RUNS = 5  # newest runs to show
_AT_RUN = "compared when it runs"
_MAX_ENTRIES = 1000


def show(script: str, tokens: Sequence[str], out: Output) -> int:
    """
    Compare a program with its unfinished rescues.

    Args:
        script: path as the user typed it.
        tokens: arguments for the program; empty: unknown.
        out: output of the command.

    Raises:
        WatchdogError: no unfinished rescue of the program was found.
    """
    from watchdog_app.rescue.identity import arguments
    from watchdog_app.rescue.identity.program_key import Program

    path = os.path.realpath(script)
    program = Program("script", path, arguments.parse(tokens), pooled=False)
    found = [
        _compare_run(left, program, has_arguments=bool(tokens))
        for left in _unfinished_runs(program)
    ]
    if not found:
        raise WatchdogError(
            f"No unfinished rescue of {script} is known here. Rescues in another folder: "
            "watchdog rescues FOLDER"
        )
    out.result({"program": path, "rescues": found}, lambda: _report_lines(found, out))
    return EXIT_OK


def _report_lines(found: list[dict[str, Any]], out: Output) -> list[str]:
    lines: list[str] = []
    for each in found:
        lines += [""] * bool(lines) + [plain(each["path"])]
        for name in ("saved", "script", "arguments", "code", "model", "data", "resume"):
            lines += wrap(plain(each[name]), out.columns, first=f"  {name:<11}")
    return lines


def _unfinished_runs(program: Program) -> Iterator[SavedRun]:
    """Yield the program's unfinished runs, newest first."""
    from watchdog_app.agent.runtime import relation
    from watchdog_app.rescue.checkpoint import inventory, runs
    from watchdog_app.rescue.checkpoint.inventory import Search

    path = str(program.path)
    roots = {*known_rescue_folders().folders, os.path.join(os.path.dirname(path), "rescues")}
    folders = {
        os.path.realpath(folder)
        for root in roots
        if os.path.isdir(root)
        for folder in inventory.find_rescue_folders(root, Search())
    }
    lefts = [left for folder in folders for left in runs.saved_runs(folder) if not left.finished]
    lefts = [
        left
        for left in lefts
        if left.key.get("path") == path or relation.moved_from(left, program) is not None
    ]
    yield from sorted(lefts, key=lambda left: -left.newest_ns)[:_MAX_RUNS]


def _compare_run(left: SavedRun, program: Program, *, has_arguments: bool) -> dict[str, Any]:
    """Compare one run with the program; return a text for each subject."""
    from watchdog_app.agent.runtime import relation
    from watchdog_app.rescue.checkpoint.reader import LoadedRescue
    from watchdog_app.rescue.identity import program_key

    try:
        with LoadedRescue(left.path) as loaded:
            meta = loaded.meta
            age = quantities.age(time.time() - loaded.created_unix_s)
            saved = f"step {loaded.step}, {age}"
    except (RescueError, OSError) as error:
        raise WatchdogError(f"{left.path}: {error}.") from error
    identity = meta.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    moved = relation.moved_from(left, program)
    started = program_key.describe_program(left.key) or quantities.UNKNOWN
    another = relation.other_training_reason(left, program, None)
    changes = program_key.describe_changes(left.key, program) if has_arguments else []
    if not has_arguments:
        arguments = f"started as: {started}; give yours behind -- to compare them"
    elif another is not None:
        arguments = another.text
    else:
        arguments = "; ".join(changes) or "the same"
    changed = _changed_functions(identity, str(program.path))
    life = left.verdict()
    if life.life == "alive":
        resume = f"no: it is of {life.owner_label}, which still runs"
    elif another is not None and has_arguments:
        resume = 'no: it is left alone, and a new training begins (resume="force" takes it)'
    elif changed:
        resume = (
            "refused if what has changed computes something else (comments, prints and names do "
            "not count)"
        )
    else:
        only = "" if another is None else " with the arguments of before"
        resume = f"yes{only}, where model and data are the same"
    return {
        "path": left.path,
        "saved": saved,
        "script": _describe_script(identity, str(program.path), moved),
        "arguments": arguments,
        "code": f"changed: {', '.join(changed)}" if changed else "the same",
        "model": _AT_RUN,
        "data": _AT_RUN,
        "resume": resume,
    }


def _describe_script(identity: Mapping[str, Any], path: str, moved: str | None) -> str:
    from watchdog_app.agent.identity import code
    from watchdog_app.rescue.identity.compare import changed_statements, format_lines

    where = "the same" if moved is None else f"moved here from {moved} together with its rescues"
    now = code.statements(path)
    texts = [text for text, _, _ in now]
    saved = identity.get("statements")
    if not saved or not texts:
        return f"{where}; its text cannot be compared"
    if saved == texts:
        return where
    new = [now[place][1:] for place in changed_statements(saved, texts)]
    shown = format_lines(new) if new else ""
    word = "line" if shown.isdigit() else "lines"
    return f"{where}; edited since" + (f": {word} {shown}" if new else "")


def _changed_functions(identity: Mapping[str, Any], path: str) -> list[str]:
    """Return functions that the training used and whose code is no longer in their file."""
    from watchdog_app.agent.identity import code

    folder = os.path.dirname(path)
    known: dict[str, set[str]] = {}
    found: dict[str, None] = {}
    functions = identity.get("code")
    for entry in functions if isinstance(functions, list) else ():
        for name, _, file, text in entry.get("functions", ()):
            if not text:
                continue  # code of a notebook, or without source text
            if file not in known:
                known[file] = code.function_hashes(os.path.join(folder, file))
            if text not in known[file]:
                found[f"{name} ({file})"] = None
    return list(found)


class RescueFolders:
    """Folders of rescues, with the tasks that each folder belongs to."""

    def __init__(self) -> None:
        self._folders: dict[str, set[str | int]] = {}

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders without duplicates and without subfolders of other folders."""
        found: list[str] = []
        for folder in sorted(self._folders):
            if not any(folder.startswith(os.path.join(each, "")) for each in found):
                found.append(folder)
        return tuple(found)

    def add(self, folder: str, *names: object) -> None:
        """Add a folder and the names of its task; ignore a folder that does not exist."""
        if os.path.isabs(folder) and os.path.isdir(folder):
            known = (one if isinstance(one, int) else str(one) for one in names if one)
            self._folders.setdefault(folder, set()).update(known)

    def folders_of_task(self, query: str) -> list[str]:
        """Return the folders whose task matches a name, path or pid."""
        return [
            folder
            for folder, words in self._folders.items()
            if any(self.matches(query, one) for one in words)
        ]

    @staticmethod
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


def known_rescue_folders() -> RescueFolders:
    """Return the folders that the daemon, its journal and guards know; works without a daemon."""
    from watchdog_app.guard import record

    places = RescueFolders()
    places.add(os.path.abspath("rescues"))
    status = find_status()
    entries = _read_history()
    for task in status.tasks if status is not None else ():
        if task.agent is not None and task.agent.directory is not None:
            places.add(task.agent.directory, task.name, task.notebook, task.script, task.pid)
    for entry in entries:
        for key in ("evidence", "rescue", "agent"):
            part = entry.get(key)
            found = part if isinstance(part, dict) else {}
            folder = found.get("directory") or os.path.dirname(str(found.get("path") or ""))
            places.add(str(folder), entry.get("name"), entry.get("path"))
    for guard in (*record.read_all(), *record.read_past()):
        for rescue in guard.rescues:
            places.add(os.path.dirname(rescue.path), guard.name, guard.pid, rescue.pid)
    return places


def _read_history() -> list[dict[str, Any]]:
    from watchdog_app.history.past import HistorySource

    source = HistorySource()
    for ask in (source.history, source.read_journal):
        with suppress(WatchdogError, OSError):
            return ask(limit=_MAX_ENTRIES, kinds=["outcome", "exit"]) or []
    return []  # not an error: the user can name folders
