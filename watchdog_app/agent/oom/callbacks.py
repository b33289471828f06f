"""
Save a Keras `fit` when one of its callbacks runs out of memory between two steps.

Keras calls all callbacks through one CallbackList, so the watch wraps its methods while a `fit`
trains. At an error some callbacks have handled the batch or the epoch, and others have not. A batch
whose step has ended counts as trained. The rescue lists the callbacks that missed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras import position
from watchdog_app.agent.adapters.keras.model import is_keras_instance
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.oom import watch

_MOMENTS = {
    "on_epoch_begin": "the beginning of an epoch",
    "on_train_batch_begin": "the beginning of a batch",
    "on_train_batch_end": "the end of a batch",
    "on_test_begin": "the beginning of the validation",
    "on_test_batch_begin": "a batch of the validation",
    "on_test_batch_end": "a batch of the validation",
    "on_test_end": "the end of the validation",
    "on_epoch_end": "the end of an epoch",
}
_DRAWN = (
    "random numbers of Python, NumPy and PyTorch that the batch was drawn with before memory ran "
    "out: give the data a generator of its own"
)


class Fit(Protocol):
    """The Rescue callback of the fit."""

    validating: bool  # whether a validation runs with the weights of the training

    @property
    def is_resuming(self) -> bool:
        """Whether a resume has not reached its position yet."""

    def on_epoch_end(self, epoch: int) -> None:
        """Handle the end of an epoch; Keras calls this."""


class CallbackWatch:
    """Catches out-of-memory errors in the callbacks of one `fit`, from `begin` to `end`."""

    def __init__(
        self,
        callbacks: Any,
        fit: Fit,
        state: FitState,
        failed: Callable[[Exception, str, list[str], bool], None],
    ) -> None:
        """
        Args:
            callbacks: the CallbackList of the fit; None if the fit has none.
            fit: the Rescue callback of the fit.
            state: the state of the fit.
            failed: called with the error, the moment, and the inexact parts of the state as texts.
                Its last argument says whether the state could be set to the training's position.
        """
        self._callbacks = callbacks
        self._fit = fit
        self._state = state
        self._failed = failed
        self._wrappers: dict[str, tuple[Any, Any]] = {}
        self._guard = Guard()

    def begin(self) -> None:
        """Wrap the methods of the CallbackList."""
        if self._callbacks is None:
            return
        hooks = vars(self._callbacks)
        for name in _MOMENTS:
            before, ours = hooks.get(name), self._wrapped(name, getattr(self._callbacks, name))
            self._wrappers[name] = before, ours
            hooks[name] = ours

    def end(self) -> None:
        """Restore the methods of the CallbackList."""
        hooks = {} if self._callbacks is None else vars(self._callbacks)
        for name, (before, ours) in self._wrappers.items():
            if hooks.get(name) is not ours:
                continue
            if before is None:
                del hooks[name]
            else:
                hooks[name] = before
        self._wrappers = {}

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:
            try:
                return call(*args, **named)
            except Exception as error:
                if self._wrappers and watch.is_out_of_memory(error):
                    with self._guard:
                        watch.release_memory()
                        inexact = self._inexact_notes(name, error)
                        whole = self._set_course(name, (*args, *named.values()))
                        self._failed(error, _MOMENTS[name], inexact, whole)
                raise

        return watched

    def _set_course(self, hook: str, args: tuple[Any, ...]) -> bool:
        """Set the progress to the position of the training; False if it cannot be saved there."""
        fit, state = self._fit, self._state
        if fit.is_resuming:
            return False
        progress = state.progress
        if hook == "on_train_batch_begin":
            progress.next_batch, progress.epoch_done = int(args[0]), False
        elif hook == "on_train_batch_end":
            progress.batch_ends(int(args[0]))
            if len(args) > 1 and isinstance(args[1], Mapping):
                state.logs = dict(args[1])
        elif hook == "on_test_begin" and not fit.validating:
            progress.epoch_done = True
            return not any(is_keras_instance(each, "SwapEMAWeights") for each in state.callbacks)
        elif hook.startswith("on_test"):
            # Otherwise the metrics are those of the validation, and the training's are lost.
            return fit.validating
        elif hook == "on_epoch_end":
            if len(progress.ended) <= progress.epoch - progress.first_epoch:
                fit.on_epoch_end(progress.epoch)
            state.epoch_begins(progress.epoch + 1)
            progress.between_epochs = True
        elif progress.epoch != int(args[0]):  # on_epoch_begin, and Rescue was not called yet
            state.epoch_begins(int(args[0]))
            progress.between_epochs = True
        return True

    def _inexact_notes(self, hook: str, error: Exception) -> list[str]:
        """Texts for the user: which callbacks handle this moment twice or never."""
        listed = list(getattr(self._callbacks, "callbacks", ()))
        failed = _failing_callback(error)
        at = next((at for at, each in enumerate(listed) if each is failed), None)
        twice = hook.endswith("_begin")
        found = list[str]()
        if not hook.startswith("on_test"):
            others = listed if at is None else listed[:at] if twice else listed[at + 1 :]
            names = [
                type(each).__name__ for each in others if callback_state.implements_hook(each, hook)
            ]
            if names:
                what = "had done already, and do again" if twice else "had still to do"
                found.append(
                    f"what callbacks {what} at {_MOMENTS[hook]}, where memory ran out: "
                    f"{', '.join(names)}"
                )
        if hook == "on_train_batch_begin":
            progress = self._state.progress
            drawn = self._state.backend.draws_before_hooks and progress.passes is not None
            if drawn and position.adapter_name(progress.iterator) != "ArrayDataAdapter":
                found.append(_DRAWN)
        return found


def _failing_callback(error: Exception) -> Any:
    """The callback that raised an error; None: unknown."""
    place = error.__traceback__
    while place is not None:
        held = place.tb_frame.f_locals
        if "callback" in held and is_keras_instance(held.get("self"), "CallbackList"):
            return held["callback"]
        place = place.tb_next
    return None
