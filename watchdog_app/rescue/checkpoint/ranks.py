"""
Save one training that runs in several processes ("ranks") at a common step, without a collective.

Small files in a folder next to the rescues carry the agreement, also over a shared file system:

    .ranks-OWNER-N/order     the step to save at, and the reason
    .ranks-OWNER-N/rank-K    what rank K did about the newest order that it saw

Any rank may order. Each rank looks at every step boundary, and acknowledges an order before its
step. At that step each rank waits until all have acknowledged. A rank that saw the order too late
says so: the others stop waiting, and the next order names a step further ahead. All waiting has a
deadline, and ends at once if a rank is known to have ended.

Rank 0 writes the rescue. The others write their parts, in folders `rank-K` inside of it: what
differs from the tensors of rank 0. Rank 0 gives the rescue its name when it has every part, so a
rescue with a name is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from watchdog_app.base.durable import make_folders, open_nonblocking
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import format, names
from watchdog_app.rescue.checkpoint.format import MANIFEST_FILE, TensorEntry
from watchdog_app.rescue.checkpoint.owner import Owner, this_process
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.checkpoint.stream import Progress

# What a rank says about an order.
_SEEN, _LATE, _LEFT = "seen", "late", "left"
_WRITING, _WRITTEN = "writing", "written"

_DEADLINE_S = 10.0  # without any news of the ranks that are waited for
_POLL_S = 0.005
_ORDER = "order"
_NEWS_EVERY_S = 1.0  # of a rank that writes
_FRESH_EVERY_S = 600.0  # other machines remove a folder that looks abandoned
_AHEAD = 2  # one is enough for ranks that share gradients in each step
_LONG_STEP_S = 0.5
_MOST_BYTES = 65536  # of one file

Report = Mapping[str, Any]


class _TooLate(RescueError):
    """A rank was past the ordered step when it saw the order."""


class Ranks:
    """
    The agreement of one rank with the others; only the thread that trains uses it.

    Attributes:
        rank, count: of this process, and of all.
        reason: of the last order.
    """

    def __init__(self, folder: str, rank: int, count: int, *, sharded: bool) -> None:
        """
        Args:
            folder: the result of `make_folder` in rank 0.
            rank: of this process, from 0.
            count: number of processes.
            sharded: whether each rank holds other parts of the tensors. If not, a rank writes only
                those that differ from rank 0's.
        """
        self.rank, self.count = rank, count
        self.reason = ""
        self._folder = folder
        self._sharded = sharded
        self._step: int | None = None  # of the open order
        self._closed = -1  # the last step whose order is over
        self._ahead = _AHEAD  # steps between an order and its step
        self._outcome: tuple[int, SavedRescue | RescueError] = (-1, RescueError(""))
        self._next_fresh_s = 0.0
        self._tell(-1, _SEEN)

    @staticmethod
    def make_folder(directory: str) -> str:
        """
        Make the folder of a new training in a folder of rescues; rank 0 calls it.

        Raises:
            OSError: the folder cannot be written.
        """
        folder = os.path.join(directory, names.ranks_name())
        make_folders(folder, 0o700)
        _write(os.path.join(folder, _ORDER), {"step": -1}, "new")
        return folder

    def reached(self, step: int, wanted: str | None, step_s: float | None = None) -> bool:
        """
        Whether to save at this boundary: all ranks stop at it for the same order.

        If not all ranks came in time, `save` raises the reason.

        Args:
            step: that has ended.
            wanted: why this rank is asked to save; None: it is not asked.
            step_s: usual time of a step; None: unknown.
        """
        self._look(step)
        if self._step is None and wanted is not None:
            # Two long steps may not end before the deadline of a signal.
            at_once = self._ahead == _AHEAD and step_s is not None and step_s >= _LONG_STEP_S
            self._order(step + (1 if at_once else self._ahead), wanted)
        if self._step is None or step < self._step:
            return False
        try:
            self._gather(step)
        except _TooLate:
            self._leave(step, None)
            return False  # a rank that was asked orders again
        except RescueError as error:
            self._leave(step, error)
            return True
        return self._step == step

    def order_here(self, step: int, reason: str) -> None:
        """Order this step, and wait for all: the program saves in each rank at this boundary."""
        self._look(step, here=True)
        if step <= self._closed:
            return
        if self._step != step:
            self._order(step, reason, here=True)
        try:
            self._gather(step)
        except RescueError as error:
            why = f"{error} A program that calls save() calls it in every process."
            self._leave(step, RescueError(why))
            return
        if self._step != step:
            self._leave(step, RescueError(f"Another step than {step} was ordered meanwhile."))

    def save(
        self,
        store: RescueStore,
        entries: Sequence[TensorEntry],
        meta: Mapping[str, Any],
        step: int,
    ) -> SavedRescue:
        """
        Save with the other ranks, after `reached`; a second call at a step returns the same.

        Raises:
            RescueError: a rank did not come or did not write its part; nothing was saved.
            Exception: see `RescueStore.save`.
        """
        at, outcome = self._outcome
        if at != step:
            meta = {**meta, format.RANKS: self.count}
            try:
                if self.rank == 0:
                    outcome = self._save_whole(store, entries, meta, step)
                else:
                    outcome = self._save_part(store, entries, meta, step)
            except Exception as error:
                problem = error if isinstance(error, RescueError) else RescueError(str(error))
                self._close(step, problem)
                self._tell(step, _LEFT, why=str(error))
                raise
            self._close(step, outcome)
        elif isinstance(outcome, SavedRescue):
            outcome = replace(outcome, seconds=0.0)
        if isinstance(outcome, RescueError):
            raise outcome
        return outcome

    def end(self) -> None:
        """Say that this rank trains no longer; rank 0 removes the folder."""
        with suppress(OSError):
            self._tell(-1, _LEFT)
        if self.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _look(self, step: int, *, here: bool = False) -> None:
        """
        Read the newest order, and say whether it came in time.

        Args:
            step: that has ended.
            here: whether the program saves at this place; it is after the boundary of the step.
        """
        now = time.monotonic()
        if self.rank == 0 and now >= self._next_fresh_s:
            self._next_fresh_s = now + _FRESH_EVERY_S
            os.utime(self._folder)
        found = _read(os.path.join(self._folder, _ORDER))
        ordered = int(found.get("step", -1))
        if ordered == self._step or ordered <= self._closed:
            return
        if ordered == step and found.get("here") and not here:
            return  # the program of this process is about to save
        self.reason = str(found.get("reason", ""))
        if ordered < step:
            self._close(ordered, None)
            self._tell(ordered, _LATE, at=step)
        else:
            self._step = ordered
            self._tell(ordered, _SEEN)

    def _order(self, step: int, reason: str, *, here: bool = False) -> None:
        order = {"step": step, "reason": reason, "here": here}
        _write(os.path.join(self._folder, _ORDER), order, str(self.rank))
        self.reason = reason
        self._step = step
        self._tell(step, _SEEN)

    def _gather(self, step: int) -> None:
        """
        Wait at the ordered step until every rank has acknowledged the order.

        Another order may replace this one meanwhile; then `_step` changes.

        Raises:
            RescueError: a rank does not come.
        """

        def has_come(report: Report) -> bool:
            if self._step == step:
                self._look(step, here=True)
            return self._step != step or report.get("step") == step

        try:
            self._wait(step, range(self.count), has_come, "did not reach")
        except _TooLate:
            raise
        except RescueError:
            self._ahead *= 2  # the ranks may be further apart than an order was ahead
            raise

    def _leave(self, step: int, why: RescueError | None) -> None:
        self._close(step, why)
        self._tell(step, _LEFT, **({} if why is None else {"why": str(why)}))

    def _close(self, step: int, outcome: SavedRescue | RescueError | None) -> None:
        self._step = None
        self._closed = max(self._closed, step)
        if outcome is not None:
            self._outcome = step, outcome

    def _save_whole(
        self,
        store: RescueStore,
        entries: Sequence[TensorEntry],
        meta: Mapping[str, Any],
        step: int,
    ) -> SavedRescue:
        others = range(1, self.count)
        size = 0

        def complete(folder: str) -> None:
            nonlocal size
            self._tell(step, _WRITTEN, folder=os.path.basename(folder))
            reports = self._wait(
                step, others, lambda each: _is(each, step, _WRITTEN), "did not save"
            )
            size = sum(int(each["bytes"]) for each in reports)
            if not all(os.path.isdir(os.path.join(folder, names.rank_name(k))) for k in others):
                raise RescueError("A rank has written its part elsewhere.")

        saved = store.save(entries, meta, self._with_news(step), step=step, complete=complete)
        saved = replace(saved, bytes=saved.bytes + size)
        self._close(step, saved)
        self._tell(step, _WRITTEN)
        return saved

    def _save_part(
        self,
        store: RescueStore,
        entries: Sequence[TensorEntry],
        meta: Mapping[str, Any],
        step: int,
    ) -> SavedRescue:
        news = self._with_news(step)
        part: str | None = None
        checksums: list[int] = []
        if self._sharded:
            part = store.write_part(entries, meta, step, news)
        else:
            checksums = [zlib.crc32(each.view()) if each.nbytes else 0 for each in entries]
        try:
            (whole,) = self._wait(
                step,
                (0,),
                lambda each: _is(each, step, _WRITTEN) or _is_saved(each, step),
                "did not save",
            )
            if not _is_saved(whole, step):
                folder = os.path.join(store.directory, str(whole["folder"]))
                if part is None:
                    differing = _differing(folder, entries, checksums)
                    part = store.write_part(differing, meta, step, news)
                size = sum(each.stat().st_size for each in os.scandir(part))
                os.rename(part, os.path.join(folder, names.rank_name(self.rank)))
                self._tell(step, _WRITTEN, bytes=size)
        finally:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
        (whole,) = self._wait(step, (0,), lambda each: _is_saved(each, step), "did not complete")
        saved = dict(whole["saved"])
        saved["path"] = os.path.join(store.directory, os.path.basename(str(saved["path"])))
        return SavedRescue(**{**saved, "missing": tuple(saved["missing"])})

    def _with_news(self, step: int) -> Progress:
        """Say now and then that this rank still writes."""
        next_s = 0.0

        def report(done: int, _: int) -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + _NEWS_EVERY_S
                self._tell(step, _WRITING, done=done)

        return report

    def _tell(self, step: int, state: str, **more: Any) -> None:
        """Tell the others, also which save was the last: a rank may read that later."""
        at, outcome = self._outcome
        if isinstance(outcome, SavedRescue) and self.rank == 0:
            more["saved_at"], more["saved"] = at, asdict(outcome)
        report = {"step": step, "state": state, "owner": str(this_process()), **more}
        _write(os.path.join(self._folder, names.rank_name(self.rank)), report, "new")

    def _wait(
        self, step: int, ranks: Collection[int], ready: Callable[[Report], bool], failing: str
    ) -> list[Report]:
        """
        Wait for other ranks; the deadline counts polls, because a guard may stop this process.

        Raises:
            RescueError: a rank has failed, ended, or said nothing new for the deadline.
        """
        others = [rank for rank in ranks if rank != self.rank]
        before: list[Report] = []
        left = polls = int(_DEADLINE_S / _POLL_S)
        while True:
            reports = [_read(os.path.join(self._folder, names.rank_name(rank))) for rank in others]
            for each in reports:
                self._check_left(step, each)
            waiting = [at for at, each in enumerate(reports) if not ready(each)]
            if not waiting:
                return reports
            left = left - 1 if reports == before else polls
            before = reports
            for at in waiting:
                owner = Owner.parse(str(reports[at].get("owner")))
                who = f"Rank {others[at]}" + (f" (pid {owner.pid})" if owner else "")
                if reports[at].get("step") == -1 and reports[at].get("state") == _LEFT:
                    raise RescueError(f"{who} trains no longer, so step {step} was not saved.")
                if owner is not None and owner.alive is False:
                    raise RescueError(f"{who} has ended, so step {step} was not saved.")
                if left <= 0:
                    raise RescueError(f"{who} {failing} step {step} within {_DEADLINE_S:g} s.")
            time.sleep(_POLL_S)

    def _check_left(self, step: int, report: Report) -> None:
        """
        Raises:
            RescueError: another rank has given up this step, or was late (`_TooLate`).
        """
        if report.get("step", -1) > step and not _is_saved(report, step):
            raise _TooLate(f"A rank does not save step {step}.")
        if _is(report, step, _LATE):
            # Two round trips from now on.
            self._ahead = max(self._ahead, 2 * (int(report["at"]) - step) + self._ahead)
            raise _TooLate(f"A rank was past step {step} when it saw the order to save.")
        if _is(report, step, _LEFT):
            raise (
                RescueError(str(report["why"])) if report.get("why") else _TooLate("It was late.")
            )


def _is(report: Report, step: int, state: str) -> bool:
    return (report.get("step"), report.get("state")) == (step, state)


def _is_saved(report: Report, step: int) -> bool:
    """Whether rank 0 has completed the rescue of a step."""
    return report.get("saved_at") == step


def _differing(
    folder: str, entries: Sequence[TensorEntry], checksums: Sequence[int]
) -> list[TensorEntry]:
    """The tensors that are not the same in rank 0, whose files are in `folder`."""
    with open(os.path.join(folder, MANIFEST_FILE), "rb") as file:
        manifest = format.read_manifest(file.read())
    known = manifest.layout.tensors()
    return [
        each
        for each, checksum in zip(entries, checksums, strict=True)
        if each.name not in known
        or (known[each.name].dtype, known[each.name].shape) != (each.dtype, each.shape)
        or (each.nbytes and manifest.crc32[each.name] != checksum)
    ]


def _write(path: str, content: Report, unique: str) -> None:
    """Replace a file; `unique` names the writer, as ranks of other machines write too."""
    temporary = f"{path}.{unique}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(temporary, path)


def _read(path: str) -> Report:
    """The content of a file; opening it also shows what another machine has just written."""
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
