"""
Place files so that every one of them can be removed again.

A list next to the journal records the placed files. A file that the user has changed since is not
removed. A file that existed before and is not ours is never overwritten: placing fails.
"""

from __future__ import annotations

import hashlib
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
    The list of placed files with their checksums, of folders made for them, and of enabled units.

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
        self._enabled: list[str] = []
        self._kept_files: dict[str, str] = {}
        self._load()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that we placed and have not removed."""
        return tuple(self._files)

    @property
    def enabled(self) -> tuple[str, ...]:
        """Units that were not enabled before we enabled them."""
        return tuple(self._enabled)

    @property
    def kept_files(self) -> tuple[str, ...]:
        """Paths that the last removal kept, because the user had changed them."""
        return tuple(self._kept_files)

    def set_enabled(self, unit: str, on: bool) -> None:
        """
        Record whether we enabled a unit.

        Raises:
            WatchdogError: the list cannot be written.
        """
        if on == (unit in self._enabled):
            return
        (self._enabled.append if on else self._enabled.remove)(unit)
        try:
            self._save()
        except OSError as error:
            raise self._write_error(error) from error

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
            self._save_after_failure()
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
        if paths is None:
            self._files, self._kept_files = {**self._kept_files, **self._files}, {}
        to_remove = [
            path for path in (self._files if paths is None else paths) if path in self._files
        ]
        if paths is not None and not to_remove:
            return report
        try:
            for path in to_remove:
                self._remove(path, report, even_changed)
            if paths is None:
                self._enabled.clear()
            self._remove_folders()
            if self._files or self._kept_files or self._enabled:
                self._save()
            else:
                remove_temporary_files(self._path)
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
                self._remove_folders()
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
        self._kept_files.pop(path, None)
        self._record_missing_folders(os.path.dirname(path))
        self._save()
        make_folders(os.path.dirname(path))
        write_atomic(path, content)
        report.written.append(path)

    def _remove(self, path: str, report: Report, even_changed: bool) -> None:
        expected = self._files[path]
        # The user has replaced the file by a link, so keep it, whatever its target.
        linked = os.path.islink(path)
        remove_temporary_files(path)
        content = None if linked else read_regular_file(path)
        if linked or (content is not None and _digest(content) != expected and not even_changed):
            report.kept.append(path)
            self._kept_files[path] = expected
        elif content is not None:
            os.unlink(path)
            report.removed.append(path)
        # Make the removal durable before the list forgets the file.
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(os.path.dirname(path))
        del self._files[path]

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
            self._enabled = [str(unit) for unit in value.get("enabled", [])]
            self._kept_files = {
                str(path): str(sum_) for path, sum_ in value.get("left", {}).items()
            }
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
        value = {
            "version": _VERSION,
            "files": self._files,
            "folders": self._folders,
            "enabled": self._enabled,
            "left": self._kept_files,
        }
        write_atomic(self._path, (dumps(value, indent=1) + "\n").encode())

    def _save_after_failure(self) -> None:
        """Save the list after a failure, or remove it if nothing was placed."""
        with suppress(OSError):
            if any(os.path.lexists(path) for path in self._files):
                # If saving fails, the list saved before each file remains valid.
                self._save()
                return
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
        path, why = str(error.filename or "A file"), str(error.strerror)
        with suppress(OSError):
            if os.path.islink(path) and not os.path.exists(path):
                why = f"it is a link to {os.readlink(path)}, which is not there"
        return WatchdogError(
            f"{path} could not be written: {why}. If anything was placed before, it is removed "
            f"by: {self._removed_by}"
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
    return hashlib.sha256(content).hexdigest()
