"""
The runs in a folder of rescues: whose each is, whether its owner lives, and which is this one's.

A run is one training from its first start over all its resumes. Its rescues carry its id in their
names and its key in their description; its lock says whether its owner lives (`run_lock`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.durable import make_folders
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import format, names, run_lock
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.owner import Owner, own
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.run_lock import RunLock, Verdict

KEY = "run"  # of a rescue's description


class Run:
    """One training's run: what names its rescues and says whose they are."""

    def __init__(
        self,
        run: str,
        directory: str,
        key: Mapping[str, Any] | None = None,
        lock: RunLock | None = None,
        finished_ones: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            run: its id.
            directory: of its rescues.
            key: as `program_key.record`; None: written from outside, its description has it.
            lock: held by this process; None: it could not be had, or another process's.
            finished_ones: finished runs of the same training, whose rescues it may prune.
        """
        self.id = run
        self.directory = directory
        self.lock = lock
        self.finished_ones = finished_ones
        self._key = key
        self._pid = os.getpid()

    def record(self) -> dict[str, Any]:
        """What a rescue's description says of it."""
        self.after_fork()
        owner = own().to_json()
        return {"id": self.id, "key": self._key, "owner": owner, "directory": self.directory}

    def may_prune(self, name: RescueName) -> bool:
        """Whether a rescue is of this run, or of a finished one of the same training."""
        same = name.run is not None and (name.run == self.id or name.run in self.finished_ones)
        return same and not names.is_strangers(self.directory, name)

    def after_fork(self) -> None:
        """A forked child that trains on has a run of its own, unless its parent has ended."""
        if self._key is None or self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self.lock = None
        with suppress(OSError):
            self.lock = run_lock.claim(self.directory, self.id)
            return
        self.id = secrets.token_hex(6)
        # Nobody can tell which child of a later start would be the same: none resumes from it.
        self._key = {**self._key, "rank": f"{self._key.get('rank')}, forked"}
        with suppress(OSError):
            self.lock = run_lock.claim(self.directory, self.id, new=True)

    def ended(self) -> None:
        """It trains no longer: where it has saved nothing, nothing is left of it."""
        if not any(name.run == self.id for name in names.complete_ones(self.directory)):
            self.let_go(remove=True)

    def let_go(self, *, remove: bool) -> None:
        """Give its lock back; `remove`: it is finished, or has saved nothing."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.let_go(remove=remove)


@dataclass(slots=True)
class Left:
    """The rescues of one run that lie in a folder."""

    directory: str
    run: str | None  # None: of earlier versions, which told runs apart by process
    names: list[RescueName] = field(default_factory=list)  # old to new
    finished: bool = False
    newest_ns: int = 0
    problem: str | None = None  # why none of them tells whose it is
    written_as: int = format.FORMAT_VERSION  # format of the one that tells it
    _said: Mapping[str, Any] | None = None

    @property
    def path(self) -> str:
        """Of its newest rescue."""
        return os.path.join(self.directory, str(self.names[-1]))

    @property
    def key(self) -> Mapping[str, Any]:
        """Its program and training, as `program_key.record`; empty where it is not told."""
        key = self.said.get("key")
        return key if isinstance(key, dict) else {}

    @property
    def held_here(self) -> bool:
        """Whether a training of this process has it."""
        if self.run is not None and run_lock.held_here(self.directory, self.run):
            return True
        of_this_process = self.names[-1].owner_text == str(own())
        return of_this_process and (self.run is None or run_lock.claimed_here(self.run))

    def verdict(self) -> Verdict:
        """Whether its owner lives."""
        if self.run is None:
            name = self.names[-1]
            alive = names.in_use(self.directory, name)
            return Verdict("alive" if alive else "dead", Owner.parse(name.owner_text))
        told = Owner.read(self.said.get("owner"))
        return run_lock.look(self.directory, self.run, told, self.newest_ns / 1e9)

    @property
    def said(self) -> Mapping[str, Any]:
        """What its newest readable rescue says of it (`Run.record`); else nothing."""
        if self._said is None:
            self._said = {}
            for name in reversed(self.names):
                try:
                    with LoadedRescue(os.path.join(self.directory, str(name))) as loaded:
                        told, self.written_as = loaded.meta.get(KEY), loaded.format
                except (RescueError, OSError, ValueError) as error:
                    self.problem = self.problem or f"cannot be used ({error})"
                    continue
                self._said = told if isinstance(told, dict) else {}
                break
        return self._said

    @property
    def unjudged(self) -> bool:
        """Whether it may be whole and ours, of a newer version: for a person to decide."""
        said = self.said
        return self.problem is not None and not said and format.not_ours_to_judge(self.path)


def left_in(directory: str) -> list[Left]:
    """The runs that have rescues in a folder, the one that saved last at the end; never raises."""
    found: dict[tuple[str | None, str, bool], Left] = {}
    for name in names.complete_ones(directory):
        path = os.path.join(directory, str(name))
        try:
            there = os.lstat(path)
        except OSError:
            continue
        if not names.is_folder(there):
            continue
        owner = name.owner_text if name.run is None else ""
        strangers = names.is_strangers(directory, name)  # whatever run its name claims
        left = found.setdefault((name.run, owner, strangers), Left(directory, name.run))
        left.names.append(name)
        left.newest_ns = max(left.newest_ns, there.st_mtime_ns)
    for left in found.values():
        unfinished = [
            name for name in left.names if not names.is_finished(os.path.join(directory, str(name)))
        ]
        left.finished = not unfinished
        left.names = unfinished or left.names
    return sorted(found.values(), key=lambda left: left.newest_ns)


def new(directory: str, key: Mapping[str, Any], same: frozenset[str] = frozenset()) -> Run:
    """A run that begins now; without a lock where none can be had, which is told elsewhere."""
    run = secrets.token_hex(6)
    try:
        make_folders(directory, 0o700, mode_above=0o700)
        lock = run_lock.claim(directory, run, new=True)
    except OSError:  # the folder cannot be written: a save says so
        return Run(run, directory, key, None, same)
    return Run(run, directory, key, lock, same)


def take(left: Left, key: Mapping[str, Any], same: frozenset[str]) -> Run | None:
    """Go on with a run whose owner has ended; None where somebody else was faster."""
    if left.run is None:
        return new(left.directory, key, same)
    try:
        lock = run_lock.claim(left.directory, left.run)
    except OSError:
        return None
    return Run(left.run, left.directory, key, lock, same)
