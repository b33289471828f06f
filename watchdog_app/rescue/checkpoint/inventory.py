"""
List the rescues in a folder, and which of them may be removed; needs no framework.

A name alone proves nothing. A folder counts as a rescue if it is named like one, is not a link, and
contains only the files of a rescue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.errors import RescueDamaged, RescueError
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.rescue.checkpoint import names, runs
from watchdog_app.rescue.checkpoint.format import MANIFEST_FILE, STATE_FILE
from watchdog_app.rescue.checkpoint.names import FINISHED_FILE, RescueName
from watchdog_app.rescue.checkpoint.owner import Owner
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

MOST_FOLDERS = 20_000  # folders of one search: a user may name their home folder
_DEPTH = 4  # FOLDER/rescues/NAME/rescue-... below the given folder


@dataclass(frozen=True, slots=True)
class Found:
    """One rescue on disk. Unreadable values are None."""

    path: str
    name: RescueName
    condition: str  # "complete", "damaged", "unreadable"
    problem: str | None  # message: why it is not complete
    training: str  # "finished", "unfinished", or "running" if its process still lives
    created_unix_s: float | None
    bytes: int | None  # on disk, both files
    epoch: int | None  # counted from 0
    batch: int | None  # finished batches of that epoch
    loss: float | None
    program: str | None  # path of the notebook or script
    key: Mapping[str, Any] | None = None  # key of its program and training in the rescue


@dataclass(slots=True)
class Search:
    """What a search found besides rescues."""

    most_folders: int = MOST_FOLDERS
    folders: int = 0
    cut_short: bool = False
    unreadable: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)  # half-written; their writers have ended
    writing: list[str] = field(default_factory=list)  # being written now


def find_rescue_folders(root: str, search: Search) -> Iterator[str]:
    """
    Folders that contain rescues, from `root` down; does not follow links.

    Args:
        root: the folder to start from.
        search: updated during the search.
    """
    waiting = [(os.path.abspath(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        search.folders += 1
        if search.folders > search.most_folders:
            search.cut_short = True
            return
        holds = False
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    if RescueName.parse(entry.name) is not None or names.is_partial(entry.name):
                        holds = True
                    elif depth < _DEPTH and not entry.name.startswith("."):
                        waiting.append((entry.path, depth + 1))
        except OSError as error:
            if os.path.lexists(folder):  # otherwise it was deleted meanwhile
                search.unreadable.append(f"{folder} ({error.strerror or error})")
        if holds:
            yield folder


def rescues_in(folder: str) -> list[Found]:
    """The rescues in one folder, old to new; omits those that are deleted meanwhile."""
    found = []
    for name in names.complete_rescues(folder):
        path = os.path.join(folder, str(name))
        if os.path.islink(path) or not os.path.isdir(path):
            continue
        one = examine(path, name)
        if one is not None:
            found.append(one)
    return found


def find_partials(folder: str, search: Search) -> None:
    """Add the half-written rescues of one folder to a search."""
    dead = set(names.abandoned_partials(folder))
    for text in names.partials(folder):
        left = search.partial if text in dead else search.writing
        left.append(os.path.join(folder, text))


def examine(path: str, name: RescueName) -> Found | None:
    """Read one rescue without its tensors; None if it no longer exists."""
    condition, problem = "complete", None
    loaded: LoadedRescue | None = None
    try:
        loaded = LoadedRescue(path)
    except RescueDamaged as error:
        condition, problem = "damaged", str(error)
    except (RescueError, OSError, ValueError) as error:
        condition, problem = "unreadable", str(error)
    if not os.path.lexists(path):
        if loaded is not None:
            loaded.close()
        return None
    training = (
        "running"
        if names.is_in_use(os.path.dirname(path), name)
        else "finished"
        if names.is_finished(path)
        else "unfinished"
    )
    created = epoch = batch = loss = program = key = None
    if loaded is not None:
        with loaded:
            created = loaded.created_unix_s
            epoch, batch, loss = read_progress(loaded.meta)
            source = loaded.meta.get("program_path")
            program = source if isinstance(source, str) else None
            run = loaded.meta.get(runs.KEY)
            told = run.get("key") if isinstance(run, dict) else None
            key = told if isinstance(told, dict) else None
    return Found(
        path, name, condition, problem, training, created, disk_usage_bytes(path),
        epoch, batch, loss, program, key,
    )  # fmt: skip


def read_progress(meta: Any) -> tuple[int | None, int | None, float | None]:
    """Epoch, batch and loss in the `meta` of a rescue."""
    position = meta.get("position")
    position = position if isinstance(position, dict) else {}
    logs = meta.get("logs")
    loss = logs.get("loss") if isinstance(logs, dict) else meta.get("loss")
    batch = position.get("next_batch", position.get("batch"))
    return _int_or_none(position.get("epoch")), _int_or_none(batch), number_or_none(loss)


def disk_usage_bytes(path: str) -> int | None:
    """Bytes of the files in a rescue; None if they cannot be read."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):  # the part of a process
                    total += disk_usage_bytes(entry.path) or 0
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    return total


