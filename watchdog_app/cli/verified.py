"""What was found when a rescue was last read in full: kept in the state folder."""

from __future__ import annotations

import json
import os
import time

from watchdog_app.base import paths
from watchdog_app.base.durable import make_folders, write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 5000  # the newest stay


class Verified:
    """What `watchdog rescues verify` found. For people only: a resume reads everything again."""

    def __init__(self) -> None:
        self._path = os.path.join(paths.state_dir(), "verified.json")
        self._notes: dict[str, Any] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                notes = json.load(file)
            if isinstance(notes, dict):
                self._notes = notes
        except (OSError, ValueError, RecursionError):
            pass  # a note that is lost is made again

    def when(self, path: str) -> float | None:
        """Seconds of the epoch; None when it was never found whole, or changed since."""
        note = self._note(path)
        at = note.get("at_unix_s")
        return float(at) if isinstance(at, int | float) and "damage" not in note else None

    def damage(self, path: str) -> str | None:
        """What was wrong with its bytes; None when nothing was, or it changed since."""
        damage = self._note(path).get("damage")
        return damage if isinstance(damage, str) else None

    def note(self, path: str, damage: str | None = None) -> None:
        """Remember that it was found whole, or with that damage; `save` writes it."""
        self.forget(path)
        self._notes[path] = {"at_unix_s": time.time(), "files": _mark(path)}
        if damage is not None:
            self._notes[path]["damage"] = damage

    def forget(self, path: str) -> None:
        """It could not be read: nothing is known of it."""
        self._notes.pop(path, None)

    def _note(self, path: str) -> dict[str, Any]:
        note = self._notes.get(path)
        return note if isinstance(note, dict) and note.get("files") == _mark(path) else {}

    def save(self) -> None:
        """Write the notes; where that cannot be, they are forgotten."""
        kept = dict(list(self._notes.items())[-_MOST:])
        try:
            make_folders(os.path.dirname(self._path), 0o700)
            write_whole(self._path, json.dumps(kept).encode(), 0o600)
        except OSError:
            pass


def _mark(path: str) -> list[list[int]] | None:
    """Size and time of change of each file: other values are other contents."""
    try:
        with os.scandir(path) as entries:
            stats = [entry.stat(follow_symlinks=False) for entry in sorted(entries, key=str)]
    except OSError:
        return None
    return [[one.st_size, one.st_mtime_ns, one.st_ino] for one in stats]
