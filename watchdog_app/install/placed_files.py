"""
Place files so that every one of them can be removed again.

A list next to the journal records the placed files. A file that the user has changed since is not
removed. A file that existed before and is not ours is never overwritten: placing fails.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from watchdog_app.base.durable import (
    make_folders,
    remove_temporary_files,
    sync_folder,
    write_atomic,
)
from watchdog_app.base.errors import WatchdogError

_VERSION = 1


@dataclass(slots=True)
class Report:
    """The affected paths, by result."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # changed by the user since, so not removed


class PlacedFiles:
    """
    The list of placed files with their checksums, and of folders made for them.

    Args:
        path: path of the list's file; it need not exist.
        removed_by: command that removes the files, for messages.

    Raises:
        WatchdogError: the list cannot be read.
    """

    def __init__(self, path: str, removed_by: str = "watchdog desktop remove") -> None:
        self._path = path
        self._removed_by = removed_by
        self._files: dict[str, str] = {}
        self._folders: list[str] = []
        self._load()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that we placed and have not removed, those that the user has changed included."""
        return tuple(self._files)

    def changed_files(self) -> list[str]:
        """Return the paths that the user has changed since; removing keeps these files."""
        return [path for path in self._files if self._is_changed(path)]

    def place(self, files: Mapping[str, bytes], even_changed: bool = False) -> Report:
        """
        Write files. An identical existing file is not written and does not become ours.

        Args:
            files: contents by path.
            even_changed: also overwrite our files that the user has changed since.

        Raises:
            WatchdogError: a foreign file is in the way (nothing was written then), or writing
                failed.
        """
        for path, content in files.items():
            self._refuse_foreign(path, content, even_changed)
        report = Report()
        try:
            for path, content in files.items():
                self._place(path, content, report)
            self._save()
        except OSError as error:
            with suppress(OSError):  # the list saved before each file remains valid
                self._files = {
                    path: each for path, each in self._files.items() if os.path.lexists(path)
                }
                self._store()
            raise self._write_error(error) from error
        return report

    def remove(self, paths: Sequence[str] | None = None, even_changed: bool = False) -> Report:
        """
        Remove what we placed, and the empty folders that we made.

        A file that the user has changed is kept, and the next full removal tries it again. If
        nothing is left, the list is removed, too.

        Args:
            paths: only these; None: everything.
            even_changed: also remove files that the user has changed since.

        Raises:
            WatchdogError: a file could not be removed; the list still has the remaining files.
        """
        report = Report()
        to_remove = [
            path for path in (self.files if paths is None else paths) if path in self._files
        ]
        if paths is not None and not to_remove:
            return report
        try:
            for path in to_remove:
                self._remove(path, report, even_changed)
            self._store()
        except OSError as error:
            with suppress(OSError):
                self._save()
            raise WatchdogError(
                f"{error.filename or 'A file'} could not be removed: {error.strerror}."
            ) from error
        return report

    def _place(self, path: str, content: bytes, report: Report) -> None:
        if read_regular_file(path) == content:
            report.unchanged.append(path)
            if path in self._files:
                self._files[path] = _digest(content)
            return
        # Save the list first, so that files left by a crash can be removed, too.
        self._files[path] = _digest(content)
        self._record_missing_folders(os.path.dirname(path))
        self._save()
        make_folders(os.path.dirname(path))
        write_atomic(path, content)
        report.written.append(path)

    def _remove(self, path: str, report: Report, even_changed: bool) -> None:
        remove_temporary_files(path)
        linked = os.path.islink(path)
        if self._is_changed(path) and (linked or not even_changed):
            report.kept.append(path)
            return
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            report.removed.append(path)
        # Make the removal durable before the list forgets the file.
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(os.path.dirname(path))
        del self._files[path]

    def _is_changed(self, path: str) -> bool:
        """Whether the user has edited the file, or replaced it by a link, whatever its target."""
        if os.path.islink(path):
            return True
        content = read_regular_file(path)
        return content is not None and _digest(content) != self._files[path]

    def _refuse_foreign(self, path: str, content: bytes, even_changed: bool) -> None:
        if not os.path.lexists(path):
            return
        current = read_regular_file(path)
        if current == content:
            return
        known = self._files.get(path) if current is not None and not os.path.islink(path) else None
        if known is None or (known != _digest(current or b"") and not even_changed):
            shown = shlex.quote(path)
            raise WatchdogError(
                f"{path} exists and is not ours, or was changed since. Nothing was written. "
                f"Move it away: mv {shown} {shown}.before-watchdog"
            )

    def _record_missing_folders(self, folder: str) -> None:
        """Record the folders that are about to be created, so that they can be removed."""
        while folder and not os.path.isdir(folder):
            if folder not in self._folders:
                self._folders.append(folder)
            folder = os.path.dirname(folder)

    def _load(self) -> None:
        from json import loads

        content = read_regular_file(self._path)
        if content is None:
            return
        try:
            value = loads(content)
            self._files = {str(path): str(sum_) for path, sum_ in value["files"].items()}
            self._folders = [str(folder) for folder in value["folders"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WatchdogError(
                f"{self._path} is damaged: what was placed is not known. Remove that file, and "
                "what was placed by hand"
            ) from error

    def _save(self) -> None:
        from json import dumps

        folder = os.path.dirname(self._path)
        self._record_missing_folders(folder)
        make_folders(folder, 0o700)
        value = {"version": _VERSION, "files": self._files, "folders": self._folders}
        write_atomic(self._path, (dumps(value, indent=1) + "\n").encode())

    def _store(self) -> None:
        """Save the list, or remove it if it is empty; remove the empty folders that we made."""
        self._remove_folders()
        if self._files:
            self._save()
            return
        remove_temporary_files(self._path)
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove the folders that we made and that are empty, deepest first."""
        for folder in sorted(self._folders, key=len, reverse=True):
            with suppress(OSError):
                os.rmdir(folder)
                self._folders.remove(folder)
                sync_folder(os.path.dirname(folder))

    def _write_error(self, error: OSError) -> WatchdogError:
        return WatchdogError(
            f"{error.filename or 'A file'} could not be written: {error.strerror}. If anything was "
            f"placed before, it is removed by: {self._removed_by}"
        )


def read_regular_file(path: str) -> bytes | None:
    """
    Read a regular file.

    Returns:
        Its content; None: it does not exist; b"": it is not a regular file.

    Raises:
        WatchdogError: the file exists and cannot be read.
    """
    try:
        # Do not block on a named pipe.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WatchdogError(f"{path} could not be read: {error.strerror}.") from error


def _digest(content: bytes) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(content).hexdigest()
