"""
Which rescue belongs to which training of a program, and whether it is to be gone on from.

A program may train several times in one folder of rescues: each training that
it begins opens the next chapter, which has a folder of its own (`rescues/`,
`rescues/fit-2/`, ...), so that the second training never starts from the state
of the first and never crowds it out. In a notebook a cell that failed or was
interrupted is run again: there the next chapter waits until the training of
another cell has ended well. A training that ends well marks its rescues as
finished; they stay on disk and are not resumed. Neither is a rescue that this
very process wrote or went on from already, as what it holds in memory is newer,
nor one of another process that still trains.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from watchdog_app.agent.contain import describe
from watchdog_app.agent.reporting.identity import own
from watchdog_app.agent.saving import finished, names
from watchdog_app.agent.saving.loaded import LoadedRescue
from watchdog_app.agent.saving.names import RescueName
from watchdog_app.agent.saving.store import RescueStore
from watchdog_app.errors import RescueError

FINISHED_FILE = finished.FINISHED_FILE

_lock = threading.Lock()
_behind: dict[str, int] = {}  # chapters that this process is through with, by folder
_open: dict[str, object] = {}  # where a training began that has not ended well, by folder
_resumed: set[str] = set()  # rescues that this process went on from
_last_resumed: str | None = None  # by the training that began last
_last_begun: str | None = None  # its folder
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
    """The folder of rescues for the training that begins next in this process."""
    root = os.path.abspath(os.path.expanduser(directory))
    with _lock:
        _forget_parent()
        behind = _chapters_behind(root)
    return root if behind == 0 else os.path.join(root, f"fit-{behind + 1}")


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
    The rescue that the training which begins now goes on from, if any. Opens its chapter.

    Args:
        directory: as the user gave it to `Rescue`.
        store: over `chapter_directory(directory)`.
        resume: True for an unfinished rescue of this training by another process; "newest" for
            the newest in any chapter, finished or not; False for none.

    Raises:
        RescueError: "newest" was asked for and there is no rescue; or the newest may be whole,
            but is of a newer format or cannot be read.
    """
    check(resume)
    root = os.path.abspath(os.path.expanduser(directory))
    _begin(root)
    if resume is False:
        return Choice(None)
    if resume == "newest":
        found = _newest_anywhere(root)
        if found is None:
            raise RescueError(
                f"There is no rescue in {root} to go on from. "
                'Leave resume="newest" out, or name the folder that holds one.'
            )
        return Choice(found)
    waiting, in_use = _unfinished(store.directory)
    if waiting:
        path = os.path.join(store.directory, str(waiting[-1]))
        if is_of_this_process(path):
            return Choice(
                None,
                f"{path} is of this process, whose variables are newer; it is left alone. "
                'To go back to it: Rescue(..., resume="newest").',
            )
        found = store.newest(among=waiting)
        if found is not None:
            return Choice(found)
    if in_use:
        pid = in_use[-1].owner_text.partition(".")[0]
        return Choice(
            None,
            f"{os.path.join(store.directory, str(in_use[-1]))} is of process {pid}, which still "
            "runs: it is left alone and this training begins anew. To go on from it, end that "
            "process first. To keep trainings apart, give each its own folder.",
        )
    return _elsewhere(root, store.directory)


def may_resume(directory: str, resume: bool | str) -> bool:
    """Whether `choose` might find something, from names alone: reads no rescue."""
    if resume is not True:
        return resume == "newest"
    folder = chapter_directory(directory)
    waiting, _in_use = _unfinished(folder)
    return bool(waiting) and not is_of_this_process(os.path.join(folder, str(waiting[-1])))


def resumed(path: str) -> None:
    """Remember that this process went on from the rescue at `path`."""
    global _last_resumed
    with _lock:
        _resumed.add(path)
        _last_resumed = path


@contextmanager
def restoring(path: str) -> Iterator[None]:
    """
    Whatever fails within, as an error that names the rescue and the way out.

    Not contained like other errors of ours: to train anew in silence would be worse. A training
    that could not be restored has not begun: its chapter is the next one's.

    Raises:
        RescueError: with the failure as its cause.
    """
    try:
        yield
    except RescueError:
        _unbegin()
        raise
    except Exception as error:
        _unbegin()
        raise RescueError(
            f"The rescue {path} could not be given back to this program ({describe(error)}). "
            "Nothing on disk was changed. To begin anew: Rescue(..., resume=False)."
        ) from error


