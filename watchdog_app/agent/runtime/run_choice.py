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

import atexit
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.agent.contain import Guard, describe, print_message
from watchdog_app.agent.runtime import relation
from watchdog_app.agent.runtime.relation import RelatedRun, Relation
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import names, run_lock, runs
from watchdog_app.rescue.checkpoint.names import RescueName
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.runs import Run, SavedRun
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.identity import program_key
from watchdog_app.rescue.identity.call_site import CallSite, call_site
from watchdog_app.rescue.identity.compare import mismatch
from watchdog_app.rescue.identity.notebook import ipython_shell
from watchdog_app.rescue.identity.program_key import Program, Training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.runtime.link import Link

_CHOICES = ("newest", "force")
_MOST_NAMED = 3  # runs left alone that get a line each
_LONGEST_NAME = 100
_MOST_BESIDE = 20  # runs in other folders to check for one to name in a message
_BESIDE_NS = 7 * 86400 * 10**9  # maximum age of these runs

_guard = Guard("choosing the rescue to resume from")
_warn_no_locks = Guard("the locks of trainings")
_allowed_run: str | None = None  # the run that `watchdog.resume()` continues
_other_cells: frozenset[str] = frozenset()  # normalised texts of cells that did not save it
_TurnKey = tuple[str, str | CallSite | None, str | None]  # folder, name or call site, thread


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
    turn_key: _TurnKey | None = None
    follows: bool = False  # another process owns the run


@dataclass(slots=True)
class _Place:
    """The last training that began in a folder."""

    number: int  # of all trainings in this folder
    cell: object = None  # its number
    has_ended: bool = True  # well, or before it trained


