"""
Which rescue belongs to which training of a program, and whether it is to be gone on from.

A program may train several times in one folder of rescues: each time that ends
well opens the next chapter, which has a folder of its own (`rescues/`,
`rescues/fit-2/`, ...), so that the second training never starts from the state
of the first and never crowds it out. A training that ends well marks its
rescues as finished; they stay on disk and are not resumed. Neither is a rescue
that this very process wrote or went on from already: what it holds in memory
is newer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from watchdog_app.agent import names
from watchdog_app.agent.contain import describe
from watchdog_app.agent.identity import own
from watchdog_app.agent.loaded import LoadedRescue
from watchdog_app.agent.names import RescueName
from watchdog_app.agent.store import RescueStore
from watchdog_app.errors import RescueError

FINISHED_FILE = "finished.json"

_lock = threading.Lock()
_ended_well: dict[str, int] = {}  # trainings of this process that ended well, by folder
_resumed: set[str] = set()  # rescues that this process went on from
_owner: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """
    What to do at the start of a training: go on from `rescue`, or begin anew and say `why`.

    A rescue that is not `certain` may be of another training of the program: where its
    variables differ, the training begins anew.
    """

    rescue: LoadedRescue | None
    why: str | None = None
    certain: bool = True


def chapter_directory(directory: str) -> str:
    """The folder of rescues for the training that begins now in this process."""
    root = os.path.abspath(os.path.expanduser(directory))
    with _lock:
        _forget_parent()
        done = _ended_well.get(root, 0)
    return root if done == 0 else os.path.join(root, f"fit-{done + 1}")


def check(resume: object) -> None:
    """
    Refuse what `choose` does not know.

    Raises:
        ValueError: `resume` is neither True nor False nor "newest".
    """
    if not isinstance(resume, bool) and resume != "newest":
        raise ValueError(f'resume must be True, False or "newest", not {resume!r}')


def choose(directory: str, store: RescueStore, resume: bool | str) -> Choice:
    """
    The rescue that the training which begins now goes on from, if any.

    Args:
        directory: as the user gave it to `Rescue`.
        store: over `chapter_directory(directory)`.
        resume: True for an unfinished rescue of this training by another process; "newest" for
            the newest in any chapter, finished or not; False for none.

    Raises:
        RescueError: "newest" was asked for and there is no rescue.
    """
    check(resume)
    if resume is False:
        return Choice(None)
    root = os.path.abspath(os.path.expanduser(directory))
    if resume == "newest":
        found = _newest_anywhere(root)
        if found is None:
            raise RescueError(
                f"There is no rescue in {root} to go on from. "
                'Leave resume="newest" out, or name the folder that holds one.'
            )
        return Choice(found)
    found = _unfinished(store)
    if found is None:
        return _elsewhere(root, store.directory)
    if _is_of_this_process(found.path):
        found.close()
        return Choice(
            None,
            f"{found.path} is of this process, whose variables are newer; it is left alone. "
            'To go back to it: Rescue(..., resume="newest").',
        )
    return Choice(found)


def may_resume(directory: str, resume: bool | str) -> bool:
    """Whether `choose` might find something, from names alone: reads no rescue."""
    if resume is not True:
        return resume == "newest"
    folder = chapter_directory(directory)
    there = names.complete_ones(folder)
    if not there or there[-1].sequence <= _finished_sequence(folder):
        return False
    return not _is_of_this_process(os.path.join(folder, str(there[-1])))


def resumed(path: str) -> None:
    """Remember that this process went on from the rescue at `path`."""
    with _lock:
        _resumed.add(path)


@contextmanager
def restoring(path: str) -> Iterator[None]:
    """
    Whatever fails within, as an error that names the rescue and the way out.

    Not contained like other errors of ours: to train anew in silence would be worse.

    Raises:
        RescueError: with the failure as its cause.
    """
    try:
        yield
    except RescueError:
        raise
    except Exception as error:
        raise RescueError(
            f"The rescue {path} could not be given back to this program ({describe(error)}). "
            "Nothing on disk was changed. To begin anew: Rescue(..., resume=False)."
        ) from error


def finish(directory: str, store_directory: str) -> None:
    """The training ended well: its rescues are not to be resumed, the next chapter begins."""
    root = os.path.abspath(os.path.expanduser(directory))
    with _lock:
        _forget_parent()
        _ended_well[root] = _ended_well.get(root, 0) + 1
    there = names.complete_ones(store_directory)
    if there and there[-1].sequence > _finished_sequence(store_directory):
        _mark_finished(store_directory, there[-1].sequence)


def _finished_sequence(directory: str) -> int:
    """The last rescue of trainings here that ended well; 0 when none did."""
    try:
        with open(os.path.join(directory, FINISHED_FILE), encoding="ascii") as file:
            return int(json.load(file)["sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _mark_finished(directory: str, sequence: int) -> None:
    path = os.path.join(directory, FINISHED_FILE)
    temporary = f"{path}.{own()}"
    with open(temporary, "w", encoding="ascii") as file:
        json.dump({"sequence": sequence}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _chapters(root: str) -> list[str]:
    found = [root]
    try:
        found += [os.path.join(root, name) for name in os.listdir(root) if name.startswith("fit-")]
    except OSError:
        pass
    return found


def _newest_anywhere(root: str) -> LoadedRescue | None:
    newest: LoadedRescue | None = None
    for folder in _chapters(root):
        found = RescueStore(folder).newest()
        if found is None:
            continue
        if newest is None or found.created_unix_s > newest.created_unix_s:
            found, newest = newest, found
        if found is not None:
            found.close()
    return newest


def _unfinished(store: RescueStore) -> LoadedRescue | None:
    there = names.complete_ones(store.directory)
    if not there or there[-1].sequence <= _finished_sequence(store.directory):
        return None
    found = store.newest()
    if found is None or _sequence(found.path) > _finished_sequence(store.directory):
        return found
    found.close()  # the unfinished ones are damaged
    return None


def _elsewhere(root: str, here: str) -> Choice:
    """An unfinished rescue of another chapter: a notebook runs its cells in any order."""
    for folder in _chapters(root):
        there = names.complete_ones(folder)
        if folder == here or not there or there[-1].sequence <= _finished_sequence(folder):
            continue
        path = os.path.join(folder, str(there[-1]))
        if _is_of_this_process(path):
            continue
        if "ipykernel" in sys.modules:
            found = RescueStore(folder).newest()
            if found is not None:
                return Choice(found, certain=False)
        return Choice(
            None,
            f"{path} belongs to another training of this program and waits for it; this one "
            'begins anew. If this is that training: Rescue(..., resume="newest"). '
            "To keep trainings apart, give each its own folder.",
        )
    return Choice(None)


def _sequence(path: str) -> int:
    name = RescueName.parse(os.path.basename(path))
    return name.sequence if name is not None else 0


def _is_of_this_process(path: str) -> bool:
    name = RescueName.parse(os.path.basename(path))
    with _lock:
        _forget_parent()
        return path in _resumed or (name is not None and name.owner_text == str(own()))


def _forget_parent() -> None:
    """A forked child counts its own trainings; what its parent resumed is newer there as well."""
    global _owner
    if _owner != str(own()):
        _owner = str(own())
        _ended_well.clear()
