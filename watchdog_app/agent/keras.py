"""
Rescues for Keras: one callback, and a `fit` that was killed goes on from its very batch.

    from watchdog_app.agent.keras import Rescue

    model.fit(..., callbacks=[Rescue("rescues/")])

Saves when the watchdog daemon asks, at the next batch boundary, in the
training's own thread. The next run of the same program finds the newest
complete rescue by itself. See docs/agent.md for what is restored.
"""

# ruff: noqa: ARG002, D102 - the hooks and their arguments are Keras's, and documented there

from __future__ import annotations

import os
from typing import Any

import keras

from watchdog_app.agent import buffers, callback_state, chapters, position, shuffling
from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.fit_state import FitState
from watchdog_app.agent.link import Link
from watchdog_app.agent.notebook import notebook_path
from watchdog_app.agent.resumption import Resumption
from watchdog_app.agent.session import Session
from watchdog_app.agent.store import RescueStore, SavedRescue
from watchdog_app.errors import RescueMismatch

__all__ = ["Rescue"]


class Rescue(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """
    Saves a `fit` when memory runs out, and resumes it bit for bit.

    Use one folder a training, and give the callback to every `fit` that should
    be saved. Without a watchdog daemon it does nothing but wait for one.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, resume: bool | str = True, keep: int = 2
    ) -> None:
        """
        Touches nothing before `fit` begins.

        Args:
            directory: where rescues go; made when missing. A disk, not a tmpfs.
            resume: True goes on from an unfinished rescue of this training; False begins anew;
                "newest" goes on from the newest rescue there is, finished or not.
            keep: complete rescues that stay, at least 1.

        Raises:
            ValueError: `resume` or `keep` is none of these.
        """
        super().__init__()
        chapters.check(resume)
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = os.fspath(directory)
        self.resume = resume
        self.keep = keep
        self._guard = Guard()
        self._told: set[str] = set()
        self._session: Session | None = None
        self._state: FitState | None = None
        self._resumption: Resumption | None = None
        self._steps_before = 0  # trained in the finished epochs
        self._loss: float | None = None
        self._first_epoch = True
        self._validating = False
        self._expected: tuple[int, str] | None = None  # announced
        self._foreseen = buffers.Foreseen()
        self._postponed: str | None = None  # reason of a save that waits for the next batch

    @property
    def step_number(self) -> int:
        """Batches trained since the beginning, over restarts."""
        return self._steps_before + (self._state.course.next_batch if self._state else 0)

    def save(self, reason: str = "asked by the program") -> str | None:
        """
        Save without the daemon having asked, from a hook of another callback.

        In a batch hook the state is saved at once. Elsewhere (`on_epoch_end`) some callbacks have
        seen what others have not: the save then happens before the next batch.

        Returns:
            The folder of the rescue; None when it is still to come, or could not be saved, which
            was then said.
        """
        if self._session is None or self._state is None:
            return None
        hook = position.batch_hook()
        if hook is None or (hook[0].startswith("on_test") and not self._validating):
            self._postponed = reason
            return None
        name, batch, logs = hook
        if name == "on_train_batch_end":  # the caller may stand before us in the list
            self._state.course.next_batch = batch + 1
            if isinstance(logs, dict):
                self._state.logs = logs
        saved = self._session.save_now(reason, self.step_number)
        self._tell(saved)
        return None if saved is None else saved.path

    def expect(self, bytes_: int, what: str) -> None:
        """
        Announce memory that the program is about to take: growth up to that is no leak.

        May be called before `fit`. What was announced last counts; 0 takes it back.

        Args:
            bytes_: so much more than now.
            what: as a person would call it: "the shuffle buffer".

        Raises:
            ValueError: `bytes_` is negative.
        """
        if bytes_ < 0:
            raise ValueError(f"bytes_ must not be negative, but is {bytes_}")
        if self._session is None:
            self._expected = (int(bytes_), what)
        else:
            self._session.expect(int(bytes_), what)

    # What Keras calls. -----------------------------------------------------------------

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        with self._guard:
            inside_fit = position.find_iterator() is not None
            if inside_fit and chapters.may_resume(self.directory, self.resume):
                callback_state.before_training_begins(position.siblings())

    def on_train_begin(self, logs: Any = None) -> None:
        with self._guard:
            self._begin(position.siblings())
            position.join_behind(_Behind(self))
        # Errors of the resume are the user's to see: training anew in silence would be worse.
        if self._session is not None and self._state is not None:
            self._resumption = self._resume(self._session, self._state)
            self._session.prepare()
            if self._expected is not None:
                self._session.expect(*self._expected)
                self._expected = None  # a second fit does not take it again
            else:
                self._foresee(self._session, self._state.course.iterator)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._state is None:
            return
        if self._resumption is not None:
            self._resumption.epoch_begins(epoch)
        with self._guard:
            if self._first_epoch and self._resumption is None:
                self._state.course.first_epoch = epoch
            self._first_epoch = False
            self._state.epoch_begins(epoch)
            if self._session is not None:
                self._session.phase("train", epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # The one place where every callback has seen the last batch and none the next.
        if self._session is None or self._state is None:
            return
        course = self._state.course
        course.next_batch, course.epoch_done = batch, False
        step = self._steps_before + batch
        if self._postponed is not None:
            reason, self._postponed = self._postponed, None
            self.save(reason)
        if step > 0:
            saved = self._session.boundary(step, epoch=course.epoch, batch=batch, loss=self._loss)
            if saved is not None:
                self._tell(saved)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._session is None or self._state is None:
            return
        self._state.course.next_batch = batch + 1
        if isinstance(logs, dict):  # a step of the user's own may return something else
            self._state.logs = logs
            self._loss = logs.get("loss")

    def _batch_ended(self) -> None:
        """Every callback has seen the batch."""
        if self._session is None or self._state is None:
            return
        # After the last batch comes what grows most: validation and other callbacks' checkpoints.
        if self._session.link.wanted is not None and self._state.course.last_batch_trained:
            self._boundary()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._session is None or self._state is None:
            return
        with self._guard:
            # An evaluation by itself, after a fit that was interrupted, is no place to save at.
            inside_fit = position.find_iterator() is not None
            if inside_fit:
                self._session.phase("validate", self._state.course.epoch)
            # This one puts other weights into the model for the validation.
            swaps = any(type(c).__name__ == "SwapEMAWeights" for c in self._state.callbacks)
            if inside_fit and not swaps:
                self._state.validation_begins()
                self._validating = True

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._session is None:
            return
        if self._validating and self._session.link.wanted is not None:
            self._boundary()
        self._session.look()

    def on_test_end(self, logs: Any = None) -> None:
        if self._session is not None:
            # What other callbacks do at the end of an epoch comes now.
            self._session.phase("epoch_end")
        if self._validating and self._state is not None:
            self._state.validation_ends()
            self._validating = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._session is None or self._state is None:
            return
        with self._guard:
            if self._resumption is not None:
                self._resumption.epoch_ends()
                self._resumption = None
            self._steps_before += self._state.course.next_batch
            self._state.course.epoch_ends()
            self._session.gap()
            self._session.phase("epoch_end", epoch)

    def on_train_end(self, logs: Any = None) -> None:
        with self._guard:
            if self._resumption is not None:
                self._resumption.no_epoch_left()
            elif self._session is not None:
                if self._postponed is not None:
                    self._save_at_end(self._session, self._postponed)
                chapters.finish(self.directory, self._session.store.directory)
        self._close()

    # -----------------------------------------------------------------------------------

    def _begin(self, callbacks: list[Any]) -> None:
        self._close()
        if keras.backend.backend() != "tensorflow":
            say(
                f"rescues work with Keras on TensorFlow; this is Keras on "
                f"{keras.backend.backend()}. Nothing will be saved; the training goes on."
            )
            return
        iterator = position.find_iterator()
        if position.unsupported(iterator) is not None:
            iterator = None
        self._state = state = FitState(self.model, callbacks, position.Course(iterator))
        if iterator is not None:
            state.order = shuffling.make_repeatable(iterator, self.model)
        store = RescueStore(chapters.chapter_directory(self.directory), self.keep)
        link = Link("keras", store.directory, notebook_path())
        self._session = Session(store, link, state.capture)

    def _resume(self, session: Session, state: FitState) -> Resumption | None:
        choice = chapters.choose(self.directory, session.store, self.resume)
        if choice.why is not None:
            say(choice.why)
        if choice.rescue is None:
            return None
        try:
            with chapters.restoring(choice.rescue.path):
                resumption = Resumption(choice.rescue, self.model, state)
        except RescueMismatch as error:
            if choice.certain:
                raise
            say(f"this training begins anew. {error}")
            return None
        chapters.resumed(choice.rescue.path)
        found = choice.rescue
        session.link.goes_on_from(found.path, found.step, found.bytes, found.created_unix_s)
        self._steps_before = choice.rescue.step - state.course.next_batch
        return resumption

    def _save_at_end(self, session: Session, reason: str) -> None:
        """A save that was asked for at the end of the last epoch: as if another were to begin."""
        if self._state is not None:
            self._state.epoch_begins(self._state.course.epoch + 1)
            self._state.course.between_epochs = True
            self._tell(session.save_now(reason, self.step_number))

    def _foresee(self, session: Session, iterator: Any) -> None:
        with self._guard:
            if position.adapter_name(iterator) == "TFDatasetAdapter":
                growth = self._foreseen.begins(iterator.data_adapter.get_tf_dataset())
                if growth is not None:
                    session.expect(growth.bytes, growth.what, at_most=growth.at_most)

    def _boundary(self) -> None:
        if self._session is not None:
            self._tell(self._session.boundary(self.step_number, **self._position()))

    def _tell(self, saved: SavedRescue | None) -> None:
        """Say, once each, what a resume from this rescue would not bring back."""
        if saved is None or self._state is None:
            return
        new = [text for text in self._state.lost if text not in self._told]
        self._told.update(new)
        if new:
            say(f"a resume of this training will not bring back: {'; '.join(new)}.")

    def _position(self) -> dict[str, Any]:
        if self._state is None:
            return {}
        course = self._state.course
        return {"epoch": course.epoch, "batch": course.next_batch, "loss": self._loss}

    def _close(self) -> None:
        if self._resumption is not None:  # a fit that was left in its first epoch
            self._resumption.epoch_ends()
        self._foreseen.settle()
        session, self._session = self._session, None
        if session is not None:
            session.end()
        self._state = self._resumption = self._loss = self._postponed = None
        self._steps_before = 0
        self._first_epoch, self._validating = True, False


class _Behind(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Stands behind all others, so that a save after a batch holds what each made of it."""

    def __init__(self, rescue: Rescue) -> None:
        super().__init__()
        self._rescue = rescue

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._rescue._batch_ended()
