"""
What a run in a folder of rescues is to the training that begins.

The key of a run (`program_key`) shows whether it is of this program and training, its lock whether
its owner lives. Runs that a training leaves alone are named in a message with the remedy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum, auto

from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint import names, run_lock
from watchdog_app.rescue.checkpoint.format import FORMAT_VERSION
from watchdog_app.rescue.checkpoint.run_lock import Verdict
from watchdog_app.rescue.checkpoint.runs import SavedRun
from watchdog_app.rescue.identity import program_key
from watchdog_app.rescue.identity.program_key import Mismatch, Program, Training

RESUME = "WATCHDOG_AGENT_RESUME"


class Relation(Enum):
    """What a run is to the training that begins."""

    SAME = auto()  # of this training, and its owner has ended
    FINISHED = auto()  # of this training, which ended well
    OWN = auto()  # of this training, held by this process
    OWN_OTHER = auto()  # of this program, held by this process; the user may go back to it
    # left alone:
    CLOSED = auto()  # of this training, whose kernel the user ended
    RUNS = auto()
    FOREIGN_LOCK = auto()
    FOREIGN_USER = auto()  # never trusted, not even with "force"
    OTHER_TRAINING = auto()  # of this program
    LATER_TRAINING = auto()  # of this program, which begins it after this one
    OTHER = auto()


OF_THIS_PROGRAM = (Relation.OTHER_TRAINING, Relation.LATER_TRAINING)
_FORCE = f'If it is the same training: Rescue(..., resume="force") or {RESUME}=force.'
_APART = 'To keep trainings apart for good, give each a folder or a name: Rescue(..., name="...").'
_REMEDIES = {
    Relation.CLOSED: (
        ": it is left alone{over}. To resume from it: watchdog.resume(), or "
        'Rescue(..., resume="newest").'
    ),
    Relation.RUNS: (
        ": it is left alone{over}. To resume from it, end that process first. " + _APART
    ),
    Relation.FOREIGN_LOCK: ": it is left alone. To resume from it, remove {lock}.",
    Relation.FOREIGN_USER: ": to resume from it, copy it yourself.",
    Relation.OTHER_TRAINING: f" and waits for it: it is left alone. {_FORCE} {_APART}",
    Relation.LATER_TRAINING: ", which resumes there; those before it train again.",
    Relation.OTHER: f": it is left alone, and its rescues are kept. {_FORCE}",
}


@dataclass(frozen=True, slots=True)
class RelatedRun:
    """A run and what it is to the training that begins."""

    saved: SavedRun
    relation: Relation
    # of a run left alone: the reason, a phrase; else a sentence to print when it is resumed
    text: str = ""

    @property
    def is_left_alone(self) -> bool:
        """Whether this training must not take it."""
        return self.relation in _REMEDIES

    def message(self, *, starts_over: bool) -> str:
        """One line about a run that is left alone, and what the user can do."""
        remedy = _REMEDIES[self.relation].format(
            over=" and this training starts over" if starts_over else "",
            lock=run_lock.lock_path(self.saved.directory, self.saved.run or ""),
        )
        return f"{self.saved.path} {self.text}{remedy}"


def relate(
    saved: SavedRun,
    program: Program,
    training: Training,
    resume: bool | str,
    allowed_run: str | None = None,
) -> RelatedRun | None:
    """
    What a run is to the training that begins; None: nothing, and no message needs to name it.

    Args:
        saved: the run.
        program: of this process.
        training: that begins now.
        resume: which runs are allowed, see `run_choice.begin`.
        allowed_run: id of a run that counts as this training's, whatever its key.
    """
    if names.is_other_users(saved.directory, saved.names[-1]):
        return RelatedRun(saved, Relation.FOREIGN_USER, "was put there by another user")
    allowed = saved.run is not None and saved.run == allowed_run
    mismatch = None if allowed else other_training_reason(saved, program, training)
    if saved.finished:
        if mismatch is None:
            return RelatedRun(saved, Relation.FINISHED)
        return _other(saved, mismatch) if resume == "newest" else None
    if saved.is_held_by_this_process:
        if mismatch is None:
            return RelatedRun(saved, Relation.OWN)
        goes_back = resume in ("newest", "force")
        if goes_back and other_training_reason(saved, program, None) is None:
            return RelatedRun(saved, Relation.OWN_OTHER)
        return None
    verdict = saved.verdict()
    if verdict.life == "alive":
        if verdict.is_lock_foreign:
            reason = "has a lock that is no file of this user"
            return RelatedRun(saved, Relation.FOREIGN_LOCK, reason)
        return RelatedRun(saved, Relation.RUNS, _alive_reason(verdict))
    closed = saved.run_record.get("closed") is True and not allowed
    if mismatch is None and closed and resume is True:
        reason = "was saved when its kernel was shut down or restarted"
        return RelatedRun(saved, Relation.CLOSED, reason)
    if mismatch is None or resume == "force" or saved.needs_decision:
        return RelatedRun(saved, Relation.SAME, _resume_note(saved, program, mismatch, verdict))
    return _other(saved, mismatch)


def is_forced() -> bool:
    """Whether the environment asks to resume in spite of differences."""
    return os.environ.get(RESUME, "").strip().lower() == "force"


def other_training_reason(
    saved: SavedRun, program: Program, training: Training | None
) -> Mismatch | None:
    """
    Why a run belongs to another training; None: it is this one.

    Args:
        saved: the run.
        program: of this process.
        training: that begins now; None: any training of this program.
    """
    if saved.run is None:
        return Mismatch("was saved by an earlier watchdog, which noted no program")
    if saved.run_record.get("id") != saved.run:
        return Mismatch(saved.problem or "does not say whose it is")
    if saved.format_version < FORMAT_VERSION:
        return Mismatch("was saved by an earlier watchdog, which noted too little of its program")
    moved = moved_from(saved, program) is not None
    key = program_key.relocate(saved.key, program) if moved else saved.key
    return program_key.mismatch_reason(key, program, training)


def moved_from(saved: SavedRun, program: Program) -> str | None:
    """The old path of the program if it was moved together with its rescues; else None."""
    before, now = saved.key.get("path"), program.path
    directory = saved.run_record.get("directory")
    if not isinstance(before, str) or not isinstance(directory, str) or now in (None, before):
        return None
    beside = os.path.relpath(before, directory) == os.path.relpath(now, saved.directory)
    return before if beside and not os.path.lexists(before) else None


def _other(saved: SavedRun, mismatch: Mismatch) -> RelatedRun:
    kind = Relation.OTHER_TRAINING if mismatch.same_program else Relation.OTHER
    kind = Relation.LATER_TRAINING if mismatch.is_later else kind
    return RelatedRun(saved, kind, mismatch.text)


def _alive_reason(verdict: Verdict) -> str:
    if verdict.silent_s is None:
        return f"is of {verdict.owner_label}, which still runs"
    ago = format_duration(verdict.silent_s)
    wait = format_duration(max(0.0, run_lock.SILENT_S - verdict.silent_s))
    return (
        f"is of {verdict.owner_label}, seen {ago} ago, which may still run (if it does not, it can "
        f"be resumed in {wait})"
    )


def _resume_note(
    saved: SavedRun, program: Program, mismatch: Mismatch | None, verdict: Verdict
) -> str:
    """A sentence about the run that is resumed; empty if there is nothing to say."""
    if mismatch is not None:
        return f'{saved.path} {mismatch.text}; resume="force" resumes from it.'
    if verdict.life == "left" and verdict.owner is not None:
        ago = format_duration(verdict.silent_s or 0.0)
        return f"{saved.path} was left {ago} ago by {verdict.owner_label}."
    before = moved_from(saved, program)
    if before is None:
        return ""
    return (
        f"{before} and its rescues have moved to {program.path}: this is taken for the same "
        "program."
    )
