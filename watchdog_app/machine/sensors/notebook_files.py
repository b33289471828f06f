"""
Where a notebook went that is not where it was: found by the file itself, in the same folder.

A Jupyter server knows of a rename; but one behind a password or a hub tells us nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

_MOST_ENTRIES = 20_000  # of a folder that is looked through


class _File(NamedTuple):
    """What a rename leaves as it was; the number of a file that was removed is soon another's."""

    device: int
    number: int
    modified_ns: int


class NotebookFiles:
    """Follows files by their numbers. Blocks as long as the disk does: call it off the loop."""

    def __init__(self) -> None:
        self._seen: dict[str, _File] = {}

    def follow(self, paths: Collection[str]) -> dict[str, str | None]:
        """
        Those that have gone since the last call: where each is now; None: not in its folder.

        Args:
            paths: absolute ones of the notebooks that are open now; others are forgotten.
        """
        gone: dict[str, str | None] = {}
        for path in self._seen.keys() - set(paths):
            del self._seen[path]
        for path in paths:
            try:
                self._seen[path] = _file(os.stat(path))
            except (OSError, ValueError):  # the latter: a name that no file can bear
                before = self._seen.pop(path, None)
                if before is not None:
                    gone[path] = _search(os.path.dirname(path), os.path.splitext(path)[1], before)
        return gone


def _search(folder: str, suffix: str, wanted: _File) -> str | None:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_ENTRIES:
                    break
                if entry.name.endswith(suffix) and entry.inode() == wanted.number:
                    found = entry.stat(follow_symlinks=False)
                    if _file(found) == wanted:
                        return entry.path
    except OSError:
        pass  # the folder is gone as well, or may not be read
    return None


def _file(stat: os.stat_result) -> _File:
    return _File(stat.st_dev, stat.st_ino, stat.st_mtime_ns)