def finish(directory: str, store_directory: str) -> None:
    """
    The training ended well: the next chapter begins.

    Its rescues are not to be resumed: those that this process wrote, the one that it went on
    from, and those before that one. What others wrote stays as it is.
    """
    root = os.path.abspath(os.path.expanduser(directory))
    with _lock:
        _forget_parent()
        _behind[root] = _behind.get(root, 0) + 1
        _open.pop(root, None)
        paths = {path for path in _resumed if os.path.dirname(path) == store_directory}
        if _last_resumed is not None and _last_resumed.startswith(os.path.join(root, "")):
            paths.add(_last_resumed)  # may lie in another chapter
    for folder in {store_directory, *map(os.path.dirname, paths)}:
        through = max(
            (_sequence(path) for path in paths if os.path.dirname(path) == folder), default=0
        )
        there = names.complete_ones(folder)
        over = [
            str(name)
            for name in there
            if (folder == store_directory and name.owner_text == str(own()))
            or (name.sequence <= through and not names.in_use(name))
        ]
        if over or through:
            finished.add(folder, max(through, *(name.sequence for name in there), 0), over)


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


def _unfinished(directory: str) -> tuple[list[RescueName], list[RescueName]]:
    """
    Rescues of trainings that have not ended well, old to new: those that wait to be gone on from,
    and those whose training still runs in another process.
    """
    over = finished.read(directory).rescues
    waiting: list[RescueName] = []
    in_use: list[RescueName] = []
    for name in names.complete_ones(directory):
        if str(name) not in over:
            (in_use if names.in_use(name) else waiting).append(name)
    return waiting, in_use


def _elsewhere(root: str, here: str) -> Choice:
    """An unfinished rescue of another chapter is named: equal variables do not tell it is ours."""
    for folder in _chapters(root):
        waiting, _in_use = _unfinished(folder)
        if folder == here or not waiting:
            continue
        path = os.path.join(folder, str(waiting[-1]))
        if is_of_this_process(path):
            continue
        return Choice(
            None,
            f"{path} belongs to another training of this program and waits for it; this one "
            'begins anew. If this is that training: Rescue(..., resume="newest"). '
            "To keep trainings apart, give each its own folder.",
        )
    return Choice(None)


def _begin(root: str) -> None:
    """Open the chapter of `chapter_directory`."""
    global _last_resumed, _last_begun
    with _lock:
        _forget_parent()
        _last_resumed, _last_begun = None, root
        _behind[root] = _chapters_behind(root)
        _open[root] = _cell()


def _unbegin() -> None:
    with _lock:
        if _last_begun is not None:
            _open.pop(_last_begun, None)


def _chapters_behind(root: str) -> int:
    behind = _behind.get(root, 0)
    if root not in _open:
        return behind
    # Begun and not ended well: a script went on to its next training. A person may have run
    # the same cell again, and two trainings of one cell are told apart by its number.
    again = _interactive() and (_open[root] is None or _open[root] != _cell())
    return behind if again else behind + 1


def _interactive() -> bool:
    return "ipykernel" in sys.modules or hasattr(sys, "ps1")


def _cell() -> object:
    """The number of the cell that runs, which differs each time it is run; None outside IPython."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get() if get else None, "execution_count", None)


def _sequence(path: str) -> int:
    name = RescueName.parse(os.path.basename(path))
    return name.sequence if name is not None else 0


def is_of_this_process(path: str) -> bool:
    """Whether this process wrote the rescue at `path`, or went on from it."""
    name = RescueName.parse(os.path.basename(path))
    with _lock:
        _forget_parent()
        return path in _resumed or (name is not None and name.owner_text == str(own()))


def _forget_parent() -> None:
    """A forked child counts its own trainings; what its parent resumed is newer there as well."""
    global _owner
    if _owner != str(own()):
        _owner = str(own())
        _behind.clear()
        _open.clear()
