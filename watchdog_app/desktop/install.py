"""
Placing files so that every one of them can be taken away again.

A ledger beside the journal says what was written. A file that somebody changed since is left
where it is; one that was there before and is not ours is refused, or with `force` set aside
until ours goes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from watchdog_app.base.durable import make_folders, sync_folder, unfinished, write_whole
from watchdog_app.base.errors import WatchdogError
from watchdog_app.desktop.placements import Placement
from watchdog_app.desktop.whole_files import digest, read_plain

_VERSION = 1
_SET_ASIDE = ".before-watchdog"


@dataclass(slots=True)
class Report:
    """What was done, by path."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # changed by somebody else: left alone


class Ledger:
    """
    What we placed: path and checksum, the folders that we made for it, the units we enabled.

    Args:
        path: of the ledger's file; it need not exist.
        placed_by: the command that places, for what people are told.
        taken_away_by: the command that takes away.

    Raises:
        WatchdogError: it cannot be read.
    """

    def __init__(
        self,
        path: str,
        *,
        placed_by: str = "watchdog install-desktop",
        taken_away_by: str = "watchdog uninstall-desktop",
    ) -> None:
        self._path = path
        self._placed_by = placed_by
        self._taken_away_by = taken_away_by
        self._files: dict[str, str] = {}
        self._folders: list[str] = []
        self._set_aside: dict[str, str] = {}
        self._enabled: list[str] = []
        self._left: dict[str, str] = {}
        self._read()

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that we placed and have not taken away."""
        return tuple(self._files)

    @property
    def enabled(self) -> tuple[str, ...]:
        """Units that were not enabled before we enabled them."""
        return tuple(self._enabled)

    @property
    def left(self) -> tuple[str, ...]:
        """Paths that were left when all was taken away, because somebody had changed them."""
        return tuple(self._left)

    def note_enabled(self, unit: str, on: bool) -> None:
        """
        Remember that we enabled a unit, or that it is no longer.

        Raises:
            WatchdogError: that cannot be written down.
        """
        if on == (unit in self._enabled):
            return
        if on:
            self._enabled.append(unit)
        else:
            self._enabled.remove(unit)
        try:
            self._write()
        except OSError as error:
            raise _not_written(error, self._taken_away_by) from error

    def place(self, wanted: Iterable[Placement], force: bool = False) -> Report:
        """
        Write these files. One that is there already and the same is left, and is not ours.

        Args:
            force: write in the place of files that are not ours, too, which are set aside.

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
                self._place(each, report, force)
            self._write()
        except OSError as error:
            self._leave_no_trace_of_nothing()
            raise _not_written(error, self._taken_away_by) from error
        return report

    def take_away(self, paths: Sequence[str] | None = None, even_changed: bool = False) -> Report:
        """
        Remove what we placed, and the folders that we made and that are empty again.

        What was changed is left, and is tried again the next time that everything goes.

        Args:
            paths: only these; None: everything, and where nothing is left the ledger itself.
            even_changed: those that somebody changed since as well.

        Raises:
            WatchdogError: one could not be removed; the rest is still known.
        """
        report = Report()
        if paths is not None and not set(paths) & self._files.keys():
            return report
        if paths is None:
            self._files = {**self._left, **self._files}
            self._left.clear()
        try:
            for path in list(self._files) if paths is None else list(paths):
                if path in self._files:
                    self._take(path, report, even_changed)
            if paths is None and self._left:
                self._enabled.clear()
                self._remove_folders()
                self._write()
            elif paths is None:
                self._remove_folders()
                for each in (unfinished(self._path), self._path):
                    with suppress(FileNotFoundError):
                        os.unlink(each)
                self._enabled.clear()
                self._remove_folders()
            else:
                self._remove_folders()
                self._write()
        except OSError as error:
            with suppress(OSError):
                self._write()
            raise WatchdogError(
                f"{error.filename or 'A file'} could not be removed: {error.strerror}."
            ) from error
        return report

    def _place(self, wanted: Placement, report: Report, force: bool) -> None:
        path, known = wanted.path, wanted.path in self._files
        same = read_plain(path) == wanted.content
        # With force also what an earlier ledger, lost since, has placed: else it stayed for ever.
        if same and (known or not force or os.path.islink(path)):
            report.unchanged.append(path)
            if known:
                self._files[path] = digest(wanted.content)
            return
        foreign = not same and os.path.lexists(path) and (not known or os.path.islink(path))
        aside = path + _SET_ASIDE
        if foreign and not os.path.lexists(aside):
            self._set_aside[path] = aside
        # Written down first: what a crash leaves behind can be taken away all the same.
        self._files[path] = digest(wanted.content)
        self._left.pop(path, None)
        self._note_folders(os.path.dirname(path))
        self._write()
        make_folders(os.path.dirname(path))
        if self._set_aside.get(path) == aside and not os.path.lexists(aside):
            os.rename(path, aside)
            # Else a loss of power could keep the second renaming and forget the first.
            sync_folder(os.path.dirname(path))
        try:
            write_whole(path, wanted.content)
        except OSError:
            # What was there before is not to be missing, whatever comes of the rest.
            if self._set_aside.get(path) == aside and not os.path.lexists(path):
                with suppress(OSError):
                    os.rename(aside, path)
                    del self._files[path], self._set_aside[path]
            raise
        (report.unchanged if same else report.written).append(path)

    def _take(self, path: str, report: Report, even_changed: bool) -> None:
        expected = self._files[path]
        # What was made into a link is in its user's hands, wherever it leads.
        linked = os.path.islink(path)
        with suppress(OSError):
            os.unlink(unfinished(path))  # a writer was killed
        content = None if linked else read_plain(path)
        if linked or (content is not None and digest(content) != expected and not even_changed):
            report.kept.append(path)
            self._left[path] = expected
        else:
            if content is not None:
                os.unlink(path)
                report.removed.append(path)
            aside = self._set_aside.get(path, "")
            if aside and os.path.lexists(aside):
                os.rename(aside, path)
            self._set_aside.pop(path, None)
        # Before the ledger forgets it.
        with suppress(FileNotFoundError, NotADirectoryError):
            sync_folder(os.path.dirname(path))
        del self._files[path]

    def _refuse_foreign(self, wanted: Placement) -> None:
        path = wanted.path
        if not os.path.lexists(path):
            return
        there = read_plain(path)
        ours = not os.path.islink(path) and there is not None
        if there == wanted.content or (ours and self._files.get(path) == digest(there or b"")):
            return
        raise WatchdogError(
            f"{path} exists and is not ours, or was changed since. Nothing was written. "
            "Move it away, or have it set aside until watchdog goes, with: "
            f"{self._placed_by} --force"
        )

    def _note_folders(self, folder: str) -> None:
        """Those that are about to be made; one that is not made after all does no harm."""
        while folder and not os.path.isdir(folder):
            if folder not in self._folders:
                self._folders.append(folder)
            folder = os.path.dirname(folder)

    def _read(self) -> None:
        from json import loads

        content = read_plain(self._path)
        if content is None:
            return
        try:
            value = loads(content)
            files, folders = value["files"], value["folders"]
            self._files = {str(path): str(sum_) for path, sum_ in files.items()}
            self._folders = [str(folder) for folder in folders]
            aside = value.get("set_aside", {})
            self._set_aside = {str(path): str(where) for path, where in aside.items()}
            self._enabled = [str(unit) for unit in value.get("enabled", [])]
            left = value.get("left", {})
            self._left = {str(path): str(sum_) for path, sum_ in left.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WatchdogError(
                f"{self._path} is damaged: what was placed is not known. Remove "
                f"that file and run: {self._placed_by} --force"
            ) from error

    def _write(self) -> None:
        from json import dumps

        folder = os.path.dirname(self._path)
        self._note_folders(folder)
        make_folders(folder, 0o700)
        value = {
            "version": _VERSION,
            "files": self._files,
            "folders": self._folders,
            "set_aside": self._set_aside,
            "enabled": self._enabled,
            "left": self._left,
        }
        write_whole(self._path, (dumps(value, indent=1) + "\n").encode())

    def _leave_no_trace_of_nothing(self) -> None:
        """After a failure: remember what was placed, or if that is nothing leave nothing."""
        if any(os.path.lexists(path) for path in (*self._files, *self._set_aside.values())):
            # Where it cannot be written, what was written before each file stands.
            with suppress(OSError):
                self._write()
            return
        with suppress(OSError):
            os.unlink(self._path)
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Those that we made, deepest first, where nothing else lies in them."""
        for folder in sorted(self._folders, key=len, reverse=True):
            with suppress(OSError):
                os.rmdir(folder)
                self._folders.remove(folder)
                sync_folder(os.path.dirname(folder))


def _not_written(error: OSError, taken_away_by: str) -> WatchdogError:
    path = str(error.filename or "A file")
    why = str(error.strerror)
    with suppress(OSError):
        if stat.S_ISLNK(os.lstat(path).st_mode) and not os.path.exists(path):
            why = f"it is a link to {os.readlink(path)}, which is not there"
    return WatchdogError(
        f"{path} could not be written: {why}. If anything was placed before, it is taken away by: "
        f"{taken_away_by}"
    )
