"""
A Keras `fit` whose training step runs out of memory: the state before that step is saved.

Keras looks up `model.train_function` for each step, and there stands the watch while a `fit`
trains. An error goes on to the program, with a note of what was saved. With on_oom="shrink" the
batch is trained in parts instead, and the fit goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.exhaustion import exhaustion
from watchdog_app.agent.exhaustion.exhaustion_copies import (
    StepCopies,
    TensorFlowCopies,
    TorchCopies,
)
from watchdog_app.agent.exhaustion.exhaustion_counters import StepCounters, ran_out_in_fetch
from watchdog_app.agent.exhaustion.exhaustion_hooks import say_and_note
from watchdog_app.agent.exhaustion.exhaustion_notes import note_of_callback, note_of_step
from watchdog_app.agent.exhaustion.micro_batches import FIELD, MicroBatches
from watchdog_app.agent.fit.fit_state import FitState
from watchdog_app.agent.runtime.session import Capture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.exhaustion.exhaustion_callbacks import CallbackErrors

_JAX_PARTS = (
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
)
_TENSORFLOW = ("tensorflow", "Keras 2")
_INEXACT = (
    "statistics, metrics and counters as they were before the batch that ran out of memory, and "
    "weights that are certain to be of a whole step (the last look at them was some steps before)"
)


class FitExhaustion:
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
            model: that is fitted.
            state: of the fit.
            on_oom: as `Rescue` was given it.
            save: saves the state as it is, with the place before the current batch; the argument
                is the reason, the answer the folder.
        """
        self._model = model
        self._state = state
        self._save = save
        self.micro = MicroBatches()  # what is known of how much fits
        self.armed = False  # a batch of this fit has begun, and its step has not
        self.trained = False  # there are steps before it, which a rescue would hold
        self._inexact: list[str] = []  # what of the state that is saved is not as it was
        self._callbacks: CallbackErrors | None = None
        self._coupled = False  # the loss compares the samples of a batch
        self._guard = Guard()
        self._parts: Any = None
        self._original: Any = None
        self._ours: Any = None
        self._test: tuple[Any, Any] | None = None
        self._copies: StepCopies | None = None
        self._counters = StepCounters()
        self._steps = 0  # of this fit that were begun, for the looks at the counters
        self._changed = True
        self._on_oom = on_oom
        self._backend = state.backend.name

    def capture(self) -> Capture:
        """The state of the fit, with what is known here."""
        capture = self._state.capture()
        self._state.lost += self._inexact  # the same list as in what is saved
        return replace(capture, meta={**capture.meta, FIELD: self.micro.size})

    def begin(self, callbacks: CallbackErrors) -> None:
        """The fit begins: its train_function is there."""
        if self._on_oom is None:
            return
        self._callbacks = callbacks
        callbacks.begin()
        one_place = getattr(self._model, "_distribute_strategy", None) is None
        shrinks = self._on_oom == "shrink"
        if shrinks:
            shrinks = self._prepare_parts(one_place=one_place)
        if self._backend in _TENSORFLOW and one_place:
            self._copies = TensorFlowCopies(always=shrinks, compiled=shrinks)
        elif self._backend == "torch":
            self._copies = TorchCopies()
        self._stand()

    def epoch_begins(self) -> None:
        """Variables may have come; a callback may have made another train_function."""
        self._changed = True
        if self._on_oom is not None and self._model.train_function is not self._ours:
            self._stand()

    def validation_begins(self) -> None:
        """The model's test_function is there, and the weights are not touched by it."""
        original = getattr(self._model, "test_function", None)
        if self._on_oom is None or original is None or self._test is not None:
            return

        def watched(*args: Any) -> Any:
            try:
                return original(*args)
            except Exception as error:
                self._validation_failed(error)
                raise

        self._test = (original, watched)
        self._model.test_function = watched

    def validation_ends(self) -> None:
        """The model's own test_function again."""
        test, self._test = self._test, None
        if test is not None and self._model.test_function is test[1]:
            self._model.test_function = test[0]

    def end(self) -> None:
        """The fit is over: the model is as it was."""
        self.validation_ends()
        if self._callbacks is not None:
            self._callbacks.end()
            self._callbacks = None
        if self._ours is not None and self._model.train_function is self._ours:
            self._model.train_function = self._original
        self._original = self._ours = self._copies = self._parts = None

    def _prepare_parts(self, *, one_place: bool) -> bool:
        if self._backend != "tensorflow":
            obstacle: str | None = f"it works with Keras on TensorFlow, and this is {self._backend}"
        elif not one_place:
            obstacle = "the model is spread over several devices"
        else:
            from watchdog_app.agent.exhaustion import micro_batches_keras

            obstacle = micro_batches_keras.obstacle(self._model)
            if obstacle is None:
                self._parts = micro_batches_keras.Parts(self._model, self.micro)
                return True
        self._cannot(obstacle)
        return False

    def _cannot(self, obstacle: str | None) -> None:
        say(
            f'on_oom="shrink" cannot go on with smaller parts of a batch here: {obstacle}. When '
            "memory runs out the training is saved, and the error is raised."
        )

    def _stand(self) -> None:
        original = self._model.train_function
        if original is None:
            return

        # A closure, so that the step's graph is found behind it.
        def watched(*args: Any) -> Any:
            return self._step(original, args)

        self._original, self._ours = original, watched
        self._model.train_function = watched

    def _step(self, original: Any, args: tuple[Any, ...]) -> Any:
        # A fit may be left by an error of a callback: what trains the model then is not ours.
        if self._ours is None or not self.armed:
            return original(*args)
        self.armed = False
        self._steps += 1
        if self._parts is not None:
            return self._step_in_parts(original, *args)
        copies = self._copies
        # Before the first step there is nothing to save, and it makes the slots.
        looks = copies is not None and self.trained and copies.due()
        if looks:
            with self._guard:
                self._before()
        try:
            done = original(*args)
        except StopIteration:
            raise
        except Exception as error:
            if exhaustion.is_of_memory(error):
                self._failed(error, args)
            self.end()
            raise
        if looks and copies is not None:
            copies.let_go()
        return done

    def _step_in_parts(self, original: Any, iterator: Any) -> Any:
        done: Any = None
        for number in range(int(self._model.steps_per_execution)):
            try:
                data = next(iterator)
            except StopIteration:
                # Keras's step on data that ended may count it as one: so it does without us.
                return original(iterator) if number == 0 else done
            except Exception as error:
                if exhaustion.is_of_memory(error):
                    self._failed(error, (), before=self._before)
                self.end()
                raise
            whole = self._parts.whole(original, iterator.element_spec)
            done = self._one_batch(whole, data, number)
        return done

    def _one_batch(self, whole: Callable[[Any], Any], data: Any, number: int) -> Any:
        count = self._parts.count(data)
        self._parts.build(data)
        self._before()
        ran_out: Exception | None = None
        while True:
            try:
                if count is not None and self.micro.divides(count):
                    done = self._parts.train(data, count)
                else:
                    done = whole(data)
            except Exception as error:
                of_memory = exhaustion.is_of_memory(error)
                if not of_memory or count is None or not self._tries_smaller(data, count):
                    self._state.course.next_batch += number
                    if of_memory or ran_out is not None:
                        self._failed(error, ())
                    self.end()
                    if ran_out is not None and not of_memory:
                        raise error from ran_out  # the model can do nothing with a part
                    raise
                exhaustion.drop_frames(error)
                ran_out = error
            else:
                if self._copies is not None:
                    self._copies.let_go()
                return done
            exhaustion.free()

    def _tries_smaller(self, data: Any, count: int) -> bool:
        from watchdog_app.agent.exhaustion import micro_batches_keras

        copies, before = self._copies, self.micro.size
        if copies is None or not copies.untouched() or not self.micro.halve(count):
            return False
        coupled = before is None and self._parts.couples_samples(data, count)
        copies.put_back()
        if coupled:
            self.micro.size = None
            self._coupled = True
            self._cannot(micro_batches_keras.COUPLED)
            return False
        say(f"memory ran out in a training step; {self.micro.told(count)}.")
        if self._parts.inexact and self.micro.divides(count):
            self._guard.tell_once(
                f"the numbers will be close to those of whole batches but not equal: "
                f"{self._parts.inexact}."
            )
        return True

    def _before(self) -> None:
        copies = self._copies
        if copies is None:
            return
        if self._changed:
            variables = self._state.variables()
            trained = {id(getattr(each, "value", each)) for each in self._model.trainable_variables}
            trained |= {id(each) for each in self._model.trainable_variables}
            places = [at for at, item in enumerate(variables) if id(item.holder) in trained]
            copies.of(variables, places)
            self._counters.of(variables)
            # The first step makes slots and metrics.
            self._changed = not all(each.built for each in self._optimizers())
        copies.take()
        self._counters.look(self._steps)

    def _optimizers(self) -> list[Any]:
        found = getattr(self._model, "optimizer", None)
        return [] if found is None or not hasattr(found, "built") else [found]

    def _failed(
        self, error: Exception, args: tuple[Any, ...], before: Callable[[], None] | None = None
    ) -> None:
        """Memory ran out in a step: save what was before it, and say so in the error."""
        with self._guard:
            exhaustion.free()
            if before is not None:
                before()
            whole, exact = self._as_before(args, error)
            path = None
            if whole:
                self._inexact = [] if exact else [_INEXACT]
                path = self._save(exhaustion.REASON)
            note = note_of_step(path, whole=whole, advice=self._advice())
            say_and_note(error, note)

    def _advice(self) -> str:
        if self._parts is not None and not self._coupled:
            return "Not even its smallest part fits: free memory elsewhere, or use a smaller model."
        if self._on_oom == "shrink" or self._backend != "tensorflow":
            return "Use a smaller batch_size, for which a training begins anew."
        return (
            'With Rescue(..., on_oom="shrink") a batch that does not fit is trained in parts, and '
            "the training goes on."
        )

    def _as_before(self, args: tuple[Any, ...], error: Exception) -> tuple[bool, bool]:
        """Whether the weights are whole, and whether all else is as before the step."""
        if self._backend == "jax":
            return self._jax_as_before(args), True
        copies = self._copies
        if copies is None or not copies.fresh:
            return True, self._only_drew(error)
        if not copies.untouched():
            return False, False
        copies.put_back()
        copies.let_go()
        return True, True

    def _only_drew(self, error: Exception) -> bool:
        """It ran out before it had its batch, and its counters are put back."""
        model = self._model
        of_keras = type(model).train_step.__module__.startswith("keras.")
        one_step = getattr(model, "steps_per_execution", 1) == 1
        simple = self._backend == "tensorflow" and of_keras and one_step
        return simple and ran_out_in_fetch(error) and self._counters.put_back(self._steps)

    def _jax_as_before(self, args: tuple[Any, ...]) -> bool:
        """The step was given the whole state, and has taken over its memory or has not."""
        state = args[0] if args else None
        if not isinstance(state, tuple) or len(state) != len(_JAX_PARTS):
            return False
        if any(each.is_deleted() for part in state for each in part):
            return False
        self._model._jax_state = dict(zip(_JAX_PARTS, state, strict=True))
        self._model._jax_state_synced = False
        return True

    def _validation_failed(self, error: Exception) -> None:
        if not exhaustion.is_of_memory(error):
            return
        with self._guard:
            exhaustion.free()
            path = self._save(exhaustion.REASON)
            advice = "Give fit a smaller validation_batch_size."
            note = note_of_step(path, whole=True, advice=advice, where="in the validation")
            say_and_note(error, note)

    def between_steps(
        self, error: Exception, moment: str, inexact: list[str], *, whole: bool
    ) -> None:
        """
        Memory ran out in a callback, and the fit is left: save what is trained, and say so.

        Args:
            error: that leaves the fit.
            moment: when the callbacks were called.
            inexact: what a resume will not bring back for that reason.
            whole: the course is set to where the training stands; else nothing can be saved.
        """
        if self._copies is not None:
            self._copies.let_go()
        self._inexact = inexact
        note = note_of_callback(self._save(exhaustion.REASON) if whole else None, moment)
        say_and_note(error, note)
        self.end()