@dataclass(slots=True)
class _ProcessState:
    """The trainings of this process."""

    resumed: set[str] = field(default_factory=set)  # rescues that it resumed from
    named: set[str] = field(default_factory=set)  # rescues of other trainings, left alone
    places: dict[str, _Place] = field(default_factory=dict)  # by folder
    turns: dict[_TurnKey, tuple[object, int]] = field(default_factory=dict)  # cell, count
    held: dict[tuple[str, str], Run] = field(default_factory=dict)  # by folder and id
    adopted: dict[str, Run] = field(default_factory=dict)  # rescue given to a library, by folder
    # that wait for the end of the program, with the rescues of their ends
    ended: list[tuple[Beginning, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_place(self, root: str) -> int:
        """The number of the next training in a folder."""
        last = self.places.get(root)
        if last is None:
            return 1
        # A training began and did not end well: a script moved on to its next training. A person
        # may have run the same cell again. The cell's number distinguishes two trainings of a cell.
        again = not last.has_ended and _is_interactive()
        again = again and (last.cell is None or last.cell != _cell_number())
        return last.number if again else last.number + 1

    def next_training(self, root: str, name: str | None, site: CallSite | None) -> Training:
        """The training that begins next in a folder."""
        cell, turn = self.turns.get(_turn_key(root, name, site), (None, 0))
        # A cell that is run again begins the same trainings again.
        turn = 0 if _is_interactive() and cell != _cell_number() else turn
        return program_key.training(name, site, turn + 1, self.next_place(root))

    def count(self, root: str, name: str | None, site: CallSite | None) -> Training:
        """Count the training that begins now."""
        training = self.next_training(root, name, site)
        cell = _cell_number()
        self.places[root] = _Place(training.place, cell, has_ended=False)
        self.turns[_turn_key(root, name, site)] = cell, training.turn
        return training

    def uncount(self, begun: Beginning) -> None:
        """Undo `count`: the next training takes the place of this one."""
        place = self.places.get(begun.directory)
        if place is not None and not place.has_ended:
            self.places[begun.directory] = _Place(place.number - 1)
        if begun.turn_key in self.turns:
            cell, turn = self.turns[begun.turn_key]
            self.turns[begun.turn_key] = cell, turn - 1


_process = _ProcessState()


def _begin_again_in_child() -> None:
    """A forked child counts its own trainings. Its memory, too, is newer than what was resumed."""
    global _process
    _process = _ProcessState(_process.resumed)


os.register_at_fork(after_in_child=_begin_again_in_child)


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
    with _process.lock:
        training = _process.count(root, name, site)
    beginning = None
    with _guard:
        beginning = _begin(root, resume, training, found=found)
    if beginning is None:
        beginning = Beginning(root, Run("0" * 12, root), resume)
        with _guard:
            beginning.run = runs.start_run(root, {})
    run = beginning.run
    if run.lock is not None and not run.lock.locked:
        _warn_no_locks.print_once(
            f"the file system of {run.directory} keeps no locks: trainings there are distinguished "
            "only by their processes and by when they last reported."
        )
    with _process.lock:
        _process.held[root, run.id] = run
        beginning.turn_key = _turn_key(root, name, site)
    return beginning


def follow(directory: str) -> Beginning:
    """The beginning of a process that resumes what another one chooses; it owns no run."""
    root = _canonical_folder(directory)
    return Beginning(root, Run("0" * 12, root), resume=False, follows=True)


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


def choose_alone(beginning: Beginning, store: RescueStore) -> LoadedRescue | None:
    """As `choose`, for a training in one process; raises RescueMismatch for one of several."""
    found = choose(beginning, store)
    if found is not None:
        check_processes(found, 1)
    return found


def check_processes(rescue: LoadedRescue, now: int) -> None:
    """Raise RescueMismatch if another number of processes saved the rescue."""
    if rescue.ranks != now:
        counts = f"{rescue.ranks} processes saved it, and {now} train now"
        raise mismatch(rescue.path, [counts], may_be_forced=False)


def resume(
    beginning: Beginning,
    store: RescueStore,
    link: Link,
    restore: Callable[[LoadedRescue], None],
    choose: Callable[[Beginning, RescueStore], LoadedRescue | None] = choose_alone,
) -> None:
    """
    Restore the rescue that a training resumes from, if any, and report the runs left alone.

    Args:
        beginning: of the training.
        store: of the training's folder.
        link: of the training; receives the restored rescue.
        restore: restores the state in the program, and reports that.
        choose: chooses the rescue; the processes of one training choose together.

    Raises:
        RescueError: see `choose`; or the rescue could not be restored.
    """
    found = choose(beginning, store)
    for line in beginning.why:
        print_message(line)
    if found is None:
        return
    with restoring(beginning, found.path):
        restore(found)
    store.resumed_path = found.path
    mark_resumed(found.path)
    link.restored_from(found.path, found.step, found.bytes, found.created_unix_s)
    for line in beginning.notes:
        print_message(line)


def may_resume(directory: str, resume: bool | str, *, name: str | None = None) -> bool:
    """Whether a training that begins here now may resume from a rescue; opens nothing."""
    if resume is False:
        return False
    root, resume = _canonical_folder(directory), _resume_choice(resume)
    with _process.lock:
        training = _process.next_training(root, name, call_site(sys._getframe(1)))
    with _guard:
        program = program_key.program()
        related = _relate_all(runs.saved_runs(root), resume, program, training)
        return bool(_candidates(related, resume, program))
    return False


def waiting_run(directory: str) -> SavedRun | None:
    """The unfinished run of this program in a folder that can be resumed, or None."""
    root = _canonical_folder(directory)
    with _guard:
        program = program_key.program()
        with _process.lock:
            place = _process.next_place(root)
        saved = sorted(runs.saved_runs(root), key=lambda each: _is_preferred(each, program))
        for left in reversed(saved):
            if (
                not left.finished
                and not left.is_held_by_this_process
                and relation.other_training_reason(left, program, None) is None
                and (left.key.get("site") is not None or left.key.get("place") == place)
                and left.verdict().life != "alive"
            ):
                return left
    return None


def beside_message(directory: str) -> str | None:
    """One line about a run of another program, or arguments, in a folder next to this one."""
    own = _canonical_folder(directory)
    since_ns = time.time_ns() - _BESIDE_NS
    # the folder does not exist yet, or another process is changing it
    with _guard, suppress(OSError):
        program = program_key.program(skip_cells=True)
        saved = [
            each
            for folder in os.scandir(os.path.dirname(own))
            if folder.path != own and folder.is_dir(follow_symlinks=False)
            for each in runs.saved_runs(folder.path)
            if not (each.finished or each.is_held_by_this_process) and each.newest_ns > since_ns
        ]
        saved.sort(key=lambda each: each.newest_ns, reverse=True)
        for each in saved[:_MOST_BESIDE]:
            why = relation.other_training_reason(each, program, None)
            if why is not None and each.verdict().life != "alive":
                return f"{each.path} {why.text}: it is left alone, and its rescues are kept."
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
                    with _process.lock:
                        _process.adopted[_canonical_folder(directory)] = run
                        _process.held[folder, run.id] = run


def adopted_folder() -> str | None:
    """The folder from which a library's next training resumes; None: no library resumes."""
    return next(iter(_process.adopted), None)


def allow_resume_from(path: str | None, other_cells: Collection[str] = ()) -> None:
    """
    Let trainings resume from a rescue even if its cell was rewritten.

    Args:
        path: of the rescue; None: of no rescue any more.
        other_cells: normalised texts of cells that did not save it: their trainings are others.
    """
    global _allowed_run, _other_cells
    _other_cells = frozenset(other_cells)
    name = None if path is None else RescueName.parse(os.path.basename(path))
    _allowed_run = None if name is None else name.run


def mark_resumed(path: str) -> None:
    """Remember that this process resumed from the rescue at `path`."""
    with _process.lock:
        _process.resumed.add(path)


@contextmanager
def restoring(beginning: Beginning, path: str) -> Iterator[None]:
    """
    Turn any failure inside the block into an error that names the rescue and the remedy.

    The agent does not contain this error like its other errors: a silent start over would be worse.
    A training that could not be restored has not begun, so the next one takes its place.

    Args:
        beginning: of the training.
        path: of the rescue.

    Raises:
        RescueError: with the failure as its cause.
    """
    try:
        yield
    except RescueError:
        _undo_begin(beginning)
        raise
    except Exception as error:
        _undo_begin(beginning)
        raise RescueError(
            f"The rescue {path} could not be given back to this program ({describe(error)}). "
            "Nothing on disk was changed. To start over: Rescue(..., resume=False)."
        ) from error


def finish(beginning: Beginning) -> None:
    """
    Mark a training as ended well: no run resumes its rescues, or those it resumed from, again.
    """
    folder, run = beginning.directory, beginning.run
    if beginning.follows:
        return
    run.after_fork()  # a child does not finish its parent's training
    with _process.lock:
        _process.places.setdefault(folder, _Place(1)).has_ended = True
        _process.held.pop((folder, run.id), None)
        resumed = set(_process.resumed)
        waiting = {each.run.id for each, _ in _process.ended}
    unmarked: OSError | None = None
    for name in names.complete_rescues(folder):
        path = os.path.join(folder, str(name))
        if name.run == run.id or (path in resumed and name.run not in waiting):
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


def outlasts_its_end(beginning: Beginning, is_near: bool) -> bool:
    """
    Whether a training that has ended may have to be resumed at its end.

    Memory is short, and its program continues: if a later part of it dies, the next run must not
    repeat this training. At a prompt nothing shows the end of a program.

    Args:
        beginning: of the training.
        is_near: whether the limit of its guard is near; else a rescue of it shows short memory.
    """
    if beginning.resume is not True or _is_interactive() or ipython_shell() is not None:
        return False
    saved = names.complete_rescues(beginning.directory)
    return (is_near or any(name.run == beginning.run.id for name in saved)) and (
        "multiprocessing" not in sys.modules
        or sys.modules["multiprocessing"].parent_process() is None
    )


def finish_with_program(beginning: Beginning, path: str) -> None:
    """
    Call `finish` for a training when its program ends well; until then a run resumes it.

    Args:
        beginning: of the training.
        path: of the rescue of its end, which is removed then.
    """
    with _process.lock:
        _process.places.setdefault(beginning.directory, _Place(1)).has_ended = True
        _process.ended.append((beginning, path))
    atexit.unregister(_program_ends)
    atexit.register(_program_ends)


def ends_saved() -> int:
    """How many trainings of this process have a rescue of their end: no run repeats them."""
    return len(_process.ended)


def _program_ends() -> None:
    ended, _process.ended = _process.ended, []
    if getattr(sys, "last_type", None) is None:
        for beginning, path in ended:
            with _guard, suppress(OSError):
                finish(beginning)
                names.remove(path)


def leave(beginning: Beginning) -> None:
    """Release the run of a training that an exception has left, while its process lives."""
    with _process.lock:
        _process.held.pop((beginning.directory, beginning.run.id), None)
    beginning.run.release(remove=False)


def is_of_this_process(path: str) -> bool:
    """Whether this process wrote the rescue at `path`, or resumed from it."""
    name = RescueName.parse(os.path.basename(path))
    if path in _process.resumed or name is None:
        return path in _process.resumed
    folder = os.path.dirname(path)
    held = name.run is not None and run_lock.is_held_by_this_process(folder, name.run)
    return held or name.owner_text == str(this_process())


def _begin(root: str, resume: bool | str, training: Training, *, found: bool) -> Beginning:
    adopted = _process.adopted.pop(root, None) if found else None
    if adopted is not None:
        return Beginning(root, adopted, resume=False)
    program = program_key.program()
    saved = runs.saved_runs(root)
    run_lock.remove_unused(root, {each.run for each in saved if each.run is not None})
    salt = next(_salts(saved), None) or secrets.token_bytes(program_key.SALT_BYTES)
    key = program_key.record(program, training, salt)
    related = _relate_all(saved, resume, program, training)
    finished = frozenset(
        each.saved.run
        for each in related
        if each.relation is Relation.FINISHED and each.saved.run is not None
    )
    left_alone = [each for each in related if each.is_left_alone]
    if found:
        other = [each for each in left_alone if each.relation is Relation.OTHER]
        why = [each.message(starts_over=True) for each in other[-1:]]
        return Beginning(root, runs.start_run(root, key, finished), resume=False, why=why)
    candidates = _candidates(related, resume, program)
    own = _own_run(related)
    if own is not None and (own.relation is Relation.OWN or not candidates):
        held = _continue_own(own.saved, key, finished)
        if held is not None:
            if resume in _CHOICES:
                return Beginning(root, held, resume, own.saved.names)
            return Beginning(root, held, resume, why=_start_over_messages(own, left_alone, resume))
    if program.pooled and training.name is None and resume is not False:
        pooled = "may be of another task of a pool of processes"
        left_alone += [RelatedRun(each.saved, Relation.OTHER, pooled) for each in candidates]
        candidates = []
    while candidates:
        chosen = candidates.pop()
        run = runs.take_over(chosen.saved, key, finished)
        if run is None:
            still_runs = "is of a training that still runs"
            left_alone.append(RelatedRun(chosen.saved, Relation.RUNS, still_runs))
        elif resume is False:
            return Beginning(root, run, resume)
        else:
            notes = _resume_notes(chosen, candidates, program)
            why = [
                each.message(starts_over=False)
                for each in reversed(left_alone)
                if each.relation not in relation.OF_THIS_PROGRAM
            ]
            return Beginning(root, run, resume, chosen.saved.names, why[:_MOST_NAMED], notes)
    why = _start_over_messages(own, left_alone, resume)
    return Beginning(root, runs.start_run(root, key, finished), resume, why=why)


def _relate_all(
    saved: Sequence[SavedRun], resume: bool | str, program: Program, training: Training
) -> list[RelatedRun]:
    if program_key.cell_text(program) in _other_cells:  # the rescue waits for its own cell
        saved = [each for each in saved if each.run is None or each.run != _allowed_run]
    related = (relation.relate(each, program, training, resume, _allowed_run) for each in saved)
    return [each for each in related if each is not None]


def _candidates(
    related: Sequence[RelatedRun], resume: bool | str, program: Program
) -> list[RelatedRun]:
    """The runs that the training may resume, the best last; "force" takes the newest."""
    wanted = (Relation.SAME, Relation.FINISHED) if resume == "newest" else (Relation.SAME,)
    found = [each for each in related if each.relation in wanted]
    if resume == "force":
        return found
    return sorted(found, key=lambda each: _is_preferred(each.saved, program))


def _is_preferred(saved: SavedRun, program: Program) -> bool:
    """Whether a run is unfinished and was started with equal options."""
    return not saved.finished and not program_key.describe_changes(saved.key, program)


def _own_run(related: Sequence[RelatedRun]) -> RelatedRun | None:
    """The newest run that this process began before, best of this same training."""
    for kind in (Relation.OWN, Relation.OWN_OTHER):
        for each in reversed(related):
            if each.relation is kind:
                return each
    return None


def _continue_own(saved: SavedRun, key: dict[str, Any], finished: frozenset[str]) -> Run | None:
    """The run that this process began before; None if another process has taken it since."""
    run = _process.held.get((saved.directory, saved.run or ""))
    if run is None:  # it was released because an exception has left its training
        return runs.take_over(saved, key, finished)
    run.finished_runs = finished
    return run


def _salts(saved: Sequence[SavedRun]) -> Iterator[bytes]:
    """The salts of the keys in a folder. With one salt for all, each argument needs one hash."""
    for each in saved:
        with suppress(KeyError, TypeError, ValueError):
            salt = bytes.fromhex(each.key["arguments"]["salt"])
            if len(salt) == program_key.SALT_BYTES:
                yield salt


def _resume_notes(chosen: RelatedRun, further: Sequence[RelatedRun], program: Program) -> list[str]:
    notes = program_key.describe_changes(chosen.saved.key, program)
    notes += [chosen.text] if chosen.text else []
    return notes + [
        f"another unfinished run of this training waits in {each.saved.path} "
        f"(step {each.saved.names[-1].step})."
        for each in reversed(further)
        if not each.saved.finished and each.saved.run is not None
    ]


def _start_over_messages(
    own: RelatedRun | None, left_alone: Sequence[RelatedRun], resume: bool | str
) -> list[str]:
    """A message for each run that a training leaves alone as it starts over."""
    if resume is False:
        return []
    left_alone = [each for each in left_alone if _is_new(each)]
    lines = [each.message(starts_over=True) for each in reversed(left_alone)]
    if own is not None and resume is True:
        lines.insert(
            0,
            f"{own.saved.path} is of this process, whose variables are newer; it is left alone. "
            'To go back to it: Rescue(..., resume="newest").',
        )
    if len(lines) > _MOST_NAMED:
        more = len(lines) - _MOST_NAMED
        lines[_MOST_NAMED:] = [f"{more} more runs there are left alone. See: watchdog rescues"]
    return lines


def _is_new(left: RelatedRun) -> bool:
    """Whether a run is to be named: a loop over trainings begins many that wait for their turn."""
    path = left.saved.path
    if left.relation not in relation.OF_THIS_PROGRAM:
        return True
    is_new = path not in _process.named and not is_of_this_process(path)
    _process.named.add(path)
    return is_new


def _undo_begin(beginning: Beginning) -> None:
    with _process.lock:
        _process.uncount(beginning)
    leave(beginning)


def _resume_choice(resume: bool | str) -> bool | str:
    return "force" if resume is True and relation.is_forced() else resume


def _canonical_folder(directory: str) -> str:
    return os.path.realpath(os.path.expanduser(directory))  # one folder may have two names


def _turn_key(root: str, name: str | None, site: CallSite | None) -> _TurnKey:
    """The key for counting trainings: threads may start theirs in any order."""
    return root, name or site, program_key.thread_key()[0]


def _is_interactive() -> bool:
    return "ipykernel" in sys.modules or hasattr(sys, "ps1")


def _cell_number() -> object:
    """The number of the running cell, which differs in each run; None outside IPython."""
    return getattr(ipython_shell(), "execution_count", None)
