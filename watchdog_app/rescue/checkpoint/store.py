"""
A folder of rescues: saves new ones so that a complete one always exists, finds the newest.

Steps of a save: make a folder under a temporary name, stream the tensors past the page cache, write
rescue.json, fsync files and folder, rename, fsync the parent. Only then are older ones pruned. A
kill at any moment leaves the rescues that were complete before, and at most one unfinished folder.
The next process removes that folder.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from watchdog_app.base.durable import make_folders, sync_folder
from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.base.linux.files import is_in_memory
from watchdog_app.base.text.plain import few_names
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.rescue.checkpoint import format, names
from watchdog_app.rescue.checkpoint.format import MANIFEST_FILE, STATE_FILE, Layout, TensorEntry
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.sink import Reserve
from watchdog_app.rescue.checkpoint.stream import Progress, SaveFailed, Streamer, translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.rescue.checkpoint.runs import Run

SAVED_LIST = "WATCHDOG_SAVED_LIST"  # a file that gets a line with the path of each new rescue
_SLACK_BYTES = 4 * MIB  # for folders and block lists of the file system
_REHEARSAL_BYTES = 4 * MIB
# So much training may be repeated for a rescue that restores more: two steps of any length, or:
_RECENT_S = 10.0

# Released at the start of a save. Measured at a hard limit with 1,000 tensors: the save takes 1.5
# MiB, most of it for lists of names and checksums. The rest is for the framework's part.
_RESERVE_BYTES = 2 * MIB
_RESERVE_PER_TENSOR = 1536


@dataclass(frozen=True, slots=True)
class SavedRescue:
    """A rescue that is complete and durable."""

    path: str
    step: int
    bytes: int  # on disk, both files
    seconds: float
    missing: tuple[str, ...] = ()  # what a resume from it will not restore, as texts


class RescueStore:
    """
    The rescues in one folder.

    Several processes may use one folder: each removes only rescues of its own run. A store is not
    thread-safe.
    """

    def __init__(
        self,
        directory: str,
        keep: int = 2,
        report: Callable[[str], None] | None = None,
        run: Run | None = None,
    ) -> None:
        """
        Create a store; nothing is written to disk before `prepare` or `save`.

        Args:
            directory: folder for rescues; `~` is the home folder.
            keep: number of complete rescues to keep, at least 1.
            report: called with one sentence for the user, such as about a damaged rescue. None:
                nothing is reported.
            run: run of the rescues saved here; the store removes only its rescues. None: only those
                of this process.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = os.path.abspath(os.path.expanduser(directory))
        self.keep = keep
        self.run = run
        self._report = report
        self._streamer = Streamer()
        self._reserve = Reserve()
        self._reported: set[str] = set()
        self.resumed_path: str | None = None  # the rescue that the training began with
        self._made_unix_s = time.time()

    def prepare(self, tensors: int = 0, rehearse: bool = True) -> tuple[int, float] | None:
        """
        Allocate and test what a save needs, before memory gets short.

        Allocates the buffers and the reserve, and removes the leftovers of dead processes. Writes a
        few MiB with the steps of a save, which shows early whether the folder can be written.

        Args:
            tensors: number of tensors of a save; it determines the size of the reserve.
            rehearse: False writes nothing and returns None.

        Returns:
            Bytes and seconds of the trial write.

        Raises:
            RescueError: no rescue can be written here; the message has the reason and the remedy.
        """
        self._make_directory()
        self._streamer.prepare()
        self.hold_reserve(tensors)
        self._remove_abandoned()
        if is_in_memory(self.directory):
            self._report_once(
                f"The rescue folder {self.directory} lies in memory (tmpfs): a save there takes "
                "the memory that is running out, and a restart loses it. Give Rescue a folder "
                "on a disk."
            )
        if not rehearse:
            return None
        noise = os.urandom(MIB) * (_REHEARSAL_BYTES // MIB)
        plan = format.plan_layout([TensorEntry.of_bytes("rehearsal", noise)])
        folder = self._new_partial()
        try:
            began = time.perf_counter()
            self._write_files(folder, plan, 0, {}, None)
            sync_folder(self.directory)
            return plan.file_bytes, time.perf_counter() - began
        except OSError as error:
            raise translate(error, self.directory) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def release_reserve(self) -> None:
        """Release the reserve to the kernel; `save` does this first."""
        self._reserve.release()

    def hold_reserve(self, tensors: int) -> bool:
        """
        Hold the memory that `save` releases when it begins; return whether it is available now.
        """
        return self._reserve.hold(_RESERVE_BYTES + tensors * _RESERVE_PER_TENSOR)

    def save(
        self,
        entries: Sequence[TensorEntry],
        meta: Mapping[str, Any],
        progress: Progress | None = None,
        *,
        step: int | None = None,
        complete: Callable[[str], None] | None = None,
    ) -> SavedRescue:
        """
        Write a new complete rescue.

        Once it is durable, a background thread prunes older ones. A rescue is not written if it
        restores less than the newest one and is only a little later: see `_RECENT_S`.

        Args:
            entries: the tensors; names differ.
            meta: other data for a restore, as JSON.
            progress: called in this thread with (bytes done, bytes in all).
            step: of the training; None: `meta["step"]`.
            complete: called with the folder before the rescue gets its name; an error prevents it.

        Returns:
            The new rescue, or the newest one if that restores more.

        Raises:
            RescueError: it could not be written (`SaveFailed` for a disk error). No part of it is
                left behind, and the older rescues remain.
            Exception: any error of an entry's `view`; as above.
        """
        began = time.perf_counter()
        self.release_reserve()
        self._streamer.wait_idle()  # the thread may still prune after an earlier save
        at = int(meta["step"] if step is None else step)
        if at < 0:
            raise RescueError(f"A step cannot be {at}. Nothing was saved.")
        missing = _missing(meta)
        better = self._better_rescue(at, missing) if missing and not _has_ended(meta) else None
        if better is not None:
            return better
        plan = format.plan_layout(entries)
        self._make_directory()
        self._make_room(plan.file_bytes)
        try:
            path = self._save(plan, at, meta, progress, complete)
        except SaveFailed as error:
            # A quota only shows when it is reached.
            if not error.no_space or not self._prune_one():
                raise
            path = self._save(plan, at, meta, progress, complete)
        _list_saved(path)
        # in the background: a deletion can take a tenth of the time of a save
        self._streamer.submit(self._prune_and_clean)
        # Its size on the disk, as a listing of the folder shows it.
        size = plan.file_bytes
        with suppress(OSError):
            size += os.stat(os.path.join(path, MANIFEST_FILE)).st_size
        return SavedRescue(path, at, size, time.perf_counter() - began, missing)

    def newest(self, among: Sequence[RescueName] | None = None) -> LoadedRescue | None:
        """
        The newest undamaged rescue, or None; reports and skips damaged ones.

        Args:
            among: the rescues to consider, old to new; None: all.

        Raises:
            RescueError: the newest may be complete, but has a newer format or cannot be read. The
                user must decide whether to resume from an older one or to start over.
        """
        if among is None:
            among = names.complete_rescues(self.directory)
        for name in reversed(among):
            path = os.path.join(self.directory, str(name))
            if names.is_other_users(self.directory, name):
                self._report_once(
                    f"The rescue {path} was passed over: another user put it there. To resume from "
                    "it, copy it yourself."
                )
                continue
            try:
                loaded = LoadedRescue(path)
                loaded.verify()
            except RescueDamaged as error:
                # Missing: another process pruned it after the listing.
                if os.path.lexists(path):
                    self._report_once(f"The rescue {path} was passed over: {error}.")
                continue
            except RescueError as error:
                raise RescueError(
                    f"The rescue {path} may be whole, but cannot be used here: {error}. "
                    "It was left as it is. To resume from the one before it, move it elsewhere; "
                    "to start over and keep it: Rescue(..., resume=False)."
                ) from error
            return loaded
        return None

    def wait_idle(self) -> None:
        """Wait until older rescues are pruned."""
        self._streamer.wait_idle()

    def close(self) -> None:
        """Release buffers and reserve; a later save allocates them again."""
        self.wait_idle()
        self._streamer.release()
        self._reserve.release()

    def _better_rescue(self, step: int, missing: tuple[str, ...]) -> SavedRescue | None:
        """
        The newest rescue of this training, if it stands in place of one that restores less.

        Args:
            step: of the new rescue.
            missing: what a resume from the new rescue will not restore.
        """
        newest = next(reversed(self._prunable()), None)
        if newest is None or step < newest.step:
            return None
        path = os.path.join(self.directory, str(newest))
        if newest.run != (self.run and self.run.id) or names.is_finished(path):
            return None
        try:
            with LoadedRescue(path) as loaded:
                kept, size = _missing(loaded.meta), loaded.bytes
                # A cell that is run again counts its steps from zero, within the same run.
                same = path == self.resumed_path or loaded.created_unix_s >= self._made_unix_s
                is_recent = time.time() - loaded.created_unix_s <= _RECENT_S
        except (RescueError, MemoryError):
            return None
        known, now = _single(kept), _single(missing)
        is_close = step - newest.step <= 2 or is_recent
        if not (same and is_close) or not set(known) < set(now):
            return None
        more = _in_words([each for each in now if each not in known])
        other = "no second rescue" if step == newest.step else "no rescue"
        self._report_once(
            f"the rescue of step {newest.step} is kept, and {other} of step {step} is written: "
            f"that would restore less. It would lack {more}."
        )
        return SavedRescue(path, newest.step, size, 0.0, kept)

    def write_part(
        self,
        entries: Sequence[TensorEntry],
        meta: Mapping[str, Any],
        step: int,
        progress: Progress | None = None,
    ) -> str:
        """
        Write what one process of several adds to a rescue; returns its folder, to be moved.

        Raises:
            RescueError, Exception: as `save`.
        """
        self.release_reserve()
        self._streamer.wait_idle()
        return self._save(format.plan_layout(entries), step, meta, progress, sync_folder, part=True)

    def _save(
        self,
        plan: Layout,
        step: int,
        meta: Mapping[str, Any],
        progress: Progress | None,
        complete: Callable[[str], None] | None,
        *,
        part: bool = False,
    ) -> str:
        folder = self._new_partial()
        try:
            self._write_files(folder, plan, step, meta, progress)
            if complete is not None:
                complete(folder)
            path = folder if part else self._rename_complete(folder, step)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise translate(error, self.directory) from error
            raise
        return path

    def _write_files(
        self,
        folder: str,
        plan: Layout,
        step: int,
        meta: Mapping[str, Any],
        progress: Progress | None,
    ) -> None:
        """Write both files into `folder`, durably."""
        checksums = self._streamer.write(
            os.path.join(folder, STATE_FILE),
            itertools.chain([TensorEntry.of_bytes("", plan.header)], plan.entries),
            progress,
            total_bytes=plan.file_bytes,
        )
        # The writing thread syncs one file while this thread writes and syncs the other.
        text = format.build_manifest(
            plan,
            checksums,
            step=step,
            created_unix_s=time.time(),
            meta=meta,
            writer=str(this_process()),
        )
        self._streamer.write_small(os.path.join(folder, MANIFEST_FILE), text)
        self._streamer.wait_idle()

    def _rename_complete(self, folder: str, step: int) -> str:
        """Rename a filled folder to its final name; this makes the rescue complete."""
        sequence = names.next_sequence(self.directory)
        run = None if self.run is None else self.run.id
        while True:
            path = os.path.join(
                self.directory, str(RescueName(sequence, step, str(this_process()), run))
            )
            try:
                os.rename(folder, path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                sequence += 1
            else:
                break
        # Until both are on the disk, a power cut may leave a rescue that lacks a file. A reader
        # then skips it and uses the previous one, which still exists.
        self._streamer.submit(partial(sync_folder, path))
        sync_folder(self.directory)
        self._streamer.wait_idle()
        return path

    def _make_directory(self) -> None:
        try:
            make_folders(self.directory, 0o700)
        except OSError as error:
            raise translate(error, self.directory) from error

    def _new_partial(self) -> str:
        folder = os.path.join(self.directory, names.partial_name())
        try:
            os.mkdir(folder, 0o700)
        except OSError as error:
            raise translate(error, self.directory) from error
        return folder

    def _make_room(self, file_bytes: int) -> None:
        needed = file_bytes + _SLACK_BYTES
        while True:
            free = _free_bytes(self.directory)
            if free is None or free >= needed:
                return
            if not self._prune_one():
                raise SaveFailed(
                    f"The disk that holds {self.directory} has {format_bytes(free)} free; "
                    f"a rescue takes {format_bytes(needed)}.",
                    "Free space there, or give Rescue a folder on another disk.",
                    no_space=True,
                )

    def _prune_one(self) -> bool:
        """Remove the oldest rescue if a newer one is undamaged; return whether one was removed."""
        ours = self._prunable()
        for place, name in enumerate(ours[:-1]):
            if any(self._is_readable(newer) for newer in ours[place + 1 :]):
                return self._remove(str(name))
        return False

    def _prune_and_clean(self) -> None:
        try:
            for name in self._prunable()[: -self.keep]:
                self._remove(str(name))
            self._remove_abandoned()
        except Exception as error:  # the new rescue is valid anyway
            self._report_once(f"Old rescues in {self.directory} were not pruned: {error}")

    def _remove_abandoned(self) -> None:
        for text in names.abandoned_partials(self.directory):
            shutil.rmtree(os.path.join(self.directory, text), ignore_errors=True)

    def _prunable(self) -> list[RescueName]:
        """Rescues of this run, or without a run of this process; old to new."""
        if self.run is not None:
            return list(filter(self.run.may_prune, names.complete_rescues(self.directory)))
        mine = (None, str(this_process()))
        every = names.complete_rescues(self.directory)
        return [name for name in every if (name.run, name.owner_text) == mine]

    def _is_readable(self, name: RescueName) -> bool:
        try:
            LoadedRescue(os.path.join(self.directory, str(name))).close()
        except RescueError:
            return False
        return True

    def _remove(self, text: str) -> bool:
        try:
            names.remove(os.path.join(self.directory, text))
        except OSError:  # another process was faster, or this user may not change the folder
            return False
        return True

    def _report_once(self, message: str) -> None:
        if message not in self._reported:
            self._reported.add(message)
            if self._report is not None:
                self._report(message)


def _missing(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """What a resume from a rescue with this metadata will not restore, as texts."""
    found = meta.get(format.NOT_RESTORED)
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def _has_ended(meta: Mapping[str, Any]) -> bool:
    """Whether the rescue is of the end of a fit, which a later run skips."""
    position = meta.get("position")
    return isinstance(position, Mapping) and position.get("ended_of") is not None


def _single(missing: Sequence[str]) -> list[tuple[str, str]]:
    """Each name of the texts `kind: name, name` with its kind; the name is empty without one."""
    parts = [text.partition(": ") for text in missing]
    return [(kind, name) for kind, _, names in parts for name in names.split(", ")]


def _in_words(single: Sequence[tuple[str, str]]) -> str:
    """These names as texts again, joined."""
    kinds = itertools.groupby(single, lambda each: each[0])
    texts = [(kind, ", ".join(name for _, name in each)) for kind, each in kinds]
    return "; ".join(few_names(f"{kind}: {names}") if names else kind for kind, names in texts)


def _list_saved(path: str) -> None:
    """Tell the process that waits for the program, if any, which rescue is new."""
    where = os.environ.get(SAVED_LIST)
    if where:
        with suppress(OSError):
            file = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                os.write(file, os.fsencode(f"{path}\n"))
            finally:
                os.close(file)


def _free_bytes(directory: str) -> int | None:
    """Bytes that this user may still write to the disk of `directory`; None if unknown."""
    try:
        disk = os.statvfs(directory)
    except (OSError, AttributeError):
        return None
    if disk.f_blocks == 0:  # some network and FUSE file systems report no counts
        return None
    return (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
