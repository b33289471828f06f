"""
The base class of `Rescue` for a user's own training loop, independent of the framework.

Each framework adds the saved state, the passes over the data, and a few texts: see
`watchdog_app.agent.torch` and `watchdog_app.agent.tensorflow`.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from types import CodeType, FrameType, TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from watchdog_app.agent.adapters.named import NamedState, SavedState
from watchdog_app.agent.adapters.passes import UNSEEN, Passes
from watchdog_app.agent.adapters.report import Report, refused_by_strict
from watchdog_app.agent.adapters.together import Together
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.identity import code, environment, loop_code
from watchdog_app.agent.identity.audit import Audit
from watchdog_app.agent.identity.keras_facts import Functions
from watchdog_app.agent.identity.loop_steps import count_steps, numbers_around
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.loop import LoopWatch
from watchdog_app.agent.oom.micro import FIELD, MicroBatches
from watchdog_app.agent.oom.record import Record
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.state.values import put_back, without_graph
from watchdog_app.base import signals
from watchdog_app.base.errors import RescueError, RescueMismatch
from watchdog_app.rescue.checkpoint.format import Capture
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

# Reading the loss waits for the device, so read it only as often as the agent reports it.
_LOSS_EVERY_S = 0.5


S = TypeVar("S", bound=NamedState)
V = TypeVar("V", bound=SavedState)
P = TypeVar("P", bound=Passes)


class LoopRescue(ABC, Generic[S, V, P]):
    """
    Saves a training loop when memory runs out, and resumes it bit for bit.

    As a context manager it calls `finish()` at an exit without an error. Only the thread that
    trains may use it.
    """

    framework: ClassVar[str]  # the name that the daemon gets
    _newest: ClassVar[Callable[[], LoopRescue[Any, Any, Any] | None]] = lambda: None
    _passes_class: Callable[..., P]
    # Whether the identity includes the library function that computes a loss, because nothing else
    # in the identity shows it.
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
        save_on: Sequence[str] = (),
        **state: Any,
    ) -> None:
        """
        Restore the newest unfinished rescue of this training, if one exists.

        Args:
            directory: the folder for rescues, created if missing; on a disk, not on a tmpfs.
            name: distinguishes this training from others of the program, in any order.
            resume: True resumes from an unfinished rescue of this training. False starts over.
                "newest" resumes from its newest rescue, finished or not. "force" resumes from the
                newest unfinished rescue of any training that does not run any more.
            keep: number of complete rescues to keep, at least 1.
            on_oom: "save" saves the state after the last step if the program itself runs out of
                memory. "shrink" also lets the framework's helper for a step (`backward`,
                `gradients`) continue with parts of a batch. None does nothing.
            strict: whether to raise RescueError at the first step if a resume would not restore
                everything, instead of printing that.
            save_on: names of signals to save at, besides SIGTERM and SIGHUP, such as "USR1".
            state: all objects that change during the training, by names of your choice.

        Raises:
            RescueMismatch: the rescue is of another program; the message names the difference.
            RescueError: a part was not given or is not built, or resume="newest" found nothing.
            TypeError: an object in `state` cannot be saved.
            ValueError: an argument has a value that is not allowed.
        """
        run_choice.check_arguments(resume, name)
        watch.check_on_oom(on_oom)
        save_at = signals.parse(save_on)
        self.directory = os.fspath(directory)
        self.step_number = self.epoch = 0
        self._number: int | None = None  # the program's number for the epoch
        self._counts_epochs = False  # whether the loop uses epochs()
        makers = code.program_frames(sys._getframe(1), 1)
        self._made_in = next((each.f_code for each in makers), None)
        self._saved_epoch: int | None = None  # of the rescue; None: unknown
        self._guard = Guard()
        self._passes = self._passes_class(print_message)
        self._state = self._make_state(state)
        self._saved: V | None = None
        self._report = Report()
        self._loss: float | None = None
        self._next_loss_mono_s = 0.0
        self._loss_wanted = False  # whether the last report had no loss
        self._at_epoch: dict[str, Any] | None = None  # random states at the epoch's start
        self._is_positioned = False  # whether the loop uses epochs() or data()
        self._strict = strict
        self._objects = state
        self._variables: dict[str, Any] = {}  # given to step() and variables(), by keyword
        self._saved_variables: dict[str, Any] = {}  # of the rescue, before the first step
        self._places: set[tuple[CodeType, int]] = set()  # that have got the saved variables
        self._loss_functions: Functions | None = (
            None  # functions that compute losses; None: unknown
        )
        # Values of the loop that a resume will not restore, as texts; None before the first step.
        self._audit_result: list[str] | None = None
        together = self._together()
        self._follows = together is not None and together.rank > 0  # rank 0 owns the run
        if self._follows:
            self._beginning = run_choice.follow(self.directory)
        else:
            self._beginning = run_choice.begin(self.directory, resume, name=name)
        run = None if self._follows else self._beginning.run
        store = RescueStore(self._beginning.directory, keep, report=print_message, run=run)
        link = Link(self.framework, store.directory, notebook_path())
        link.ignores_sigterm = together is not None and together.ignores_sigterm
        self.micro = MicroBatches()  # the size of parts of a batch that fits, as far as known
        self._shrinks = on_oom == "shrink"
        self._oom: LoopWatch | None = None
        self._session: Session | None
        self._session = Session(
            store, link, self._capture, marker=self._state.marker, save_on=save_at
        )
        self._session.count_steps = partial(count_steps, self._passes)
        self._session.breakdown.set_objects(state.values())
        choose = run_choice.choose_alone if together is None else together.choose
        run_choice.resume(self._beginning, store, link, self._restore, choose)
        if together is not None:
            self._session.ranks = together.ranks(sharded=self._state.sharded)
        self._session.prepare()
        if on_oom is not None and together is None:
            self._oom = LoopWatch(
                self._make_record(), self._passes, self.save, shrinks=self._shrinks
            )
            self._passes.on_begin = self._oom.pass_begun
        LoopRescue._newest = weakref.ref(self)

    @classmethod
    def current(cls) -> Self:
        """
        The newest Rescue of this process, for functions in other modules than the one that made it.

        Raises:
            RescueError: there is none.
        """
        found = LoopRescue._newest()
        if not isinstance(found, cls):
            raise RescueError("Rescue.current() was called before the program made a Rescue(...).")
        return found

    @abstractmethod
    def _make_state(self, objects: Mapping[str, Any]) -> S:
        """Make the state of the named objects; raises the errors of `__init__`."""

    @abstractmethod
    def _make_record(self) -> Record:
        """Make the record of the values that a step may change."""

    @cached_property
    def _record_for_parts(self) -> Record:
        """The record that a batch in parts is repeated from."""
        return self._make_record()

    @abstractmethod
    def _load_saved(self, rescue: LoadedRescue) -> V:
        """Open a rescue; raises RescueMismatch if it is not of a loop of this framework."""

    @abstractmethod
    def _batches(self, dataset: Any) -> Iterator[Any]:
        """The batches of a pass that the training has not trained on."""

    def _together(self) -> Together | None:
        """The agreement with the other processes of this training; None: there are none."""
        return None

    def _environment_record(self) -> Mapping[str, Any]:
        """Facts that decide whether the last digits repeat; see `environment.differences`."""
        return environment.record()

    def _unread_random(self, frame: FrameType) -> list[str]:  # noqa: ARG002
        """Random numbers of the loop's functions that a resume will not restore, as texts."""
        return []

    def _after_step(self) -> None:
        """Handle the end of a step, after a save if one was due."""

    def _after_end(self) -> None:
        """Remove the hooks in the framework when the training is over."""

    @property
    def _known_epoch(self) -> int | None:
        return self.epoch if self._counts_epochs else None

    @property
    def resumed(self) -> bool:
        """Whether this training resumes from a rescue."""
        return self._saved is not None

    def epochs(
        self, count: int | range, *, steps: int | Iterable[Any] | None = None
    ) -> Iterator[int]:
        """
        The epochs that remain to train.

        After the last one the training is finished. After a `break`, call `finish()`.

        Args:
            count: number of epochs, or the numbers of all epochs: `range(1, 11)`.
            steps: steps of an epoch, or what an epoch reads, a step for each item. A rescue of a
                loop that reads no data set has no epoch; then its steps say where to resume.

        Raises:
            RescueMismatch: the rescue of a detected loop is of an epoch that these do not reach.
        """
        self._is_positioned = self._counts_epochs = True
        numbers = range(count) if isinstance(count, int) else count
        if self._saved is not None and self._saved.position["epoch"] is None:
            if steps is None:
                print_message("the rescue does not know its epoch: without steps=, it begins at 1.")
            else:
                self._place_by_steps(steps)
        self._find_epoch(numbers)
        if self.resumed and self.epoch >= len(numbers):
            found = f"the rescue is of epoch {self.epoch + 1}, which epochs({count}) does not reach"
            is_of_lines = self._saved is not None and "found" in self._saved.meta
            if is_of_lines and (self._saved_epoch is not None or self._passes.first_batch):
                self._refuse([f"{found}: nothing would be trained"])
            print_message(f"nothing was trained: {found}.")
            self._close()
            return
        for epoch in range(self.epoch, len(numbers)):
            if epoch != self.epoch:
                self.epoch = epoch
                self._passes.new_epoch()
                if self._session is not None:
                    self._session.reset_step_timer()
            self._capture_epoch_random(epoch)
            self._number = numbers[epoch]
            yield self._number
        self.finish()

    def _find_epoch(self, numbers: range) -> None:
        """
        Find the epoch of the rescue among the program's numbers, which may begin later now.

        Raises:
            RescueMismatch: they begin behind it: the program has loaded a newer checkpoint.
        """
        number = None if self._saved is None else self._saved.position.get("number")
        if type(number) is not int or not numbers or self._passes.has_stepped:
            return
        if number in numbers:
            self._saved_epoch = self.epoch = numbers.index(number)
        elif number < numbers[0] and numbers.step == 1:
            self._refuse([f"the rescue is of epoch {number}, and the epochs are {numbers} now"])

    def _place_by_steps(self, steps: int | Iterable[Any]) -> None:
        """Set the epoch of a rescue without one, and the place in the first pass of its data."""
        each = steps if isinstance(steps, int) else self._passes.count(steps)
        self.epoch, drawn = divmod(self.step_number, each)
        place = {"passes": 0, "drawn": drawn, "total": drawn, "current": True}
        self._passes.continue_from({"0": place} if drawn else {})

    def data(
        self, dataset: Iterable[Any] | Callable[[], Iterable[Any]], *, ahead: int = 0
    ) -> Iterator[Any]:
        """
        The batches of `dataset` that the current epoch has not trained on.

        Args:
            dataset: a data set of the framework, or any iterable that gives the same batches in the
                same order when the program runs again. Or a function that makes one for each pass:
                `lambda: zip(one_loader, another)`.
            ahead: number of batches that the program draws by `next` before its loop, as it does
                when it loads a batch during the step before.

        Raises:
            RescueMismatch: the data set has another number of batches than in the rescue.
        """
        if ahead:
            self._passes.draws_ahead(dataset, ahead)
        return self._data(dataset, sys._getframe(1))

    def _data(self, dataset: Any, caller: FrameType) -> _Remaining:
        self._is_positioned = True
        self._find_turn(caller)
        if self._session is not None:
            self._session.breakdown.set_dataset(dataset)
        return _Remaining(self._batches(dataset), dataset, self._find_turn)

    def _find_turn(self, frame: FrameType) -> None:
        """Find out in which turn of the loops around the next pass begins, unless epochs() does."""
        self._passes.next_numbers = None
        if not self._counts_epochs:
            with self._guard:
                self._passes.next_numbers = numbers_around(frame)

    def enumerate(
        self, dataset: Iterable[Any] | Callable[[], Iterable[Any]], start: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """
        The batches of `data`, each with its number in the whole pass, also after a resume.

        Args:
            dataset: see `data`.
            start: number of the first batch of a pass.
        """
        return self._numbered(self._data(dataset, sys._getframe(1)), start)

    def _numbered(self, batches: Iterator[Any], start: int) -> Iterator[tuple[int, Any]]:
        for batch in batches:
            drawn = self._passes.set_numbered()
            yield start + drawn.drawn - 1, batch
            break
        for batch in batches:
            yield start + drawn.drawn - 1, batch

    @property
    def batch(self) -> int:
        """
        The number of batches that the next pass of `data` has trained on.

        It is the first number where a call stands between `enumerate` and `data`:
        `for i, batch in enumerate(log(rescue.data(loader)), start=rescue.batch)`.
        """
        return self._passes.first_batch

    def variables(self, **now: Any) -> Any:
        """
        The saved values of the loop's variables after a resume, else those given.

        Call it before the loop: `lr, best = rescue.variables(lr=lr, best=best)`. Each call in the
        text returns the saved values once, and none does after the first step. Those that each
        step changes go to `step` as well.

        Args:
            now: numbers, texts, tensors, arrays, and containers of them.

        Returns:
            One value for one argument, else a tuple.
        """
        caller = sys._getframe(1)
        place = caller.f_code, caller.f_lineno
        saved = {} if place in self._places else self._saved_variables
        self._places.add(place)
        if saved:  # the program may have drawn random numbers since
            self._restore_at_position()
        with run_choice.restoring(self._beginning, self.directory):
            found = {name: put_back(each, saved.get(name, each)) for name, each in now.items()}
        self._variables.update(found)
        return tuple(found.values()) if len(found) != 1 else next(iter(found.values()))

    def step(self, loss: Any = None, **variables: Any) -> None:
        """
        Mark the end of a training step, when `state` is ready for the next one.

        Call it after the optimizer and the scheduler have stepped.

        Args:
            loss: a number or scalar tensor to report; it is read at most twice a second.
            variables: values that the next step needs, see `variables`.

        Raises:
            RescueError: at the first step, with strict=True: a resume would not restore everything.
        """
        if self._audit_result is None:
            self._audit_loop()
            self._saved_variables = {}
        self.step_number += 1
        for name, each in variables.items():
            self._variables[name] = without_graph(each)
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
                self.step_number, epoch=self._known_epoch, batch=passes.batch, loss=self._loss
            )
        if self._oom is not None:
            self._oom.stepped()
        self._after_step()
        if saved is not None:
            self._report.not_restored(saved.missing)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """
        Mark code that is not a training step: `with rescue.phase("validate"): ...`.

        The daemon learns the memory that a phase needs, and predicts it for the next one.

        Args:
            name: "validate", "save", "epoch_end", or a word of your own.
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
        Announce memory that the program will take soon, so that its growth is not called a leak.

        Args:
            bytes_: the expected growth from now. The last announcement counts; 0 withdraws it.
            what: a name that the user understands: "the cache of the data set".

        Raises:
            ValueError: `bytes_` is negative.
        """
        if self._session is not None:
            self._session.expect(bytes_, what)

    def save(self, reason: str = "asked by the program") -> str | None:
        """
        Save now, between two steps, without a request of the daemon.

        Returns:
            The folder of the rescue; None if it could not be saved, after a message.
        """
        if self._session is None:
            return None
        saved = self._session.save_now(reason, self.step_number)
        if saved is None:
            return None
        self._report.not_restored(saved.missing)
        return saved.path

    def finish(self) -> None:
        """Mark the training as finished, so that no run resumes it. May be called twice."""
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
        """Report at the first step what a resume will not restore, while the user can fix it."""
        self._audit_result = []
        audit, drawn = None, list[str]()
        with self._guard:
            frame = sys._getframe(1)
            named = {**self._variables, **self._objects}
            audit = Audit(frame, self, named, made_in=self._made_in)
            self._loss_functions = loop_code.functions(
                frame, self, self._objects, of_library=self._compares_library
            )
            drawn = self._unread_random(frame)
        self._compare_losses()
        if audit is not None:
            self._audit_result = audit.lost()
            self._passes.by_next = audit.reads_next and not self._counts_epochs
        self._audit_result += drawn
        if audit is None or not audit.reads_position:
            again = "" if audit is None else audit.begins_again
            if self.resumed and not self._is_positioned and not again:
                self._report_not_placed()
            if not self._passes.begun:
                self._audit_result.insert(0, again or UNSEEN)
        elif audit.fetches:
            self._audit_result.insert(0, UNSEEN)
        lost = [*self._audit_result, *self._state.not_restored()]
        if lost and self._strict:
            self._close()
            raise refused_by_strict(lost)
        self._report.not_restored(lost)
        if self._session is not None:
            self._session.report_not_restored(lost)

    def _report_not_placed(self) -> None:
        """Report that finished batches are not skipped, because the loop draws its own."""
        print_message(
            "this loop uses neither rescue.epochs() nor rescue.data(), so the batches that the "
            f"rescue has had are not skipped: {self.step_number} steps are done. Begin after them "
            "(rescue.step_number, rescue.epoch), or take the batches from rescue.data(dataset)."
        )

    def _compare_losses(self) -> None:
        """Raise RescueMismatch if the functions of the losses compute something else."""
        saved = None if self._saved is None else self._saved.meta.get("identity", {}).get("losses")
        if isinstance(saved, list) and self._loss_functions is not None:
            found: list[str] = []
            with self._guard:
                found = list(changed_functions(saved, self._loss_functions))
            if found:
                self._refuse(found)

    def _sample_loss(self, loss: Any) -> None:
        """Read the loss, at most twice a second; if it is None, read the next one."""
        self._loss_wanted = loss is None
        now = time.monotonic()
        if loss is not None and now >= self._next_loss_mono_s:
            self._next_loss_mono_s = now + _LOSS_EVERY_S
            with self._guard:
                self._loss = float(loss.detach() if hasattr(loss, "detach") else loss)

    def _capture_epoch_random(self, epoch: int) -> None:
        """
        Capture the random states at an epoch's start, from which the epoch may draw an order.

        In the epoch of a rescue, restore those that the rescue recorded at the epoch's start. The
        random states of the save itself are restored when the data has reached its position.
        """
        saved = self._saved
        if saved is not None and epoch == self._saved_epoch:
            before = saved.position.get("at_epoch")
            if before is not None:
                with run_choice.restoring(self._beginning, saved.path):
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
        """Capture the state, with the results of the audit, the losses and the size of parts."""
        capture = self._state.capture()
        lost = self._state.lost  # the same list object that the capture holds
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
        self._saved_epoch, self.epoch = epoch, int(epoch or 0)
        self._saved_variables = saved.variables()
        self._passes.forced = self._beginning.resume == "force"
        self._passes.continue_from(saved.position["passes"])
        self.micro.restore_size(saved.meta)
        changed = environment.differences(saved.meta["environment"], self._environment_record())
        self._saved = saved
        self.step_number = rescue.step
        place = "" if epoch is None else f"epoch {epoch + 1}"
        if not self._follows:
            self._report.resumed(rescue, place, said, changed)

    def _restore_at_position(self) -> None:
        """Restore the state again when the data is at its position, before the next step."""
        if self._saved is not None and not self._passes.has_stepped:
            with run_choice.restoring(self._beginning, self._saved.path):
                self._state.restore(self._saved)
                self._state.merge_settings(self._saved)

    def _check_fit(self, rescue: LoadedRescue, saved: V) -> list[str]:
        """Messages on allowed differences; raises RescueMismatch if the rescue does not fit."""
        identity = saved.meta.get("identity")
        if "found" in saved.meta and isinstance(identity, dict):
            identity = {**identity, "statements": []}  # the loop had no Rescue: its lines are new
        verdict = compare(identity, self._state.identity)
        shown = describe_rescue(rescue.path, rescue.step, rescue.created_unix_s)
        try:
            self._state.check(saved)
        except RescueMismatch as error:
            found = tuple(dict.fromkeys((*verdict.texts(Decision.REFUSE), *error.differences)))
            raise mismatch(shown, found, may_be_forced=False) from None
        return check_verdict(verdict, shown, forced=self._beginning.resume == "force")

    def _refuse(self, found: list[str]) -> None:
        """Raise RescueMismatch for differences that the first step shows; if forced, print them."""
        if self._beginning.resume != "force" and self._saved is not None:
            self._close()
            raise mismatch(self._saved.path, found)
        print_message(f'resume="force" resumes although {"; ".join(found)}.')

    def _position(self, *passes: Any) -> dict[str, Any]:
        """The position of the loop, as JSON, for the state that is being captured."""
        return {
            "epoch": self._known_epoch,
            "batch": self._passes.batch,
            "passes": self._passes.position(*passes),
            # Without a pass a resume would not know when the loop has reached its position.
            "at_epoch": self._at_epoch if self._passes.begun else None,
            "variables": self._variables,
            "number": self._number,
        }


class _Remaining(Iterator[Any]):
    """The remaining batches of a pass, with the length of the whole pass."""

    def __init__(
        self, batches: Iterator[Any], dataset: Any, begins: Callable[[FrameType], None]
    ) -> None:
        self._batches, self._dataset, self._begins = batches, dataset, begins

    def __iter__(self) -> Self:
        self._begins(sys._getframe(1))
        iter(self._batches)  # begins the pass of a loader, as `iter(loader)` does
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._dataset)
