"""
What the `Rescue` of every loop of the user's own does, whatever the framework.

The framework gives the state that is saved, the passes over the data, and a few words
of its own; see `watchdog_app.agent.torch` and `watchdog_app.agent.tensorflow`.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from watchdog_app.agent.adapters.named import SavedState
from watchdog_app.agent.adapters.passes import UNSEEN, Passes
from watchdog_app.agent.adapters.report import Report, refused_by_strict
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.identity import environment, loop_code
from watchdog_app.agent.identity.audit import Audit
from watchdog_app.agent.identity.keras_facts import Functions
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.loop import LoopWatch
from watchdog_app.agent.oom.micro import FIELD, MicroBatches
from watchdog_app.agent.oom.record import Record
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Capture, Session
from watchdog_app.base.errors import RescueMismatch
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.identity.compare import (
    Decision,
    changed_functions,
    check_verdict,
    compare,
    describe_rescue,
    mismatch,
)
from watchdog_app.rescue.identity.notebook import notebook_path
from watchdog_app.rescue.identity.run import RunIdentity

# Reading the loss waits for the device: as often as it is reported and no more.
_LOSS_EVERY_S = 0.5


class _State(Protocol):
    """The named objects of a loop, as the framework takes and gives them back."""

    lost: list[str]
    identity: RunIdentity

    def build(self, saved: Any) -> None: ...
    def check(self, saved: Any) -> None: ...
    def restore(self, saved: Any) -> None: ...
    def merge_settings(self, saved: Any) -> tuple[str, ...]: ...
    def capture(self) -> Capture: ...
    def not_restored(self) -> list[str]: ...
    def marker(self) -> Any: ...
    def capture_random(self) -> dict[str, Any]: ...
    def restore_random(self, state: Mapping[str, Any]) -> None: ...


S = TypeVar("S", bound=_State)
V = TypeVar("V", bound=SavedState)
P = TypeVar("P", bound=Passes)


class LoopRescue(ABC, Generic[S, V, P]):
    """
    Saves a training loop when memory runs out, and resumes it bit for bit.

    As a context manager: leaving it without an error ends the training well, like `finish()`.
    For use in the one thread that trains.
    """

    framework: ClassVar[str]  # as the daemon is told
    _passes_class: Callable[..., P]
    # Nothing else tells which of a library's functions a loss is computed with.
    _compares_library: ClassVar[bool] = False

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str | None = None,
        resume: bool | str = True,
        keep: int = 2,
        on_oom: str | None = "save",
        strict: bool = False,
        **state: Any,
    ) -> None:
        """
        Restores the newest unfinished rescue of this training, if there is one.

        Args:
            directory: where rescues go; made when missing. A disk, not a tmpfs.
            name: tells this training from others of the program, whatever their order.
            resume: True resumes from an unfinished rescue of this training; False starts over;
                "newest" resumes from its newest rescue, finished or not; "force" from the newest
                unfinished one of whatever training, unless that still runs.
            keep: complete rescues that stay, at least 1.
            on_oom: when the program itself runs out of memory, "save" saves the state after the
                last step as the error leaves it; "shrink" also lets the framework's helper for a
                step (`backward`, `gradients`) go on with parts of a batch; None does nothing.
            strict: raise RescueError at the first step where a resume would not bring everything
                back, in place of saying so.
            state: all that changes while you train, by names of your choice.

        Raises:
            RescueMismatch: the rescue is of another program; the message names the difference.
            RescueError: a part was not given or is not built, or resume="newest" found nothing.
            TypeError: something in `state` cannot be saved.
            ValueError: `name`, `resume`, `keep` or `on_oom` is not one of the choices.
        """
        run_choice.check_arguments(resume, name)
        watch.check_on_oom(on_oom)
        self.directory = os.fspath(directory)
        self.step_number = self.epoch = 0
        self._guard = Guard()
        self._passes = self._passes_class(print_message)
        self._state = self._make_state(state)
        self._saved: V | None = None
        self._report = Report()
        self._loss: float | None = None
        self._next_loss_mono_s = 0.0
        self._loss_wanted = False  # for a report that has gone out without
        self._at_epoch: dict[str, Any] | None = None  # random numbers as it began
        self._is_positioned = False  # epochs() or data() leads the loop to its place
        self._strict = strict
        self._objects = state
        self._loss_functions: Functions | None = (
            None  # that losses are computed with; None: not known
        )
        self._audit_result: list[str] | None = None  # what a resume will not bring back of the loop
        self._beginning = run_choice.begin(self.directory, resume, name=name)
        store = RescueStore(
            self._beginning.directory, keep, report=print_message, run=self._beginning.run
        )
        link = Link(self.framework, store.directory, notebook_path())
        self.micro = MicroBatches()  # what is known of how much of a batch fits
        self._shrinks = on_oom == "shrink"
        self._oom: LoopWatch | None = None
        self._session: Session | None
        self._session = Session(store, link, self._capture, marker=self._state.marker)
        self._session.breakdown.set_objects(state.values())
        run_choice.resume(self._beginning, store, link, self._restore)
        self._session.prepare()
        if on_oom is not None:
            self._oom = LoopWatch(
                self._make_record(), self._passes, self.save, shrinks=self._shrinks
            )
            self._passes.on_begin = self._oom.pass_begun

    @abstractmethod
    def _make_state(self, objects: Mapping[str, Any]) -> S:
        """The state of the named objects; raises what `__init__` does."""

    @abstractmethod
    def _make_record(self) -> Record:
        """Of what a step may change."""

    @abstractmethod
    def _load_saved(self, rescue: LoadedRescue) -> V:
        """A rescue; RescueMismatch where it is no loop of this framework."""

    @abstractmethod
    def _batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass that the training has not had."""

    def _environment_record(self) -> Mapping[str, Any]:
        """What decides whether the last digits are repeated; see `environment.differences`."""
        return environment.record()

    def _after_step(self) -> None:
        """A step has ended, and was saved where that was wanted."""

    def _after_end(self) -> None:
        """The training is over: let go of the framework."""

    @property
    def resumed(self) -> bool:
        """Whether this training resumes from a rescue."""
        return self._saved is not None

    def epochs(self, count: int) -> Iterator[int]:
        """
        The epochs that are still to be trained, of `count` in all; the training ends well
        after the last one. After a `break`, call `finish()`.
        """
        self._is_positioned = True
        if self.resumed and self.epoch >= count:
            reached = f"the rescue is of epoch {self.epoch + 1}, which epochs({count})"
            print_message(f"nothing was trained: {reached} does not reach.")
            self._close()
            return
        for epoch in range(self.epoch, count):
            if epoch != self.epoch:
                self.epoch = epoch
                self._passes.new_epoch()
                if self._session is not None:
                    self._session.reset_step_timer()
            self._capture_epoch_random(epoch)
            yield epoch
        self.finish()

    def data(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """
        The batches of `dataset` that the current epoch has not trained on.

        Args:
            dataset: the framework's own, or any iterable that gives the same batches in the same
                order when the program runs again.

        Raises:
            RescueMismatch: it has another number of batches than the rescue's.
        """
        self._is_positioned = True
        if self._session is not None:
            self._session.breakdown.set_dataset(dataset)
        return self._batches(dataset)

    def enumerate(self, dataset: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        """
        As `set_dataset`, each batch with its number in the whole pass: after a resume too.

        Args:
            dataset: see `set_dataset`.
            start: the number of the first batch of a pass.
        """
        batches = self.data(dataset)
        for batch in batches:
            drawn = self._passes.latest
            yield start + drawn.drawn - 1, batch
            break
        for batch in batches:
            yield start + drawn.drawn - 1, batch

    def step(self, loss: Any = None) -> None:
        """
        A training step has ended: everything in `state` is as it will be for the next one.

        Call it after the optimizer and the scheduler have stepped. `loss`, a number or scalar
        tensor to be reported, is looked at twice a second.

        Raises:
            RescueError: at the first step, with strict=True: a resume would not bring all back.
        """
        if self._audit_result is None:
            self._audit_loop()
        self.step_number += 1
        passes = self._passes
        if not passes.has_stepped:
            passes.step_ended()
        session = self._session
        if session is None:
            return
        due, saved = session.record_step_time(self.step_number), None
        if due or self._loss_wanted:
            self._sample_loss(loss)
        if due:
            saved = session.process_boundary(
                self.step_number, epoch=self.epoch, batch=passes.batch, loss=self._loss
            )
        if self._oom is not None:
            self._oom.stepped()
        self._after_step()
        if saved is not None:
            self._report.not_restored(self._state.lost)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """
        What is done inside is no training step: `with rescue.phase("validate"): ...`.

        The daemon learns what memory it takes, and foretells the next. `name` is "validate",
        "save", "epoch_end", or a word of your own.
        """
        if self._session is not None:
            self._session.phase(name, self.epoch)
        try:
            yield
        finally:
            if self._session is not None:
                self._session.phase("train")
                self._session.reset_step_timer()

    def expect(self, bytes_: int, what: str) -> None:
        """
        Announce memory that the program is about to take: growth up to that is no leak.

        Args:
            bytes_: so much more than now. What was announced last counts; 0 takes it back.
            what: as a person would call it: "the cache of the data set".

        Raises:
            ValueError: `bytes_` is negative.
        """
        if self._session is not None:
            self._session.expect(bytes_, what)

    def save(self, reason: str = "asked by the program") -> str | None:
        """
        Save now, without the daemon having asked; between two steps. Gives the folder of the
        rescue, or None when it could not be saved, which was then said.
        """
        if self._session is None:
            return None
        saved = self._session.save_now(reason, self.step_number)
        if saved is None:
            return None
        self._report.not_restored(self._state.lost)
        return saved.path

    def finish(self) -> None:
        """The training ended well: its rescues are not to be resumed. May be called twice."""
        if self._session is None:
            return
        with self._guard:
            run_choice.finish(self._beginning)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif self._oom is not None and watch.is_out_of_memory(error):
            self._oom.out_of_memory(error)

    def _audit_loop(self) -> None:
        """At the first step: report what a resume will not restore, while that can be fixed."""
        self._audit_result = []
        audit = None
        with self._guard:
            frame = sys._getframe(1)
            audit = Audit(frame, self, self._objects)
            self._loss_functions = loop_code.functions(
                frame, self, self._objects, of_library=self._compares_library
            )
        self._compare_losses()
        if audit is not None:
            self._audit_result = audit.lost()
        if audit is None or not audit.reads_position:
            if self.resumed and not self._is_positioned:
                self._report_not_placed()
            if not self._passes.begun:
                self._audit_result.insert(0, UNSEEN)
        lost = [*self._audit_result, *self._state.not_restored()]
        if lost and self._strict:
            self._close()
            raise refused_by_strict(lost)
        self._report.not_restored(lost)
        if self._session is not None:
            self._session.report_not_restored(lost)

    def _report_not_placed(self) -> None:
        """Report that the finished batches are not skipped, as the loop draws its own."""
        print_message(
            "this loop uses neither rescue.epochs() nor rescue.data(), so the batches that the "
            f"rescue has had are not skipped: {self.step_number} steps are done, in epoch "
            f"{self.epoch + 1}. Begin after them (rescue.step_number, rescue.epoch), or take the "
            "batches from rescue.data(dataset)."
        )

    def _compare_losses(self) -> None:
        """Raise RescueMismatch where the functions behind the losses compute something else."""
        saved = None if self._saved is None else self._saved.meta.get("identity", {}).get("losses")
        if isinstance(saved, list) and self._loss_functions is not None:
            found: list[str] = []
            with self._guard:
                found = list(changed_functions(saved, self._loss_functions))
            if found:
                self._refuse(found)

    def _sample_loss(self, loss: Any) -> None:
        """Read the loss, at most twice a second; None: read the next one."""
        self._loss_wanted = loss is None
        now = time.monotonic()
        if loss is not None and now >= self._next_loss_mono_s:
            self._next_loss_mono_s = now + _LOSS_EVERY_S
            with self._guard:
                self._loss = float(loss.detach() if hasattr(loss, "detach") else loss)

    def _capture_epoch_random(self, epoch: int) -> None:
        """
        Keep the random numbers of the epoch's beginning, which it may draw an order from. In the
        epoch of a rescue they are put back, and its own when the data stands at its place.
        """
        saved = self._saved
        if saved is not None and epoch == saved.position["epoch"]:
            before = saved.position.get("at_epoch")
            if before is not None:
                with run_choice.restoring(saved.path):
                    self._state.restore_random(before)
        with self._guard:
            self._at_epoch = self._state.capture_random()

    def _close(self) -> None:
        session, self._session = self._session, None
        if self._oom is not None:
            self._oom.end()
        if session is not None:
            self._after_end()
            session.end()

    def _capture(self) -> Capture:
        """The state, with what is known here."""
        capture = self._state.capture()
        lost = self._state.lost  # the same list as in what is saved
        lost.extend(self._audit_result or ())
        if self._oom is not None:
            lost.extend(self._oom.inexact)
        identity = {**capture.meta["identity"], "losses": self._loss_functions}
        meta = {**capture.meta, "identity": identity, FIELD: self.micro.size}
        return replace(capture, meta=meta)

    def _restore(self, rescue: LoadedRescue) -> None:
        saved = self._load_saved(rescue)
        self._state.build(saved)
        said = self._check_fit(rescue, saved)
        self._state.restore(saved)
        said += self._state.merge_settings(saved)
        epoch = saved.position["epoch"]
        self.epoch = int(epoch or 0)
        self._passes.forced = self._beginning.resume == "force"
        self._passes.continue_from(saved.position["passes"])
        self.micro.restore_size(saved.meta)
        changed = environment.differences(saved.meta["environment"], self._environment_record())
        self._saved = saved
        self.step_number = rescue.step
        place = "epoch not known: the epochs begin at 1" if epoch is None else f"epoch {epoch + 1}"
        self._report.resumed(rescue, place, said, changed)

    def _restore_at_position(self) -> None:
        """Restore the state again once the data is at its place, before the next step."""
        if self._saved is not None and not self._passes.has_stepped:
            with run_choice.restoring(self._saved.path):
                self._state.restore(self._saved)
                self._state.merge_settings(self._saved)

    def _check_fit(self, rescue: LoadedRescue, saved: V) -> list[str]:
        """What is to be said of the differences; raises RescueMismatch where it does not fit."""
        verdict = compare(saved.meta.get("identity"), self._state.identity)
        shown = describe_rescue(rescue.path, rescue.step, rescue.created_unix_s)
        try:
            self._state.check(saved)
        except RescueMismatch as error:
            found = (*verdict.texts(Decision.REFUSE), *error.differences)
            raise mismatch(shown, found, may_be_forced=False) from None
        return check_verdict(verdict, shown, forced=self._beginning.resume == "force")

    def _refuse(self, found: list[str]) -> None:
        """Raise RescueMismatch for what the first steps have shown, or say it where forced."""
        if self._beginning.resume != "force" and self._saved is not None:
            self._close()
            raise mismatch(self._saved.path, found)
        print_message(f'resume="force" resumes although {"; ".join(found)}.')

    def _position(self, *passes: Any) -> dict[str, Any]:
        """Where the loop stands, as JSON, for the state that is being taken."""
        return {
            "epoch": self.epoch,
            "batch": self._passes.batch,
            "passes": self._passes.position(*passes),
            # Without a pass nobody would say when the loop is back at its place.
            "at_epoch": self._at_epoch if self._passes.begun else None,
        }
