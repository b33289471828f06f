"""
The hooks of the Rescue callback of a `fit`, for both generations of Keras.

`watchdog_app.agent.keras` and `tf_keras` derive a Keras callback from it; this module imports
neither Keras. Keras can call the callbacks in its own threads, so that no step waits for its logs.
It does so on JAX and PyTorch if each callback with a batch hook sets `async_safe`. A Rescue sets it
as well, and gets its calls in the thread of the training, where Keras passes the step on.

Source: `CallbackList._configure_async_dispatch` and `_async_dispatch`, Keras 3.6 to 3.15.
"""

# ruff: noqa: ARG002, D102 - Keras defines and documents the hooks and their arguments

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras import position, running
from watchdog_app.agent.adapters.keras.backend import UNKNOWN, Backend, capture_random
from watchdog_app.agent.adapters.keras.passes import DataPasses
from watchdog_app.agent.adapters.keras.resume import Resumption
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.adapters.report import START_OVER, Report, refused_by_strict
from watchdog_app.agent.adapters.together import Together
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.identity.loop_steps import NO_STEPS
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.fit import FitWatch
from watchdog_app.agent.runtime import run_choice
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.base import signals
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.identity.notebook import notebook_path

_ENDED = "a fit has ended, and its program continues with little memory"
# Classes by the name of a backend, which is also part of the module's name.
_BACKENDS = {"tensorflow": "OnTensorFlow", "torch": "OnTorch", "jax": "OnJax"}


def backend_of_keras() -> Backend | None:
    """The backend that Keras runs on; None if it is not supported."""
    import keras

    name = keras.backend.backend()
    if name not in _BACKENDS:
        return None
    module = import_module(f"watchdog_app.agent.adapters.keras.on_{name}")
    found: Backend = getattr(module, _BACKENDS[name])()
    return found


