"""
Rescues for training loops in PyTorch.

    from watchdog_app.agent.torch import Rescue

    rescue = Rescue("rescues/", model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in rescue.epochs(10):
        for batch in rescue.data(loader):
            train_step(batch)
            rescue.step()

Saves when the watchdog daemon asks, at the next `step()`. The next run of the
same program goes on after that step, with the same data in the same order. See
docs/agent.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from watchdog_app.agent import chapters, environment
from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.link import Link
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.session import Session
from watchdog_app.agent.store import RescueStore
from watchdog_app.agent.torch_data import Passes
from watchdog_app.agent.torch_state import SavedTorch, TorchState, circumstances
from watchdog_app.agent.torch_values import Tensors
from watchdog_app.errors import RescueMismatch

__all__ = ["Rescue"]

# Reading the loss waits for the device: as often as it is reported and no more.
_LOSS_EVERY_S = 0.5


class Rescue:
    """
    Saves a PyTorch training loop when memory runs out, and resumes it bit for bit.

    May be used as a context manager: leaving it without an error ends the training well, like
    `finish()`. For use in the one thread that trains.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        resume: bool | str = True,
        keep: int = 2,
        **state: Any,
    ) -> None:
        """
        Restores the newest unfinished rescue of this training, if there is one.

        Args:
            directory: where rescues go; made when missing. A disk, not a tmpfs.
            resume: True goes on from an unfinished rescue of this training; False begins anew;
                "newest" goes on from the newest rescue there is, finished or not.
            keep: complete rescues that stay, at least 1.
            state: all that changes while you train, by names of your choice: modules, optimizers,
                schedulers, gradient scalers, averaged models, tensors, random generators, arrays,
                dicts and lists of plain values, objects with `state_dict` and `load_state_dict`.

        Raises:
            RescueMismatch: the rescue is of another program; the message names the difference.
            RescueError: an optimizer without its module, several processes, or resume="newest"
                found nothing.
            TypeError: something in `state` cannot be saved.
            ValueError: `resume` or `keep` is not one of the choices.
        """
        chapters.check(resume)
        self.directory = os.fspath(directory)
        self.step_number = 0
        self.epoch = 0
        self._guard = Guard()
        self._passes = Passes(say)
        self._state = TorchState(state, self._position, self._passes)
        self._saved: SavedTorch | None = None
        self._told: set[str] = set()
        self._loss: float | None = None
        self._next_loss = 0.0
        self._at_epoch: dict[str, Any] | None = None  # random numbers as it began
        self._placed = False  # epochs() or data() leads the loop to its place, or that was said
        store = RescueStore(chapters.chapter_directory(self.directory), keep)
        link = Link("torch", store.directory, notebook_path())
        self._session: Session | None = Session(store, link, self._state.capture)
        self._resume(self._session, resume)
        self._session.prepare()

    @property
    def resumed(self) -> bool:
        """Whether this training goes on from a rescue."""
        return self._saved is not None

    def epochs(self, count: int) -> Iterator[int]:
        """
        The epochs that are still to be trained, of `count` in all; the training ends well
        after the last one. After a `break`, call `finish()`.
        """
        self._placed = True
        if self.resumed and self.epoch >= count:
            say(
                f"nothing was trained: the rescue is of epoch {self.epoch + 1}, which "
                f"epochs({count}) does not reach."
            )
            self._end()
            return
        for epoch in range(self.epoch, count):
            if epoch != self.epoch:
                self.epoch = epoch
                self._passes.new_epoch()
                if self._session is not None:
                    self._session.gap()
            self._epoch_begins(epoch)
            yield epoch
        self.finish()

    def data(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """
        The batches of `dataset` that the current epoch has not trained on.

        Args:
            dataset: a DataLoader, or any iterable that gives the same batches in the same order
                when the program runs again.

        Raises:
            RescueMismatch: it has another number of batches than the rescue's.
        """
        self._placed = True
        read = self._saved.read if self._saved is not None else None
        return self._passes.run(dataset, self._arrive, read)

    def step(self, loss: Any = None) -> None:
        """
        A training step has ended: everything in `state` is as it will be for the next one.

        Call it after the optimizer and the scheduler have stepped.

        Args:
            loss: a number or scalar tensor to be reported; looked at twice a second.
        """
        if not self._placed:
            self._say_place()
        self.step_number += 1
        session = self._session
        if session is None:
            return
        if loss is not None:
            now = time.monotonic()
            if now >= self._next_loss:
                self._next_loss = now + _LOSS_EVERY_S
                with self._guard:
                    self._loss = float(loss.detach() if hasattr(loss, "detach") else loss)
        saved = session.boundary(
            self.step_number, epoch=self.epoch, batch=self._passes.batch, loss=self._loss
        )
        self._state.boundary()
        if saved is not None:
            self._tell()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """
        What is done inside is no training step: `with rescue.phase("validate"): ...`.

        The daemon learns what memory it takes, and foretells the next.

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
                self._session.gap()

    def expect(self, bytes_: int, what: str) -> None:
        """
        Announce memory that the program is about to take: growth up to that is no leak.

        What was announced last counts; 0 takes it back.

        Args:
            bytes_: so much more than now.
            what: as a person would call it: "the cache of the data set".

        Raises:
            ValueError: `bytes_` is negative.
        """
        if self._session is not None:
            self._session.expect(bytes_, what)

    def save(self, reason: str = "asked by the program") -> str | None:
        """
        Save now, without the daemon having asked; between two steps.

        Returns:
            The folder of the rescue, or None when it could not be saved, which was then said.
        """
        if self._session is None:
            return None
        saved = self._session.save_now(reason, self.step_number)
        if saved is None:
            return None
        self._tell()
        return saved.path

    def finish(self) -> None:
        """The training ended well: its rescues are not to be resumed. May be called twice."""
        if self._session is None:
            return
        with self._guard:
            chapters.finish(self.directory, self._session.store.directory)
        self._end()

    def __enter__(self) -> Rescue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()

    def _epoch_begins(self, epoch: int) -> None:
        """
        Keep the random numbers of the epoch's beginning, which it may draw an order from.

        In the epoch of a rescue they are put back, and again to those of the rescue when the
        data stands at its place.
        """
        saved = self._saved
        if saved is not None and epoch == saved.position["epoch"]:
            before = saved.position.get("at_epoch")
            if before is not None:
                with chapters.restoring(saved.path):
                    self._state.put_random(before)
        with self._guard:
            self._at_epoch = self._state.take_random()

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._state.close()
            session.end()

    def _resume(self, session: Session, resume: bool | str) -> None:
        choice = chapters.choose(self.directory, session.store, resume)
        if choice.why is not None:
            say(choice.why)
        if choice.rescue is None:
            return
        rescue = choice.rescue
        try:
            with chapters.restoring(rescue.path):
                saved = SavedTorch(rescue.path, rescue.meta, rescue.read)
                self._state.put(saved)
        except RescueMismatch as error:
            if choice.certain:
                raise
            say(f"this training begins anew. {error}")
            return
        self._saved = saved
        self.step_number = rescue.step
        self.epoch = saved.position["epoch"]
        self._passes.continue_from(saved.position["passes"])
        chapters.resumed(rescue.path)
        session.link.goes_on_from(rescue.path, rescue.step, rescue.bytes, rescue.created_unix_s)
        say(
            f"going on from {rescue.path}: step {rescue.step}, epoch {self.epoch + 1}. "
            "To begin anew: Rescue(..., resume=False)."
        )
        lost = saved.meta.get("not_restored")
        if lost:
            say(f"what does not come back: {'; '.join(lost)}.")
        settings = self._state.changed_settings(saved)
        if settings:
            say(f"the settings of the rescue are used: {'; '.join(settings)}.")
        changed = environment.differences(saved.meta["environment"], circumstances())
        if changed:
            say(f"not as it was when the rescue was saved: {'; '.join(changed)}.")

    def _say_place(self) -> None:
        """A loop that finds its batches by itself begins at the first one again: it must know."""
        self._placed = True
        if self.resumed:
            say(
                f"this loop uses neither rescue.epochs() nor rescue.data(), so the batches that "
                f"the rescue has had are not skipped: {self.step_number} steps are done, in epoch "
                f"{self.epoch + 1}. Begin after them (rescue.step_number, rescue.epoch), or take "
                "the batches from rescue.data(loader)."
            )

    def _tell(self) -> None:
        """Say, once each, what a resume from the rescue just saved would not bring back."""
        new = [text for text in self._state.lost if text not in self._told]
        self._told.update(new)
        if new:
            say(f"a resume of this training will not bring back: {'; '.join(new)}.")

    def _arrive(self) -> None:
        """The data stands at its place: undo what the loop did to its state on the way there."""
        if self._saved is not None:
            with chapters.restoring(self._saved.path):
                self._state.put(self._saved)

    def _position(self, tensors: Tensors) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self._passes.batch,
            "passes": self._passes.position(tensors),
            # Without a pass nobody would say when the loop is back at its place.
            "at_epoch": self._at_epoch if self._passes.begun else None,
        }
