"""
The runs in a folder of rescues: their programs, and whether their owners still run.

A run is one training from its first start over all its resumes. The names of its rescues contain
its id, and their metadata its key. Its lock shows whether its owner lives (`run_lock`).
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.durable import make_folders
from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.rescue.checkpoint import format, names, run_lock
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.owner import Owner, this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.run_lock import RunLock, Verdict

KEY = "run"  # in a rescue's metadata


@dataclass(eq=False)
class Run:
    """
    The run of one training: its id, lock and key.

    Args:
        id: names it in its folder.
        directory: of its rescues.
        key: the result of `program_key.record`; None: another process writes the rescues, and
            their metadata has the key.
        lock: held by this process; None: not available, or held by another process.
        finished_runs: finished runs of the same training, whose rescues it may prune.
    """

    id: str
    directory: str
    key: Mapping[str, Any] | None = None
    lock: RunLock | None = None
    finished_runs: frozenset[str] = frozenset()
    _pid: int = field(default_factory=os.getpid, init=False)

    def record(self) -> dict[str, Any]:
        """The `run` field of its rescues, as JSON."""
        self.after_fork()
        owner = this_process().to_json()
        return {"id": self.id, "key": self.key, "owner": owner, "directory": self.directory}

    def may_prune(self, name: RescueName) -> bool:
        """Whether a rescue is of this run, or of a finished one of the same training."""
        same = name.run is not None and (name.run == self.id or name.run in self.finished_runs)
        return same and not names.is_other_users(self.directory, name)

    def after_fork(self) -> None:
        """Start a new run in a forked child that trains, unless its parent has ended."""
        if self.key is None or self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self.lock = None
        with suppress(OSError):
            self.lock = run_lock.acquire(self.directory, self.id)
            return
        self.id = secrets.token_hex(6)
        # A later start cannot tell which child is the same: none resumes from it.
        self.key = {**self.key, "rank": f"{self.key.get('rank')}, forked"}
        with suppress(OSError):
            self.lock = run_lock.acquire(self.directory, self.id, new=True)

    def release_if_unused(self) -> None:
        """Remove the lock of an ended training that has no rescue."""
        if not any(name.run == self.id for name in names.complete_rescues(self.directory)):
            self.release(remove=True)

    def release(self, *, remove: bool) -> None:
        """Release its lock; `remove`: the run is finished, or has saved nothing."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release(remove=remove)


@dataclass(slots=True)
class SavedRun:
    """The rescues of one run in a folder."""

    directory: str
    run: str | None  # None: of earlier versions, which distinguished runs by process
    names: list[RescueName] = field(default_factory=list)  # old to new
    finished: bool = False
    newest_ns: int = 0
    problem: str | None = None  # why no rescue of it can be read
    format_version: int = format.FORMAT_VERSION  # of the rescue that `run_record` was read from
    _run_record: Mapping[str, Any] | None = None
    _is_undecided: bool = False

    @property
    def path(self) -> str:
        """Path of its newest rescue."""
        return os.path.join(self.directory, str(self.names[-1]))

    @property
    def key(self) -> Mapping[str, Any]:
        """Its program and training, see `program_key.record`; empty if unknown."""
        key = self.run_record.get("key")
        return key if isinstance(key, dict) else {}

    @property
    def is_held_by_this_process(self) -> bool:
        """Whether a training of this process owns it."""
        if self.run is not None and run_lock.is_held_by_this_process(self.directory, self.run):
            return True
        of_this_process = self.names[-1].owner_text == str(this_process())
        return of_this_process and (
            self.run is None or run_lock.was_acquired_by_this_process(self.run)
        )

    def verdict(self) -> Verdict:
        """Whether its owner still runs."""
        named = Owner.read(self.run_record.get("owner")) or Owner.parse(self.names[-1].owner_text)
        return run_lock.check_owner(self.directory, self.run or "", named, self.newest_ns / 1e9)

    @property
    def run_record(self) -> Mapping[str, Any]:
        """`Run.record` of its newest readable rescue; empty if none is readable."""
        if self._run_record is None:
            self._run_record = {}
            for name in reversed(self.names):
                try:
                    with LoadedRescue(os.path.join(self.directory, str(name))) as loaded:
                        told, self.format_version = loaded.meta.get(KEY), loaded.format
                except (RescueError, OSError, ValueError) as error:
                    self.problem = self.problem or f"cannot be used ({error})"
                    self._is_undecided |= not isinstance(error, RescueDamaged)
                    continue
                self._run_record = told if isinstance(told, dict) else {}
                break
        return self._run_record

    @property
    def needs_decision(self) -> bool:
        """Whether its rescues may be whole but cannot be read here: the user must decide."""
        return not self.run_record and self._is_undecided


def saved_runs(directory: str) -> list[SavedRun]:
    """The runs with rescues in a folder, the last saved at the end. Never raises."""
    found: dict[tuple[str | None, str, bool], SavedRun] = {}
    for name in names.complete_rescues(directory):
        path = os.path.join(directory, str(name))
        try:
            there = os.lstat(path)
        except OSError:
            continue
        if not stat.S_ISDIR(there.st_mode):
            continue
        owner = name.owner_text if name.run is None else ""
        strangers = names.is_other_users(directory, name)  # regardless of the run in its name
        saved = found.setdefault((name.run, owner, strangers), SavedRun(directory, name.run))
        saved.names.append(name)
        saved.newest_ns = max(saved.newest_ns, there.st_mtime_ns)
    for saved in found.values():
        unfinished = [
            name
            for name in saved.names
            if not names.is_finished(os.path.join(directory, str(name)))
        ]
        saved.finished = not unfinished
        saved.names = unfinished or saved.names
    # By number first: a copy or `touch` changes times. Two simultaneous saves may share a number.
    return sorted(found.values(), key=lambda saved: (saved.names[-1].sequence, saved.newest_ns))


def start_run(directory: str, key: Mapping[str, Any], same: frozenset[str] = frozenset()) -> Run:
    """A new run; without a lock if none can be acquired."""
    run = secrets.token_hex(6)
    try:
        make_folders(directory, 0o700)
        lock = run_lock.acquire(directory, run, new=True)
    except OSError:  # the folder is not writable: a save reports that
        return Run(run, directory, key, None, same)
    return Run(run, directory, key, lock, same)


def take_over(saved: SavedRun, key: Mapping[str, Any], same: frozenset[str]) -> Run | None:
    """Continue a run whose owner has ended; None if another process was faster."""
    if saved.run is None:
        return start_run(saved.directory, key, same)
    try:
        lock = run_lock.acquire(saved.directory, saved.run)
    except OSError:
        return None
    return Run(saved.run, saved.directory, key, lock, same)
