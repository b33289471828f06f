"""
Names inside a rescue folder, and which of them may be removed.

    rescue-0000001234-000007-PID.START.NAMESPACE-RUN    complete, sequence 7, step 1234
    .partial-PID.START.NAMESPACE-3                      being written or being removed
    .ranks-PID.START.NAMESPACE-4                        agreement of several processes (`ranks`)

RUN is the id of the training, over all its resumes; earlier versions wrote none.

The sequence orders rescues. Steps may start again at zero and clocks may be set back, so each save
takes the highest existing sequence plus one.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass

from watchdog_app.base import paths
from watchdog_app.base.durable import sync_folder
from watchdog_app.rescue.checkpoint import run_lock
from watchdog_app.rescue.checkpoint.owner import Owner, is_trusted, this_process

# The number of digits is limited: a forged number must not make the next name too long.
_COMPLETE = re.compile(
    r"rescue-(\d{10,19})-(\d{6,12})-(\d{1,10}\.\d{1,20}\.[0-9a-f]{8})(?:-([0-9a-f]{12}))?",
    re.ASCII,
)
_MOST_SEQUENCE = 10**9
_numbers = itertools.count(1)  # for all callers of this process: they may share a folder
FINISHED_FILE = "finished"  # in the folder of a rescue whose training ended well
_PARTIAL = re.compile(r"\.partial-(\d+\.\d+\.[0-9a-f]{8})-\d+")
_TEMPORARY = re.compile(r"\.(?:partial|ranks)-(\d+\.\d+\.[0-9a-f]{8})-\d+")

# It is unknown whether a writer in another container lives. A running save touches its files all
# the time.
_PARTIAL_ABANDONED_S = 3600.0


@dataclass(frozen=True, slots=True)
class RescueName:
    """The name of a folder with a complete rescue."""

    sequence: int
    step: int
    owner_text: str
    run: str | None = None  # None: written by an earlier version

    def __str__(self) -> str:
        run = "" if self.run is None else f"-{self.run}"
        return f"rescue-{self.step:010d}-{self.sequence:06d}-{self.owner_text}{run}"

    @classmethod
    def parse(cls, text: str) -> RescueName | None:
        """The name that `str` wrote, or None."""
        found = _COMPLETE.fullmatch(text)
        return cls(int(found[2]), int(found[1]), found[3], found[4]) if found else None


def is_other_users(directory: str, name: RescueName) -> bool:
    """
    Whether another user wrote a rescue: not this user, root or the owner of the folder.

    The owner of the folder counts because a container or network disk may show one owner for all
    files.
    """
    path = os.path.join(directory, str(name))
    try:
        owner = os.stat(directory).st_uid
        inside = [os.path.join(path, each) for each in os.listdir(path) if each != FINISHED_FILE]
        found = [os.lstat(each) for each in (path, *inside)]
    except OSError:
        return False  # missing or incomplete: reading it reports that
    return any(paths.is_foreign(each) and each.st_uid != owner for each in found)


def mark_finished(path: str) -> None:
    """
    Mark in a rescue that its training ended well, so that it is not resumed automatically.

    Raises:
        OSError: the mark cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    os.close(os.open(os.path.join(path, FINISHED_FILE), flags, 0o600))
    sync_folder(path)


def is_finished(path: str) -> bool:
    """Whether the training of the rescue at `path` ended well, by a mark of this user."""
    try:
        found = os.lstat(os.path.join(path, FINISHED_FILE))
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and is_trusted(found, path)


def next_sequence(directory: str) -> int:
    """The sequence number of the next rescue in a folder."""
    highest = 0
    for name in complete_rescues(directory):
        if highest < name.sequence < _MOST_SEQUENCE:
            with suppress(OSError):
                if is_trusted(os.lstat(os.path.join(directory, str(name))), directory):
                    highest = name.sequence
    return highest + 1


def partial_name() -> str:
    """A new name for a folder that this process is about to fill or to remove."""
    return f".partial-{this_process()}-{next(_numbers)}"


def ranks_name() -> str:
    """A new name for the folder in which the processes of a training agree."""
    return f".ranks-{this_process()}-{next(_numbers)}"


def rank_name(rank: int) -> str:
    """The name of the part of one process in a rescue, and of its file in that folder."""
    return f"rank-{rank}"


def is_rank(text: str) -> bool:
    """Whether `rank_name` may have made this name."""
    return re.fullmatch(r"rank-\d{1,6}", text) is not None


def remove(path: str) -> None:
    """
    Remove a folder; a reader never sees half of it.

    Raises:
        OSError: the folder no longer exists, or may not be removed; it is unchanged.
    """
    condemned = os.path.join(os.path.dirname(path), partial_name())
    os.rename(path, condemned)
    shutil.rmtree(condemned, ignore_errors=True)


def is_partial(text: str) -> bool:
    """Whether a folder of this name is being written or removed."""
    return _PARTIAL.fullmatch(text) is not None


def partials(directory: str) -> list[str]:
    """Names of partial folders in `directory`: in progress, or left when their writer ended."""
    return sorted(filter(is_partial, _listdir(directory)))


def complete_rescues(directory: str) -> list[RescueName]:
    """Rescues in `directory`, old to new; empty if the folder cannot be read."""

    def age(name: RescueName) -> tuple[int, int]:
        # Two processes that save at the same moment get the same number: the clock decides.
        try:
            return name.sequence, os.stat(os.path.join(directory, str(name))).st_mtime_ns
        except OSError:
            return name.sequence, 0

    return sorted(filter(None, map(RescueName.parse, _listdir(directory))), key=age)


def is_in_use(directory: str, name: RescueName) -> bool:
    """Whether another process that wrote the rescue still trains, as far as this process sees."""
    return not _is_ours(directory, name) and _owner_life(directory, name) == "alive"


def is_prunable(directory: str, name: RescueName) -> bool:
    """Whether this process may remove a rescue: it wrote it, or the writer has ended."""
    ours = name.owner_text == str(this_process()) or _is_ours(directory, name)
    return ours or _owner_life(directory, name) != "alive"


def _is_ours(directory: str, name: RescueName) -> bool:
    return name.run is not None and run_lock.is_held_by_this_process(directory, name.run)


def _owner_life(directory: str, name: RescueName) -> str:
    path = os.path.join(directory, str(name))
    # its process may be invisible here, and does not need the rescue any more
    if is_finished(path):
        return "dead"
    age_s = _age_s(path)
    owner = Owner.parse(name.owner_text)
    newest = None if age_s is None else time.time() - age_s
    return run_lock.check_owner(directory, name.run or "", owner, newest).life


def abandoned_partials(directory: str) -> list[str]:
    """Names of unfinished folders of other processes that have ended."""
    found = []
    for text in _listdir(directory):
        match = _TEMPORARY.fullmatch(text)
        if match is None or match[1] == str(this_process()):
            continue
        owner = Owner.parse(match[1])
        alive = None if owner is None else owner.alive
        age_s = _age_s(os.path.join(directory, text)) if alive is None else None
        if alive is False or (age_s is not None and age_s > _PARTIAL_ABANDONED_S):
            found.append(text)
    return found


def _age_s(folder: str) -> float | None:
    """Seconds since the last write in `folder`; None if it does not exist."""
    try:
        newest = os.stat(folder).st_mtime
        for text in os.listdir(folder):
            newest = max(newest, os.stat(os.path.join(folder, text)).st_mtime)
    except OSError:
        return None
    return time.time() - newest


def _listdir(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