def verify(path: str, progress: Callable[[int, int], None] | None = None) -> None:
    """
    Read every byte of a rescue and compare it with its checksums.

    Raises:
        RescueDamaged: a byte has changed; the message names the file or tensor.
        RescueError: it cannot be read, or a newer version wrote it.
    """
    with LoadedRescue(path) as loaded:
        loaded.verify(progress)


def to_prune(
    found: Sequence[Found], keep: int, older_than_s: float | None, now_unix_s: float
) -> tuple[list[Found], list[tuple[Found, str]]]:
    """
    Select the rescues of one folder to remove, and say why others are kept.

    The newest `keep` complete ones of each training stay. A training is a run; for rescues of
    earlier versions it is a process.

    Args:
        found: the result of `rescues_in`, old to new.
        keep: at least 1.
        older_than_s: remove only older ones; None: age does not matter.
        now_unix_s: the current time.
    """
    pruned: list[Found] = []
    remaining: list[tuple[Found, str]] = []
    kept: dict[str, int] = {}
    for one in reversed(found):
        training = one.name.run or one.name.owner_text
        reason = _protected_reason(one)
        whole = one.condition == "complete"
        if whole:
            kept[training] = kept.get(training, 0) + 1
        if whole and kept[training] <= keep:
            continue
        if older_than_s is not None and _age_s(one, now_unix_s) <= older_than_s:
            continue
        if not whole and not kept:
            reason = reason or "no complete one is newer: it is all that is left of its training"
        if reason is None:
            pruned.append(one)
        else:
            remaining.append((one, reason))
    return pruned[::-1], remaining[::-1]


def remove(path: str) -> bool:
    """
    Remove a complete or unfinished rescue; a reader never sees half of it.

    Returns:
        False if it no longer exists, or is in use now.

    Raises:
        OSError: it may not be removed; it is unchanged.
    """
    folder, text = os.path.split(path)
    name = RescueName.parse(text)
    if name is not None and (names.is_in_use(folder, name) or foreign_content(path)):
        return False
    try:
        names.remove(path)
    except FileNotFoundError:
        return False
    return True


def foreign_content(path: str) -> str | None:
    """Why a folder is not only this user's rescue, as a message; None if it is."""
    try:
        there = os.lstat(path)
        if there.st_uid != os.getuid():
            return "it belongs to another user"
        parts = set(filter(names.is_rank, os.listdir(path)))
        strange = sorted(set(os.listdir(path)) - {STATE_FILE, MANIFEST_FILE, FINISHED_FILE} - parts)
        for part in sorted(parts):
            inside = set(os.listdir(os.path.join(path, part))) - {STATE_FILE, MANIFEST_FILE}
            strange += sorted(f"{part}/{each}" for each in inside)
    except OSError as error:
        return f"it cannot be looked into ({error.strerror or error})"
    return f"it holds a file that is no part of a rescue: {strange[0]}" if strange else None


def _protected_reason(one: Found) -> str | None:
    if one.training == "running":
        return "its training still runs"
    owner = Owner.parse(one.name.owner_text)
    if not names.is_prunable(os.path.dirname(one.path), one.name):
        where = "in another container or on another machine" if owner else "somewhere"
        return f"its training may still run {where}"
    if one.condition == "unreadable":
        return "it may be whole, and this watchdog cannot tell"
    return foreign_content(one.path)


def _age_s(one: Found, now_unix_s: float) -> float:
    created = one.created_unix_s
    if created is None:
        try:
            created = os.lstat(one.path).st_mtime
        except OSError:
            created = now_unix_s
    return now_unix_s - created


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def total_bytes(found: Iterable[Found]) -> int:
    """Bytes of these rescues on disk; unknown sizes count as 0."""
    return sum(one.bytes or 0 for one in found)
