"""When a rescue was last read in full and found whole: remembered beside the journal."""

from __future__ import annotations

import json
import os
import time

from watchdog_app import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 5000  # the newest stay


class Verified:
    """What `watchdog rescues verify` found. A note for people: a resume reads everything anew."""

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
        """Seconds of the epoch; None when it was never verified, or changed since."""
        note = self._notes.get(path)
        if not isinstance(note, dict) or note.get("files") != _mark(path):
            return None
        at = note.get("at_unix_s")
        return float(at) if isinstance(at, int | float) else None

    def note(self, path: str, *, whole: bool) -> None:
        """Remember what was found; `save` writes it."""
        self._notes.pop(path, None)
        if whole:
            self._notes[path] = {"at_unix_s": time.time(), "files": _mark(path)}

    def save(self) -> None:
        """Write the notes; where that cannot be, they are forgotten."""
        kept = dict(list(self._notes.items())[-_MOST:])
        temporary = f"{self._path}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(kept, file)
            os.replace(temporary, self._path)
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
