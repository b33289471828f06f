"""
Placing files so that every one of them can be taken away again.

A ledger beside the journal says what was written. A file that somebody changed since is left
where it is; one that was there before and is not ours is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from watchdog_app.desktop.placements import Placement
from watchdog_app.errors import WatchdogError

_VERSION = 1


@dataclass(slots=True)
class Report:
    """What was done, by path."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # changed by somebody else: left alone


class Ledger:
    """
    What we placed: path and checksum, and the folders that we made for it.

    Args:
        path: of the ledger's file; it need not exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[str, str] = {}
        self._folders: list[str] = []
        self._read()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that we placed and have not taken away."""
        return tuple(self._files)

    def place(self, wanted: Iterable[Placement], force: bool = False) -> Report:
        """
        Write these files; what is there already and the same is left.

        Args:
            force: write over files that are not ours, too.

        Raises:
            WatchdogError: a file of somebody else's is in the way, or nothing can be written.
                Nothing was written in the first case.
        """
        wanted = tuple(wanted)
        if not force:
            for each in wanted:
                self._refuse_foreign(each)
        report = Report()
        try:
            for each in wanted:
                if _read(each.path) == each.content:
                    report.unchanged.append(each.path)
                    self._files[each.path] = _digest(each.content)
                    continue
                self._make_folder(os.path.dirname(each.path))
                # Written down first: what a crash leaves behind can be taken away all the same.
                self._files[each.path] = _digest(each.content)
                self._write()
                _write_whole(each.path, each.content)
                report.written.append(each.path)
            self._write()
        except OSError as error:
            with suppress(OSError):
                self._write()
            raise WatchdogError(
                f"{error.filename or 'A file'} could not be written: {error.strerror}. What was "
                "placed so far is taken away by: watchdog uninstall-desktop"
            ) from error
        return report

    def take_away(self, paths: Sequence[str] | None = None) -> Report:
        """
        Remove what we placed, and the folders that we made and that are empty again.

        Args:
            paths: only these; None: everything, the ledger itself included.
        """
        report = Report()
        if paths is not None and not set(paths) & self._files.keys():
            return report
        for path in list(self._files) if paths is None else list(paths):
            digest = self._files.get(path)
            content = None if digest is None else _read(path)
            if content is None:
                self._files.pop(path, None)
                continue
            if _digest(content) != digest:
                report.kept.append(path)
                del self._files[path]  # it is its user's now
                continue
            try:
                os.unlink(path)
            except OSError as error:
                raise WatchdogError(f"{path} could not be removed: {error.strerror}.") from error
            del self._files[path]
            report.removed.append(path)
        if paths is not None:
            self._remove_folders()
            self._write()
        else:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._remove_folders()
        return report

    def _refuse_foreign(self, wanted: Placement) -> None:
        there = _read(wanted.path)
        if there is None or there == wanted.content:
            return
        if self._files.get(wanted.path) != _digest(there):
            raise WatchdogError(
                f"{wanted.path} exists and is not ours, or was changed since. Nothing was written. "
                "Move it away, or write over it with: watchdog install-desktop --force"
            )

    def _make_folder(self, folder: str, mode: int = 0o755) -> None:
        missing = []
        while folder and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for each in reversed(missing):
            os.mkdir(each, mode if each == missing[0] else 0o755)
            if each not in self._folders:
                self._folders.append(each)

    def _read(self) -> None:
        content = _read(self._path)
        if content is None:
            return
        try:
            value = json.loads(content)
            files, folders = value["files"], value["folders"]
            self._files = {str(path): str(digest) for path, digest in files.items()}
            self._folders = [str(folder) for folder in folders]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WatchdogError(
                f"{self._path} is damaged: what was placed on this desktop is not known. Remove "
                "that file and run: watchdog install-desktop --force"
            ) from error

    def _write(self) -> None:
        self._make_folder(os.path.dirname(self._path), 0o700)
        value = {"version": _VERSION, "files": self._files, "folders": self._folders}
        _write_whole(self._path, (json.dumps(value, indent=1) + "\n").encode())

    def _remove_folders(self) -> None:
        """Those that we made, deepest first, where nothing else lies in them."""
        for folder in sorted(self._folders, key=len, reverse=True):
            with suppress(OSError):
                os.rmdir(folder)
                self._folders.remove(folder)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WatchdogError(f"{path} could not be read: {error.strerror}.") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_whole(path: str, content: bytes) -> None:
    """All of it or nothing: under another name, on the disk, then renamed."""
    fd, temporary = tempfile.mkstemp(prefix=".watchdog-", dir=os.path.dirname(path))
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