class FitRescue:
    """See `watchdog_app.agent.keras.Rescue`."""

    model: Any  # set by Keras's Callback
    params: Any  # set by Keras's Callback: `epochs`, and the `steps` of an epoch or None
    # Without this Keras waits for the logs of each step.
    async_safe = True
    _last_callback_class: type[LastCallback]
    _saves_together = True  # whether several processes may agree on a rescue
    _reports_at_start = True  # whether to print at the start what a resume will not restore
    _start_over = START_OVER  # advice in the message of a resume
    _backend: Callable[[], Backend | None] = staticmethod(backend_of_keras)
    _find_iterator: Callable[[], Any] = staticmethod(position.find_iterator)

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
    ) -> None:
        """
        Store the arguments; nothing else happens before `fit` begins.

        Args:
            directory: the folder for rescues, created if missing; on a disk, not on a tmpfs.
            name: distinguishes this training from others of the program, in any order.
            resume: True resumes from an unfinished rescue of this training. False starts over.
                "newest" resumes from its newest rescue, finished or not. "force" resumes from the
                newest unfinished rescue of any training that does not run any more.
            keep: number of complete rescues to keep, at least 1.
            on_oom: "save" saves the state before a training step that runs out of memory, and
                raises the error again. "shrink" trains that batch and later ones in parts that fit,
                as one step each. None does nothing.
            strict: whether to raise RescueError after the first batch if a resume would not restore
                everything, instead of printing that.
            save_on: names of signals to save at, besides SIGTERM and SIGHUP, such as "USR1".

        Raises:
            ValueError: an argument has a value that is not allowed.
        """
        super().__init__()
        run_choice.check_arguments(resume, name)
        watch.check_on_oom(on_oom)
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.directory = os.fspath(directory)
        self.name = name
        self.resume = resume
        self.keep = keep
        self.on_oom = on_oom
        self.strict = strict
        self._save_on = signals.parse(save_on)
        self._guard = Guard()
        self._report = Report()
        self._session: Session | None = None
        self._beginning: run_choice.Beginning | None = None
        self._state: FitState | None = None
        self._resumption: Resumption | None = None
        self._oom: FitWatch | None = None
        self.running: running.RunningFit | None = None  # None: no fit, or a loop without one
        self._steps_before = 0  # steps in the finished epochs
        self._loss: float | None = None
        self._first_epoch = True
        self.validating = False
        self._expected: tuple[int, str] | None = None  # memory that the program announced
        self._postponed: str | None = None  # reason of a save that waits for the next batch
        self._together: Together | None = None  # the other processes of this training
        self._async_callbacks: AsyncCallbacks | None = (
            None  # set if Keras calls callbacks in threads
        )
        self._has_last_callback = False  # whether a callback of ours comes after all others
        self._outlasts_its_end = False  # whether a run may resume the fit at its end
        # Whether the values that a resume will not restore were reported, and again after an epoch.
        self._audited = self._audited_again = False

    @property
    def step_number(self) -> int:
        """Number of batches trained since the beginning, including earlier runs."""
        return self._steps_before + (self._state.progress.next_batch if self._state else 0)

    def save(self, reason: str = "asked by the program") -> str | None:
        """
        Save from a hook of another callback, without a request of the daemon.

        In a batch hook the state is saved at once. In other hooks (`on_epoch_end`) only some
        callbacks have handled the event, so the save happens before the next batch.

        Returns:
            The folder of the rescue. None if the save comes later, or failed after a message.
        """
        if self._session is None or self._state is None:
            return None
        hook = None if self._in_other_thread() else position.batch_hook()
        if hook is None or (hook[0].startswith("on_test") and not self.validating):
            self._postponed = reason
            return None
        name, batch, logs = hook
        if name == "on_train_batch_begin" and self._state.backend.draws_before_hooks:
            self._postponed = reason
            return None
        if name == "on_train_batch_end":  # the caller may come before us in the list
            self._state.progress.batch_ends(batch)
            if isinstance(logs, dict):
                self._state.logs = logs
        return self._save_here(reason)

    def expect(self, bytes_: int, what: str) -> None:
        """
        Announce memory that the program will take soon, so that its growth is not called a leak.

        May be called before `fit`. The last announcement counts; 0 withdraws it.

        Args:
            bytes_: the expected growth from now.
            what: a name that the user understands: "the shuffle buffer".

        Raises:
            ValueError: `bytes_` is negative.
        """
        if bytes_ < 0:
            raise ValueError(f"bytes_ must not be negative, but is {bytes_}")
        if self._session is None:
            self._expected = (int(bytes_), what)
        else:
            self._session.expect(int(bytes_), what)

    def set_model(self, model: Any) -> None:
        super().set_model(model)  # type: ignore[misc]  # a method of Keras's Callback
        with self._guard:
            inside_fit = position.running_fit() is not None
            if inside_fit and run_choice.may_resume(self.directory, self.resume, name=self.name):
                callback_state.keep_csv_rows(position.calling_callbacks())

    def on_train_begin(self, logs: Any = None) -> None:
        with self._guard:
            self._begin(position.calling_callbacks())
            self._register_batch_end(position.calling_callback_list())
        # The user must see errors of the resume: a silent start from the beginning is worse.
        if self._session is not None and self._state is not None:
            self._resumption = self._resume(self._session, self._state)
            self._session.prepare()
            if self._expected is not None:
                self._session.expect(*self._expected)
                self._expected = None  # a second fit does not take that memory again
            else:
                self._announce_buffers(self._session, self._state.progress.iterator)
        if self._oom is not None:
            with self._guard:
                self._oom.begin(position.calling_callback_list(), self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._state is None:
            return
        if self._resumption is not None:
            self._resumption.epoch_begins(epoch)
        with self._guard:
            if self._first_epoch and self._resumption is None:
                self._state.progress.first_epoch = epoch
            self._first_epoch = False
            self._state.epoch_begins(epoch)
            if self._session is not None:
                at = {"step": self.step_number, "batch": self._state.progress.next_batch}
                self._session.phase("train", epoch, **at)
            if self._oom is not None:
                self._oom.epoch_begins()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Only here has every callback seen the last batch, and none the next.
        session, state = self._session, self._state
        if session is None or state is None:
            return
        progress = state.progress
        progress.next_batch, progress.epoch_done = batch, False
        step = self._steps_before + batch
        if self._oom is not None:
            self._oom.armed, self._oom.trained = True, step > 0
        if step > 0 and not self._audited:
            self._report_not_restored(session, state)
        if state.backend.draws_before_hooks:
            session.step_begins()
            return
        if self._postponed is not None:
            reason, self._postponed = self._postponed, None
            self.save(reason)
        if step > 0:
            saved = session.boundary(step, epoch=progress.epoch, batch=batch, loss=self._loss)
            if saved is not None:
                self._report_saved(saved)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        state = self._state
        if state is None or self._in_other_thread():
            return
        state.progress.batch_ends(batch)
        if isinstance(logs, dict):  # a user's own step may return something else
            state.logs = logs
            self._loss = logs.get("loss")

    def _batch_ended(self) -> None:
        """Handle the end of a batch that every callback has seen."""
        if self._session is None or self._state is None:
            return
        if self._state.backend.draws_before_hooks:
            if self._postponed is not None:
                reason, self._postponed = self._postponed, None
                self._save_here(reason)
            self._boundary()
        # After the last batch memory grows most: by validation and other callbacks' checkpoints.
        elif (
            self._session.link.pending_request is not None
            and self._state.progress.last_batch_trained
        ):
            self._boundary()

    def on_test_begin(self, logs: Any = None) -> None:
        if self._session is None or self._state is None:
            return
        with self._guard:
            # Do not save in an evaluation outside of a fit, such as after an interrupted fit.
            inside_fit = position.running_fit() is not None
            if inside_fit:
                self._session.phase("validate", self._state.progress.epoch)
            # SwapEMAWeights puts other weights into the model for the validation.
            swaps = any(type(c).__name__ == "SwapEMAWeights" for c in self._state.callbacks)
            if inside_fit and not swaps:
                if self._resumption is not None:
                    self._resumption.validation_begins()
                self._state.validation_prepared()
                self._boundary()  # the weights do not change until the validation has ended
                self._state.validation_begins()
                self.validating = True
                if self._oom is not None:
                    self._oom.validation_begins()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._session is None:
            return
        if self.validating and self._session.link.pending_request is not None:
            self._boundary()
        if self.validating and self._state is not None and batch > 0:
            with self._guard:
                self._state.validation_reads()
        self._session.report_allocators()

    def on_test_end(self, logs: Any = None) -> None:
        if self._session is not None:
            # Other callbacks now do their work at the end of an epoch.
            self._session.phase("epoch_end")
        if self.validating and self._state is not None:
            with self._guard:
                self._state.validation_ends()
            self.validating = False
            if self._oom is not None:
                self._oom.validation_ends()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._session is None or self._state is None:
            return
        with self._guard:
            if self._resumption is not None:
                self._resumption.epoch_ends()
                self._resumption = None
            self._steps_before += self._state.progress.next_batch
            self._state.progress.epoch_ends()
            self._session.reset_step_timer()
            self._session.phase("epoch_end", epoch)
        # Callbacks begin to keep some values at the end of their first epoch.
        self._audited, self._audited_again = self._audited and self._audited_again, True

    def on_train_end(self, logs: Any = None) -> None:
        begun = self._beginning
        with self._guard:
            self._outlasts_its_end = begun is not None and (
                self._resumption.had_ended
                if self._resumption is not None
                else self._session is not None
                and self._together is None
                and run_choice.outlasts_its_end(begun, self._session.is_limit_near)
            )
        if not (self._outlasts_its_end and self._has_last_callback):
            self.train_ended()

    def train_ended(self) -> None:
        """Handle the end of the fit; to save it, every callback has seen the end."""
        # A save that the program asked for stays as it is.
        begun, outlasts = self._beginning, self._outlasts_its_end and self._postponed is None
        path: str | None = None  # of a rescue of this end
        with self._guard:
            if self._resumption is not None:
                path = self._resumption.fit_ended()
            elif self._session is not None:
                if outlasts or self._postponed is not None:
                    path = self._save_at_end(self._session, self._postponed or _ENDED, outlasts)
                if begun is not None and path is None:
                    run_choice.finish(begun)
            if begun is not None and path is not None:
                run_choice.finish_with_program(begun, path)
        self._close()

    def _register_batch_end(self, callbacks: Any) -> None:
        """Have Keras call us at the end of each batch, after all other callbacks."""
        if getattr(callbacks, "_async_train", False) and hasattr(callbacks, "_futures"):
            self._async_callbacks = AsyncCallbacks(callbacks, self)
        elif callbacks is not None:
            callbacks.callbacks.append(self._last_callback_class(self))
            self._has_last_callback = True

    def _in_other_thread(self) -> bool:
        """Whether the caller is one of Keras's threads."""
        return self._async_callbacks is not None and self._async_callbacks.in_other_thread

    def fit_was_left(self) -> None:
        """End the fit, which an exception has left; its rescues stay for a resume."""
        if self._beginning is not None:
            run_choice.leave(self._beginning)
        self._close(succeeded=False)

    def _begin(self, callbacks: list[Any]) -> None:
        current = position.running_fit()
        running.end_left_fits(current)
        self._close()
        backend = self._backend()
        obstacle = UNKNOWN if backend is None else backend.obstacle(self.model)
        if backend is None or obstacle is not None:
            print_message(f"{obstacle} Nothing will be saved; the training continues.")
            return
        self._together = together = backend.together(self.model)
        if together is not None and not self._saves_together:
            print_message(
                f"This fit runs in {together.count} processes and is not saved automatically. "
                "Give it a Rescue in each of them."
            )
            return
        iterator = self._find_iterator()
        progress = position.FitProgress(iterator)
        self._state = state = FitState(self.model, callbacks, progress, backend)
        if iterator is not None:
            state.order = backend.repeatable_order(iterator, self.model)
            # Workers run ahead from the start of the epoch, so there is no moment to record.
            if backend.reads_in_python and not position.reads_in_background(
                iterator, in_python=True
            ):
                progress.passes = DataPasses(iterator)
                progress.passes.install()
        self._oom = FitWatch(
            self.model, state, None if together else self.on_oom, self._save_before
        )
        self.running = current
        running.opened(self)
        self._session = self._open_session(iterator, state.marker)

    def _open_session(self, iterator: Any, marker: Callable[[], Any]) -> Session:
        follows = self._together is not None and self._together.rank > 0  # rank 0 owns the run
        if follows:
            begun = run_choice.follow(self.directory)
        else:
            begun = run_choice.begin(self.directory, self.resume, name=self.name)
        self._beginning = begun
        run = None if follows else begun.run
        store = RescueStore(begun.directory, self.keep, report=print_message, run=run)
        link = Link("keras", store.directory, notebook_path())
        if self.running is not None:
            link.loop_has_ended = self.running.continues_after
        session = Session(store, link, self._capture, marker=marker, save_on=self._save_on)
        session.count_steps = self._count_steps
        session.breakdown.set_objects([self.model])
        session.breakdown.set_dataset(getattr(iterator, "data_adapter", None))
        return session

    def _count_steps(self) -> Mapping[str, int | None]:
        """See `Session.count_steps`."""
        steps = (self.params or {}).get("steps")
        if self._state is None or not steps:
            return NO_STEPS
        now = self._state.progress
        left = (self.params["epochs"] - now.epoch) * steps - now.next_batch
        return {"steps_left": max(0, left), "epoch_steps": steps}

    def _capture(self) -> Capture:
        if self._async_callbacks is not None:
            self._async_callbacks.wait()
        return self._oom.capture()  # type: ignore[union-attr]  # set together with the session

    def _resume(self, session: Session, state: FitState) -> Resumption | None:
        begun = self._beginning
        if begun is None:
            return None
        made: list[Resumption] = []
        together = self._together

        def restore(rescue: LoadedRescue) -> None:
            callbacks = position.calling_callback_list()
            epochs = (self.params or {}).get("epochs")
            later = state.callbacks[list(state.callbacks).index(self) + 1 :]
            resumption = Resumption(
                rescue, self.model, state, begun, callbacks, later=later, epochs=epochs
            )
            if together is None or together.rank == 0:
                resumption.report(self._report, self._start_over)
            made.append(resumption)
            if self._oom is not None:
                self._oom.micro.restore_size(rescue.meta)
            self._steps_before = rescue.step - state.progress.next_batch

        choose = run_choice.choose_alone if together is None else together.choose
        run_choice.resume(begun, session.store, session.link, restore, choose)
        if together is not None:
            session.ranks = together.ranks()
            session.link.ignores_sigterm = together.ignores_sigterm
        return made[0] if made else None

    def _save_at_end(self, session: Session, reason: str, outlasts: bool) -> str | None:
        """
        Save at the end of the last epoch, with the position at the start of the next one.

        Args:
            session: of the fit.
            reason: recorded in the rescue.
            outlasts: whether a later run skips this fit, unless it is asked for other epochs.

        Returns:
            The folder of such a rescue; None: none was saved.
        """
        if self._state is None:
            return None
        progress = self._state.progress
        self._state.epoch_begins(progress.epoch + 1)
        progress.between_epochs = True
        progress.ended_of = (self.params or {}).get("epochs") if outlasts else None
        saved = session.save_now(reason, self.step_number)
        self._report_saved(None if outlasts else saved)
        return saved.path if outlasts and saved is not None else None

    def _announce_buffers(self, session: Session, iterator: Any) -> None:
        with self._guard:
            if position.adapter_name(iterator) == "TFDatasetAdapter":
                from watchdog_app.agent.telemetry import (
                    dataset_buffers,  # with a tf.data set the program has TensorFlow
                )

                growth = dataset_buffers.announced_growth(iterator.data_adapter.get_tf_dataset())
                if growth is not None:
                    session.expect(growth.bytes, growth.what, at_most=growth.at_most)

    def _save_here(self, reason: str) -> str | None:
        """Save the current state, at the position before the next or the running batch."""
        if self._session is None:
            return None
        saved = self._session.save_now(reason, self.step_number)
        self._report_saved(saved)
        return None if saved is None else saved.path

    def _save_before(self, reason: str) -> str | None:
        return self._save_here(reason) if self.step_number else None  # None: nothing trained yet

    def _boundary(self) -> None:
        """Save at another place than before a batch; not with others, whose place may differ."""
        if self._session is not None and self._state is not None and self._together is None:
            progress = self._state.progress
            told = {"epoch": progress.epoch, "batch": progress.next_batch, "loss": self._loss}
            self._report_saved(self._session.boundary(self.step_number, **told))

    def _report_saved(self, saved: SavedRescue | None) -> None:
        if saved is not None:  # perhaps a better one of the same step, which is kept
            self._report.not_restored(saved.missing)

    def _report_not_restored(self, session: Session, state: FitState) -> None:
        """Report what a resume will not restore, while the user can fix it."""
        self._audited = True
        lost: list[str] = []
        with self._guard:
            lost = state.not_restored(capture_random())
            session.report_not_restored(lost)
        if lost and self.strict:
            raise refused_by_strict(lost)
        if self._reports_at_start:
            self._report.not_restored(lost)

    def _close(self, *, succeeded: bool = True) -> None:
        running.closed(self)
        self.running = None
        if self._resumption is not None:  # the fit ended in its first epoch
            self._resumption.epoch_ends()
        if self._state is not None and self._state.progress.passes is not None:
            self._state.progress.passes.remove()
        if self._oom is not None:
            self._oom.end()
            self._oom = None
        if self._async_callbacks is not None:
            self._async_callbacks.remove()
            self._async_callbacks = None
        if self._session is not None:
            self._session.end(succeeded=succeeded, program_continues=True)
        self._session = self._state = self._resumption = self._loss = self._postponed = None
        self._together = None
        self._steps_before, self._first_epoch, self.validating = 0, True, False
        self._audited = self._audited_again = False
        self._has_last_callback = self._outlasts_its_end = False


class LastCallback:
    """The last callback, so that a save after a batch includes the changes of all others."""

    def __init__(self, rescue: FitRescue) -> None:
        super().__init__()
        self._rescue = rescue
        session, state = rescue._session, rescue._state
        self._link = None if session is None else session.link
        self._each_step = state is not None and state.backend.draws_before_hooks

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # This runs at each step, so it does little: after a step the CPU caches hold the model.
        link = self._link
        if self._each_step or (link is not None and link.pending_request is not None):
            self._rescue._batch_ended()

    def on_train_end(self, logs: Any = None) -> None:
        if self._rescue._outlasts_its_end:
            self._rescue.train_ended()


class AsyncCallbacks:
    """Calls the Rescue in the training's thread if Keras calls callbacks in its own threads."""

    def __init__(self, callbacks: Any, rescue: FitRescue) -> None:
        self._callbacks = callbacks
        self._thread = threading.get_ident()

        def forwarding(forward: Callable[..., Any]) -> Callable[..., Any]:
            def on_train_batch_end(batch: int, logs: Any = None) -> None:
                forward(batch, logs)
                rescue.on_train_batch_end(batch, logs)
                rescue._batch_ended()

            return on_train_batch_end

        self._hook = Wrapped()
        self._hook.wrap(callbacks, "on_train_batch_end", forwarding)

    @property
    def in_other_thread(self) -> bool:
        """Whether the caller is in one of Keras's threads."""
        return threading.get_ident() != self._thread

    def wait(self) -> None:
        """Wait until every callback has seen every step so far; Keras handles their errors."""
        concurrent.futures.wait(list(self._callbacks._futures))

    def remove(self) -> None:
        """Remove our hook from Keras's CallbackList."""
        self._hook.unwrap()
