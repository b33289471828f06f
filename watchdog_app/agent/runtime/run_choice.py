"""
Decide which rescue a training resumes from, when the training begins.

A program may train several times in one folder of rescues, and several programs may share one. Each
training is a run; the names of its rescues contain the run's id. The key of a run (`program_key`)
shows whether it belongs to this training. A training does not touch runs of another program or
training, or runs whose owner lives; it names them in a message. A training that ends well marks its
rescues as finished. They stay on disk and are not resumed. A process also does not resume a rescue
that it has written or already resumed from, because its memory has a newer state.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from watchdog_app.agent.contain import Guard, describe, print_message
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint import names, run_lock, runs
from watchdog_app.rescue.checkpoint.format import FORMAT_VERSION
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.runs import Run, SavedRun
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.identity import program_key
from watchdog_app.rescue.identity.call_site import CallSite, call_site
from watchdog_app.rescue.identity.notebook import ipython_shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.runtime.link import Link

_CHOICES = ("newest", "force")
_MOST_NAMED = 3  # runs left alone that get a line each
_LONGEST_NAME = 100
_MOST_BESIDE = 20  # runs in other folders to check for one to name in a message
_FURTHER = re.compile(r"-\d{1,2}$")
_BESIDE_NS = 7 * 86400 * 10**9  # maximum age of these runs
RESUME = "WATCHDOG_AGENT_RESUME"
_FORCE = f'If it is the same training: Rescue(..., resume="force") or {RESUME}=force.'
_APART = 'To keep trainings apart for good, give each a folder or a name: Rescue(..., name="...").'

_guard = Guard("choosing the rescue to resume from")
_lock = threading.Lock()
_finished_counts: dict[str, int] = {}  # trainings that this process has finished, by folder
# cell of a training that began and has not ended well, by folder
_open_trainings: dict[str, object] = {}
_TurnKey = tuple[str, str | CallSite | None, str | None]  # folder, name or call site, thread
_turns: dict[_TurnKey, tuple[object, int]] = {}  # cell, count
_held_runs: dict[tuple[str, str], Run] = {}  # runs that this process holds, by folder and id
_resumed: set[str] = set()  # rescues that this process resumed from
_last_begun: dict[int, Beginning] = {}  # the last `begin` of each thread
_allowed_run: str | None = None  # the run that `watchdog.resume()` continues
_adopted: dict[str, Run] = {}  # runs whose rescue was given to a library, by folder
_owner: str | None = None
_warned_no_locks = False


@dataclass(slots=True)
class Beginning:
    """
    A training that begins: its folder of rescues, its run, and what it may resume from.

    `why`: messages about runs that are left alone. `notes`: messages to print after the resume.
    """

    directory: str  # as the user gave it, made absolute
    run: Run
    resume: bool | str
    waiting: list[RescueName] = field(default_factory=list)  # in `directory`, old to new
    why: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    turn_key: _TurnKey | None = None  # its key in `_turns`


def check_arguments(resume: object, name: object = None) -> None:
    """
    Check the arguments of `begin`.

    Raises:
        ValueError: `resume` is not True, False, "newest" or "force"; or `name` is not a short text.
    """
    if not isinstance(resume, bool) and resume not in _CHOICES:
        raise ValueError(f'resume must be True, False, "newest" or "force", not {resume!r}')
    if name is None:
        return
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"name must be a text of 1 to {_LONGEST_NAME} characters, not {name!r}")


def begin(
    directory: str,
    resume: bool | str,
    *,
    name: str | None = None,
    found: bool = False,
) -> Beginning:
    """
    Decide which run the training that begins now is, and hold its lock.

    Never raises: if the run cannot be determined, the training starts over.

    Args:
        directory: as the user gave it to `Rescue`.
        resume: which runs are allowed. True: an unfinished run of this training whose owner has
            ended; "newest": also a finished one; "force": any run whose owner has ended; False:
            none.
        name: as the user gave it.
        found: the agent found the training while it runs; it resumes from nothing.
    """
    root, resume = _canonical_folder(directory), _resume_choice(resume)
    site = None if found else call_site(sys._getframe(1))
    training = _open_training(root, name, site)
    beginning = None
    with _guard:
        beginning = _begin(root, resume, training, found=found)
    if beginning is None:
        beginning = Beginning(root, runs.Run("0" * 12, root), resume)
        with _guard:
            beginning.run = runs.start_run(root, {})
    _warn_about_missing_locks(beginning.run)
    with _lock:
        _held_runs[beginning.directory, beginning.run.id] = beginning.run
        beginning.turn_key = _turn_key(root, name, site)
        _last_begun[threading.get_ident()] = beginning
    return beginning


def choose(beginning: Beginning, store: RescueStore) -> LoadedRescue | None:
    """
    The rescue that a training resumes from, or None.

    Args:
        beginning: of the training.
        store: of the training's folder.

    Raises:
        RescueError: "newest" was given and there is no rescue. Or the newest rescue may be
            complete, but has a newer format or cannot be read.
    """
    if beginning.resume == "newest" and not names.complete_rescues(beginning.directory):
        raise RescueError(
            f"There is no rescue in {beginning.directory} to resume from. "
            'Leave resume="newest" out, or name the folder that holds one.'
        )
    return store.newest(among=beginning.waiting) if beginning.waiting else None


def resume(
    beginning: Beginning, store: RescueStore, link: Link, restore: Callable[[LoadedRescue], None]
) -> None:
    """
    Restore the rescue that a training resumes from, if any, and report the runs left alone.

    Args:
        beginning: of the training.
        store: of the training's folder.
        link: of the training; receives the restored rescue.
        restore: restores the state in the program, and reports that.

    Raises:
        RescueError: see `choose`; or the rescue could not be restored.
    """
    found = choose(beginning, store)
    for line in beginning.why:
        print_message(line)
    if found is None:
        return
    with restoring(found.path):
        restore(found)
    mark_resumed(found.path)
    link.restored_from(found.path, found.step, found.bytes, found.created_unix_s)
    for line in beginning.notes:
        print_message(line)


def may_resume(directory: str, resume: bool | str, *, name: str | None = None) -> bool:
    """Whether a training that begins here now may resume from a rescue; opens nothing."""
    if resume is False:
        return False
    root, resume = _canonical_folder(directory), _resume_choice(resume)
    with _lock:
        _reset_after_fork()
        training = _training(root, name, call_site(sys._getframe(1)))
    with _guard:
        program = program_key.program()
        return bool(_classify_runs(root, resume, program, training).candidates)
    return False


def waiting_run(directory: str) -> SavedRun | None:
    """The unfinished run of this program in a folder that can be resumed, or None."""
    root = _canonical_folder(directory)
    with _guard:
        program = program_key.program()
        with _lock:
            place = _previous_trainings(root) + 1
        for left in reversed(_by_preference(runs.saved_runs(root), program)):
            if (
                left.finished
                or left.is_held_by_this_process
                or other_training_reason(left, program, None) is not None
            ):
                continue
            if left.key.get("site") is None and left.key.get("place") != place:
                continue
            if left.verdict().life != "alive":
                return left
    return None


def other_run_message(directory: str, *, include_own: bool = False) -> str | None:
    """
    One line about a run in a folder next to this one, of this or another program.

    Args:
        directory: as the user gave it.
        include_own: also check this folder itself.
    """
    own = _canonical_folder(directory)
    above = os.path.dirname(own)
    since_ns = time.time_ns() - _BESIDE_NS
    # the folder does not exist yet, or another process is changing it
    with _guard, suppress(OSError):
        program = program_key.program(skip_cells=True)
        folders = [os.path.join(above, name) for name in os.listdir(above)]
        lefts = [
            left
            for folder in folders
            if (include_own or folder != own) and stat.S_ISDIR(os.lstat(folder).st_mode)
            for left in runs.saved_runs(folder)
            if not left.finished and left.newest_ns > since_ns and not left.is_held_by_this_process
        ]
        lefts.sort(key=lambda left: left.newest_ns)
        for left in lefts[: -_MOST_BESIDE - 1 : -1]:
            why = other_training_reason(left, program, None)
            # Folders with a number belong to further trainings of one program.
            is_further = _FURTHER.sub("", left.directory) == _FURTHER.sub("", own)
            if (
                why is None and (is_further or left.key.get("site") is not None)
            ) or left.verdict().life == "alive":
                continue
            if why is not None:
                return f"{left.path} {why}: it is left alone, and its rescues are kept."
            return (
                f"{left.path} is of this program, which was started in another way: it is left "
                f"alone. To resume from it, move it into {own}."
            )
    return None


def adopt(directory: str, path: str) -> None:
    """
    Continue a run in a library: its next training in this folder is the run of `path`.

    Args:
        directory: as the user gave it.
        path: of the rescue that the library resumes from.
    """
    mark_resumed(path)
    name = RescueName.parse(os.path.basename(path))
    with _guard:
        folder = os.path.dirname(path)
        for left in runs.saved_runs(folder):
            if name is not None and left.run == name.run and left.run is not None:
                run = runs.take_over(left, left.key, frozenset())
                if run is not None:
                    with _lock:
                        _adopted[_canonical_folder(directory)] = run
                        _held_runs[folder, run.id] = run


@contextmanager
def allow_resume_from(path: str) -> Iterator[None]:
    """Inside the block, trainings may resume from the rescue even if its cell was rewritten."""
    global _allowed_run
    name = RescueName.parse(os.path.basename(path))
    _allowed_run = None if name is None else name.run
    try:
        yield
    finally:
        _allowed_run = None


def mark_resumed(path: str) -> None:
    """Remember that this process resumed from the rescue at `path`."""
    with _lock:
        _resumed.add(path)


@contextmanager
def restoring(path: str) -> Iterator[None]:
    """
    Turn any failure inside the block into an error that names the rescue and the remedy.

    The agent does not contain this error like its other errors: a silent start over would be worse.
    A training that could not be restored has not begun, so the next one takes its place.

    Raises:
        RescueError: with the failure as its cause.
    """
    try:
        yield
    except RescueError:
        _undo_begin()
        raise
    except Exception as error:
        _undo_begin()
        raise RescueError(
            f"The rescue {path} could not be given back to this program ({describe(error)}). "
            "Nothing on disk was changed. To start over: Rescue(..., resume=False)."
        ) from error


def finish(beginning: Beginning) -> None:
    """
    Mark a training as ended well: no run resumes its rescues, or those it resumed from, again.
    """
    folder, run = beginning.directory, beginning.run
    run.after_fork()  # a child does not finish its parent's training
    with _lock:
        _reset_after_fork()
        _finished_counts[folder] = _finished_counts.get(folder, 0) + 1
        _open_trainings.pop(folder, None)
        _held_runs.pop((folder, run.id), None)
        resumed = set(_resumed)
    unmarked: OSError | None = None
    for name in names.complete_rescues(folder):
        path = os.path.join(folder, str(name))
        if name.run == run.id or path in resumed:
            try:
                names.mark_finished(path)
            except FileNotFoundError:  # another process has just pruned it
                continue
            except OSError as error:
                unmarked = error
    if unmarked is not None:
        print_message(
            f"the rescues in {folder} could not be marked as finished ({unmarked.strerror}): the "
            "next run resumes from them. To start over: Rescue(..., resume=False)."
        )
    run.release(remove=True)


def leave(beginning: Beginning) -> None:
    """Release the run of a training that an exception has left, while its process lives."""
    with _lock:
        _held_runs.pop((beginning.directory, beginning.run.id), None)
    beginning.run.release(remove=False)


@dataclass(slots=True)
class _FolderRuns:
    """The runs in a folder, classified for a training that begins."""

    candidates: list[SavedRun] = field(default_factory=list)  # the newest last
    own_run: SavedRun | None = None  # a run that this process began before
    own_run_matches: bool = False  # whether `own_run` is this same training
    same_finished: list[SavedRun] = field(default_factory=list)
    # runs left alone, with the reason as a message
    others: list[tuple[SavedRun, str]] = field(default_factory=list)
    salt: bytes | None = None
    notes: dict[str, str] = field(default_factory=dict)  # messages about candidates, by their paths


def _begin(
    root: str,
    resume: bool | str,
    training: program_key.Training,
    *,
    found: bool,
) -> Beginning:
    adopted = _adopted.pop(root, None) if found else None
    if adopted is not None:
        return Beginning(root, adopted, resume=False)
    program = program_key.program()
    seen = _classify_runs(root, resume, program, training)
    key = program_key.record(program, training, seen.salt or os.urandom(program_key.SALT_BYTES))
    why = _left_alone_messages(seen, resume)

    same = frozenset(left.run for left in seen.same_finished if left.run)
    if found:
        return Beginning(root, runs.start_run(root, key, same), resume=False)
    mine = seen.own_run if seen.own_run_matches or not seen.candidates else None
    if mine is not None and mine.run is not None:
        held = _held_runs.get((mine.directory, mine.run))
        # `_undo_begin` has released a run whose restore failed
        held = held or runs.take_over(mine, key, same)
        if held is not None:
            held.finished_runs = same
            begun = Beginning(root, held, resume, why=why)
            if resume in _CHOICES:
                begun.waiting = mine.names
                begun.why = []
            return begun
    if program.pooled and training.name is None and resume is not False:
        seen.others += [(left, _POOLED) for left in seen.candidates]
        seen.candidates = []
        why = _left_alone_messages(seen, resume)
    while seen.candidates:
        left = seen.candidates.pop()
        run = runs.take_over(left, key, same)
        if run is None:
            seen.others.append((left, _STILL_RUNS))
            why = _left_alone_messages(seen, resume)
            continue
        if resume is False:
            return Beginning(root, run, resume)
        notes = program_key.describe_changes(left.key, program)
        notes += [text for text in (seen.notes.get(left.path),) if text]
        notes += [
            f"another unfinished run of this training waits in {each.path} "
            f"(step {each.names[-1].step})."
            for each in reversed(seen.candidates)
            if not each.finished and each.run is not None
        ]
        why = [line for line, every in _other_run_messages(seen, starts_over=False) if every]
        return Beginning(root, run, resume, left.names, why[:_MOST_NAMED], notes)
    return Beginning(root, runs.start_run(root, key, same), resume, why=why)


_STILL_RUNS = "is of a training that still runs"
_FOREIGN_USER = "was put there by another user"
_LINK = "is a link"
_FOREIGN_LOCK = "has a lock that is no file of this user"
_POOLED = "may be of another task of a pool of processes"


def _classify_runs(
    root: str,
    resume: bool | str,
    program: program_key.Program,
    training: program_key.Training,
) -> _FolderRuns:
    seen = _FolderRuns()
    lefts = runs.saved_runs(root)
    seen.salt = next(_salts(lefts), None)
    links = names.linked_rescues(root)
    used = {left.run for left in lefts} | {name.run for name in links}
    run_lock.remove_unused(root, {run for run in used if run})
    seen.others += [(SavedRun(root, name.run, [name]), _LINK) for name in links]
    for left in lefts:
        if names.is_other_users(left.directory, left.names[-1]):
            seen.others.append((left, _FOREIGN_USER))
            continue
        another = (
            None
            if left.run is not None and left.run == _allowed_run
            else other_training_reason(left, program, training)
        )
        if left.finished:
            if another is None:
                seen.same_finished.append(left)
                if resume == "newest":
                    seen.candidates.append(left)
            elif resume == "newest":
                seen.others.append((left, another))
            continue
        if left.is_held_by_this_process:
            if another is None:
                seen.own_run, seen.own_run_matches = left, True
            elif resume in _CHOICES and other_training_reason(left, program, None) is None:
                if not seen.own_run_matches:
                    # this process began it before, and the user goes back to it on purpose
                    seen.own_run = left
            elif left.run is None:
                seen.others.append((left, _OF_THIS_PROCESS))
            continue
        verdict = left.verdict()
        if verdict.life == "alive":
            foreign = verdict.is_lock_foreign
            seen.others.append((left, _FOREIGN_LOCK if foreign else _alive_reason(verdict)))
        elif another is None or resume == "force" or left.needs_decision:
            if another is not None:
                seen.notes[left.path] = f'{left.path} {another}; resume="force" resumes from it.'
            elif verdict.life == "left" and verdict.owner is not None:
                ago = format_duration(verdict.silent_s or 0.0)
                seen.notes[left.path] = f"{left.path} was left {ago} ago by {verdict.owner_label}."
            elif (before := moved_from(left, program)) is not None:
                seen.notes[left.path] = (
                    f"{before} and its rescues have moved to {program.path}: this is taken for the "
                    "same program."
                )
            seen.candidates.append(left)
        else:
            seen.others.append((left, another))
    if resume != "force":
        seen.candidates = _by_preference(seen.candidates, program)
    return seen


def _by_preference(lefts: list[SavedRun], program: program_key.Program) -> list[SavedRun]:
    """Runs of this program, best last: unfinished with equal options, then the newest."""

    def preference(left: SavedRun) -> bool:
        return not left.finished and not program_key.describe_changes(left.key, program)

    return sorted(lefts, key=preference)


_OF_THIS_PROCESS = "is of this process"


def other_training_reason(
    left: SavedRun, program: program_key.Program, training: program_key.Training | None
) -> str | None:
    """Why a run belongs to another training, as a message; None: it is this one."""
    if left.run is None:
        return "was saved by an earlier watchdog, which noted no program"
    if left.run_record.get("id") != left.run:
        return left.problem or "does not say whose it is"
    if left.format_version < FORMAT_VERSION:
        return "was saved by an earlier watchdog, which noted too little of its program"
    moved = moved_from(left, program) is not None
    key = program_key.relocate(left.key, program) if moved else left.key
    return program_key.mismatch_reason(key, program, training)


def moved_from(left: SavedRun, program: program_key.Program) -> str | None:
    """The old path of the program if it was moved together with its rescues; else None."""
    before, now = left.key.get("path"), program.path
    directory = left.run_record.get("directory")
    if not isinstance(before, str) or not isinstance(directory, str) or now in (None, before):
        return None
    beside = os.path.relpath(before, directory) == os.path.relpath(now, left.directory)
    return before if beside and not os.path.lexists(before) else None


def _salts(lefts: list[SavedRun]) -> Iterator[bytes]:
    """The salts of the keys in a folder. With one salt for all, each argument needs one hash."""
    for left in lefts:
        with suppress(KeyError, TypeError, ValueError):
            salt = bytes.fromhex(left.key["arguments"]["salt"])
            if len(salt) == program_key.SALT_BYTES:
                yield salt


def _warn_about_missing_locks(run: Run) -> None:
    global _warned_no_locks
    if run.lock is not None and not run.lock.locked and not _warned_no_locks:
        _warned_no_locks = True
        print_message(
            f"the file system of {run.directory} keeps no locks: trainings there are distinguished "
            "only by their processes and by when they last reported."
        )


def _alive_reason(verdict: run_lock.Verdict) -> str:
    if verdict.silent_s is None:
        return f"is of {verdict.owner_label}, which still runs"
    ago = format_duration(verdict.silent_s)
    wait = format_duration(max(0.0, run_lock.SILENT_S - verdict.silent_s))
    return (
        f"is of {verdict.owner_label}, seen {ago} ago, which may still run (if it does not, it can "
        f"be gone on with in {wait})"
    )


def _left_alone_messages(seen: _FolderRuns, resume: bool | str) -> list[str]:
    """A message for each run that a training leaves alone as it starts over."""
    if resume is False:
        return []
    mine = seen.own_run
    lines = []
    if mine is not None and resume is True:
        lines.append(
            f"{mine.path} is of this process, whose variables are newer; it is left alone. "
            'To go back to it: Rescue(..., resume="newest").'
        )
    lines += [line for line, _ in _other_run_messages(seen)]
    if len(lines) > _MOST_NAMED:
        lines[_MOST_NAMED:] = [
            f"{len(lines) - _MOST_NAMED} more runs there are left alone. See: watchdog rescues"
        ]
    return lines


def _other_run_messages(seen: _FolderRuns, *, starts_over: bool = True) -> list[tuple[str, bool]]:
    """A message per run left alone, the newest first, and whether to print it always."""
    over = " and this training starts over" if starts_over else ""
    lines = []
    for left, why in reversed(seen.others):
        if "runs" in why or "still run" in why:
            text = (
                f"{left.path} {why}: it is left alone{over}. To resume from it, end that process "
                f"first. {_APART}"
            )
            lines.append((text, True))
        elif why == _FOREIGN_USER:  # never trusted, not even with "force"
            lines.append((f"{left.path} {why}: to resume from it, copy it yourself.", True))
        elif why == _LINK:
            text = f"{left.path} {why}: it is left alone. To resume from it, move its folder here."
            lines.append((text, True))
        elif why == _FOREIGN_LOCK:
            lock = run_lock.lock_path(left.directory, left.run or "")
            text = f"{left.path} {why}: it is left alone. To resume from it, remove {lock}."
            lines.append((text, True))
        elif why.startswith("belongs to another training"):
            text = f"{left.path} {why} and waits for it: it is left alone. {_FORCE} {_APART}"
            lines.append((text, False))
        else:
            text = f"{left.path} {why}: it is left alone, and its rescues are kept. {_FORCE}"
            lines.append((text, True))
    return lines


def _resume_choice(resume: bool | str) -> bool | str:
    return "force" if resume is True and is_forced() else resume


def is_forced() -> bool:
    """Whether the environment asks to resume in spite of differences."""
    return os.environ.get(RESUME, "").strip().lower() == "force"


def _canonical_folder(directory: str) -> str:
    return os.path.realpath(os.path.expanduser(directory))  # one folder may have two names


def _open_training(root: str, name: str | None, site: CallSite | None) -> program_key.Training:
    """Count the training that begins now."""
    with _lock:
        _reset_after_fork()
        training = _training(root, name, site)
        _finished_counts[root] = training.place - 1
        _open_trainings[root] = _cell_number()
        _turns[_turn_key(root, name, site)] = _cell_number(), training.turn
        return training


def _turn_key(root: str, name: str | None, site: CallSite | None) -> _TurnKey:
    """The key for counting trainings: threads may start theirs in any order."""
    return root, name or site, program_key.thread_key()[0]


def _training(root: str, name: str | None, site: CallSite | None) -> program_key.Training:
    """The training that begins next."""
    cell, turn = _turns.get(_turn_key(root, name, site), (None, 0))
    # A cell that is run again begins the same trainings again.
    turn = 0 if _is_interactive() and cell != _cell_number() else turn
    return program_key.training(name, site, turn + 1, _previous_trainings(root) + 1)


def _undo_begin() -> None:
    """Undo the last `begin` of this thread: the next training takes its place."""
    with _lock:
        last = _last_begun.pop(threading.get_ident(), None)
        if last is None:
            return
        _open_trainings.pop(last.directory, None)
        _held_runs.pop((last.directory, last.run.id), None)
        if last.turn_key in _turns:
            cell, turn = _turns[last.turn_key]
            _turns[last.turn_key] = cell, turn - 1
    last.run.release(remove=False)


def _previous_trainings(root: str) -> int:
    behind = _finished_counts.get(root, 0)
    if root not in _open_trainings:
        return behind
    # A training began and did not end well: a script moved on to its next training. A person may
    # have run the same cell again. The cell's number distinguishes the two trainings of one cell.
    again = _is_interactive() and (
        _open_trainings[root] is None or _open_trainings[root] != _cell_number()
    )
    return behind if again else behind + 1


def _is_interactive() -> bool:
    return "ipykernel" in sys.modules or hasattr(sys, "ps1")


def _cell_number() -> object:
    """The number of the running cell, which differs in each run; None outside IPython."""
    return getattr(ipython_shell(), "execution_count", None)


def is_of_this_process(path: str) -> bool:
    """Whether this process wrote the rescue at `path`, or resumed from it."""
    name = RescueName.parse(os.path.basename(path))
    with _lock:
        _reset_after_fork()
        if path in _resumed or name is None:
            return path in _resumed
    folder = os.path.dirname(path)
    held = name.run is not None and run_lock.is_held_by_this_process(folder, name.run)
    return held or name.owner_text == str(this_process())


def _reset_lock_in_child() -> None:
    # Another thread may hold the lock at the fork, and the child would wait for ever.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_in_child)


def _reset_after_fork() -> None:
    """
    Reset the state in a forked child, which counts its own trainings.

    It keeps `_resumed`: the child's memory, too, is newer than a rescue that the parent resumed
    from.
    """
    global _owner
    if _owner != str(this_process()):
        _owner = str(this_process())
        _finished_counts.clear()
        _open_trainings.clear()
        _turns.clear()
        _held_runs.clear()
        _last_begun.clear()
        _adopted.clear()
