"""
Save a Keras `fit` whose training step runs out of memory, as it was before that step.

Keras looks up `model.train_function` for each step, so a wrapper replaces it while a `fit` trains.
The wrapper raises the error again, with a note of what was saved. With on_oom="shrink" it trains
the batch in parts instead, and the fit continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from typing import Any

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.oom import watch
from watchdog_app.agent.oom.micro import FIELD, MicroBatches
from watchdog_app.agent.oom.record import Pace, Record
from watchdog_app.agent.state.keras_model import is_keras_instance
from watchdog_app.agent.state.rows import split_variables
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.rescue.checkpoint.format import Capture

_INEXACT = (
    "statistics, metrics and counters as they were before the batch that ran out of memory; "
    "weights that are certainly of a whole step (they were last checked some steps before)"
)
_MOMENTS = {
    "on_train_batch_end": "the end of a batch",
    "on_epoch_end": "the end of an epoch",
}


class FitWatch:
    """Watches the steps of one `fit`, from `begin` to `end`."""

    def __init__(
        self,
        model: Any,
        state: FitState,
        on_oom: str | None,
        save: Callable[[str], str | None],
    ) -> None:
        """
        Args:
            model: the model that the fit trains.
            state: the state of the fit.
            on_oom: the argument `on_oom` of `Rescue`.
            save: saves the current state, at the position before the current batch. It takes the
                reason and returns the folder.
        """
        self._model = model
        self._state = state
        self._save = save
        self.micro = MicroBatches()  # the size of parts that fits, as far as known
        self.armed = False  # whether a batch of this fit has begun and its step has not
        self.trained = False  # whether earlier steps exist, so that a rescue is worth saving
        self._inexact: list[str] = []  # inexact parts of the saved state, as texts for the user
        self._callbacks: CallbackWatch | None = None
        self._coupled = False  # whether the loss compares the samples of a batch
        self._guard = Guard()
        self._parts: Any = None
        self._original: Any = None
        self._wrapped: Any = None
        self._test_function = Wrapped()
        self._record: Record | None = None
        self._pace = Pace(always=on_oom == "shrink")
        self._changed = True
        self._on_oom = on_oom

    def capture(self) -> Capture:
        """Capture the state of the fit, with the size of parts and the inexact parts."""
        capture = self._state.capture()
        self._state.lost += self._inexact  # changes the same list that the capture holds
        return replace(capture, meta={**capture.meta, FIELD: self.micro.size})

    def begin(self, callbacks: Any, fit: Any) -> None:
        """
        Watch a fit that begins; the model has its train_function.

        Args:
            callbacks: the CallbackList of the fit; None if the fit has none.
            fit: the Rescue callback of the fit.
        """
        if self._on_oom is None:
            return
        self._callbacks = CallbackWatch(callbacks, fit, self._state, self._callback_failed)
        self._callbacks.begin()
        backend = self._state.backend
        if self._on_oom == "shrink":
            obstacle = backend.micro_batch_obstacle(self._model)
            if obstacle is None:
                self._parts = backend.parts(self._model, self.micro)
            else:
                self._print_obstacle(obstacle)
        self._record = backend.record(self._model)
        self._wrap_train_function()

    def epoch_begins(self) -> None:
        """Handle the start of an epoch: variables or the train_function may be new."""
        self._changed = True
        if self._on_oom is not None and self._model.train_function is not self._wrapped:
            self._wrap_train_function()

    def validation_begins(self) -> None:
        """Wrap the model's test_function, which does not change the weights."""
        known = getattr(self._model, "test_function", None) is not None
        if self._on_oom is not None and known and not self._test_function.is_on:
            self._test_function.wrap(self._model, "test_function", self._watched_test)

    def validation_ends(self) -> None:
        """Restore the model's test_function."""
        self._test_function.unwrap()

    def end(self) -> None:
        """Restore the model when the fit is over."""
        self.validation_ends()
        if self._callbacks is not None:
            self._callbacks.end()
            self._callbacks = None
        if self._wrapped is not None and self._model.train_function is self._wrapped:
            self._model.train_function = self._original
        self._original = self._wrapped = self._record = self._parts = None

    def _print_obstacle(self, obstacle: str) -> None:
        print_message(
            f'on_oom="shrink" cannot train smaller parts of a batch here: {obstacle}. When '
            "memory runs out the training is saved, and the error is raised."
        )

    def _wrap_train_function(self) -> None:
        original = self._model.train_function
        if original is None:
            return

        # A closure, so that the code that searches for the step's graph finds it.
        def watched(*args: Any) -> Any:
            return self._step(original, args)

        self._original, self._wrapped = original, watched
        self._model.train_function = watched

    def _step(self, original: Any, args: tuple[Any, ...]) -> Any:
        # An error of a callback may have ended the fit: another fit trains the model then.
        if self._wrapped is None or not self.armed:
            return original(*args)
        self.armed = False
        if self._parts is not None:
            return self._step_in_parts(original, *args)
        # Before the first step there is nothing to save, and that step creates the slots.
        if self.trained and self._record is not None and self._pace.due(time.perf_counter()):
            with self._guard:
                self._record_before_step()
        try:
            done = original(*args)
        except StopIteration:
            raise
        except Exception as error:
            if watch.is_out_of_memory(error):
                self._save_after_error(error, args)
            self.end()
            raise
        if self._record is not None:
            self._record.release()
        return done

    def _step_in_parts(self, original: Any, iterator: Any) -> Any:
        done: Any = None
        for number in range(int(self._model.steps_per_execution)):
            try:
                data = next(iterator)
            except StopIteration:
                # Call Keras's step although the data has ended: it may count that as a step, and
                # then the count is the same as without our wrapper.
                return original(iterator) if number == 0 else done
            except Exception as error:
                if watch.is_out_of_memory(error):
                    with self._guard:
                        self._record_before_step()
                    self._save_after_error(error, ())
                self.end()
                raise
            whole = self._parts.whole(original, iterator.element_spec)
            done = self._train_batch(whole, data, number)
        return done

    def _train_batch(self, whole: Callable[[Any], Any], data: Any, number: int) -> Any:
        count = self._parts.count(data)
        self._parts.build(data)
        self._record_before_step()
        ran_out: Exception | None = None
        while True:
            try:
                if count is not None and self.micro.divides(count):
                    done = self._parts.train(data, count)
                else:
                    done = whole(data)
            except Exception as error:
                of_memory = watch.is_out_of_memory(error)
                if not of_memory or count is None or not self._halve_and_restore(data, count):
                    self._state.progress.next_batch += number
                    if of_memory or ran_out is not None:
                        self._save_after_error(error, ())
                    self.end()
                    if ran_out is not None and not of_memory:
                        raise error from ran_out  # the model cannot train a part of a batch
                    raise
                watch.drop_frames(error)
                ran_out = error
            else:
                if self._record is not None:
                    self._record.release()
                return done
            watch.release_memory()

    def _halve_and_restore(self, data: Any, count: int) -> bool:
        record, before = self._record, self.micro.size
        if record is None or not record.weights_unchanged() or not self.micro.halve(count):
            return False
        coupled = before is None and self._parts.couples_samples(data, count)
        record.restore()
        if coupled:
            self.micro.size = None
            self._coupled = True
            self._print_obstacle(self._parts.coupled)
            return False
        print_message(f"memory ran out in a training step; {self.micro.describe(count)}.")
        if self._parts.inexact and self.micro.divides(count):
            self._guard.print_once(
                f"the numbers will be close to those of whole batches but not equal: "
                f"{self._parts.inexact}."
            )
        return True

    def _record_before_step(self) -> None:
        """Record the values that the next step may change."""
        record = self._record
        if record is None:
            return
        began = time.perf_counter()
        if self._changed:
            variables = self._state.variables()
            record.set_variables(*split_variables(variables, self._model.trainable_variables))
            # The first step creates slots and metrics.
            self._changed = not getattr(getattr(self._model, "optimizer", None), "built", True)
        record.capture()
        self._pace.add_cost(began, time.perf_counter())

    def _save_after_error(self, error: Exception, args: tuple[Any, ...]) -> None:
        """Save the state before a step that ran out of memory, and add a note to the error."""
        with self._guard:
            watch.release_memory()
            whole, exact = self._restore_before_step(args)
            if whole:
                self._inexact = [] if exact else [_INEXACT]
                path = self._save(watch.REASON)
                text = watch.saved_text("in a training step", path, self._advice())
            else:
                text = watch.inconsistent_text(
                    "in a training step, while its gradients were being applied",
                    "half of this step and half of the one before",
                )
            watch.print_and_add_note(error, text)

    def _advice(self) -> str:
        if self._parts is not None and not self._coupled:
            return "Not even its smallest part fits: free memory elsewhere, or use a smaller model."
        if (
            self._on_oom == "shrink"
            or self._state.backend.micro_batch_obstacle(self._model) is not None
        ):
            return "Use a smaller batch_size, for which a training starts over."
        return (
            'With Rescue(..., on_oom="shrink") a batch that does not fit is trained in parts, and '
            "the training continues."
        )

    def _restore_before_step(self, args: tuple[Any, ...]) -> tuple[bool, bool]:
        """
        Restore the state before the failed step.

        Returns:
            Whether the weights are those of a whole step, and whether all other values are exact.
        """
        told = self._state.backend.undo_step(self._model, args)
        if told is not None:
            return told, True
        record = self._record
        if record is None or not record.is_captured:
            return True, False
        if not record.weights_unchanged():
            return False, False
        record.restore()
        record.release()
        return True, True

    def _watched_test(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            try:
                return original(*args)
            except Exception as error:
                self._validation_failed(error)
                raise

        return watched

    def _validation_failed(self, error: Exception) -> None:
        if not watch.is_out_of_memory(error):
            return
        with self._guard:
            watch.release_memory()
            path = self._save(watch.REASON)
            advice = "Give fit a smaller validation_batch_size."
            text = watch.saved_text("in the validation", path, advice)
            watch.print_and_add_note(error, text)

    def _callback_failed(self, error: Exception, moment: str, inexact: list[str]) -> None:
        """
        Save the state after a callback ran out of memory, and add a note to the error.

        Args:
            error: the error that ends the fit.
            moment: the moment when Keras called the callbacks, as a text.
            inexact: what a resume will not restore for that reason, as texts.
        """
        if self._record is not None:
            self._record.release()
        self._inexact = inexact
        path = self._save(watch.REASON)
        advice = "Let the callback take less memory, or leave it out."
        text = watch.saved_text(f"in a callback, at {moment}", path, advice)
        watch.print_and_add_note(error, text)
        self.end()


class CallbackWatch:
    """
    Catches out-of-memory errors in the callbacks of one `fit`, from `begin` to `end`.

    Keras calls all callbacks through one CallbackList, so the watch wraps two of its methods. At an
    error some callbacks have handled the batch or the epoch, and others have not. A batch whose
    step has ended counts as trained. The rescue lists the callbacks that missed it.
    """

    def __init__(
        self,
        callbacks: Any,
        fit: Any,
        state: FitState,
        failed: Callable[[Exception, str, list[str]], None],
    ) -> None:
        """
        Args:
            callbacks: the CallbackList of the fit; None if the fit has none.
            fit: the Rescue callback of the fit.
            state: the state of the fit.
            failed: called with the error, the moment, and the inexact parts of the state as texts.
        """
        self._callbacks = callbacks
        self._fit = fit
        self._state = state
        self._failed = failed
        self._hooks = Wrapped()
        self._guard = Guard()

    def begin(self) -> None:
        """Wrap the methods of the CallbackList."""
        for name in _MOMENTS if self._callbacks is not None else ():
            self._hooks.wrap(self._callbacks, name, partial(self._watched, name))

    def end(self) -> None:
        """Restore the methods of the CallbackList."""
        self._hooks.unwrap()

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:
            try:
                return call(*args, **named)
            except Exception as error:
                if self._hooks.is_on and watch.is_out_of_memory(error):
                    with self._guard:
                        watch.release_memory()
                        missed = self._missed(name, error)
                        self._set_course(name, (*args, *named.values()))
                        self._failed(error, _MOMENTS[name], missed)
                raise

        return watched

    def _set_course(self, hook: str, args: tuple[Any, ...]) -> None:
        """Set the progress to the position of the training."""
        progress = self._state.progress
        if hook == "on_train_batch_end":
            progress.batch_ends(int(args[0]))
            if len(args) > 1 and isinstance(args[1], Mapping):
                self._state.logs = dict(args[1])
            return
        if len(progress.ended) <= progress.epoch - progress.first_epoch:
            self._fit.on_epoch_end(progress.epoch)
        self._state.epoch_begins(progress.epoch + 1)
        progress.between_epochs = True

    def _missed(self, hook: str, error: Exception) -> list[str]:
        """A text for the user: which callbacks have not handled this moment."""
        listed = list(getattr(self._callbacks, "callbacks", ()))
        failed = _failing_callback(error)
        at = next((at for at, each in enumerate(listed) if each is failed), -1)
        names = [
            type(each).__name__
            for each in listed[at + 1 :]
            if callback_state.implements_hook(each, hook)
        ]
        what = f"what callbacks had still to do at {_MOMENTS[hook]}, where memory ran out: "
        return [what + ", ".join(names)] if names else []


def _failing_callback(error: Exception) -> Any:
    """The callback that raised an error; None: unknown."""
    for frame, _ in walk_tb(error.__traceback__):
        held = frame.f_locals
        if "callback" in held and is_keras_instance(held.get("self"), "CallbackList"):
            return held["callback"]
    return None
