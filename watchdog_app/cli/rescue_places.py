"""Folders of rescues: of the daemon, its journal, guards and the current folder."""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import parse_pid
from watchdog_app.client.client import find_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_MAX_ENTRIES = 1000


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
