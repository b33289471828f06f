"""
Save a Keras `fit` when one of its callbacks runs out of memory after a batch or an epoch.

Keras calls all callbacks through one CallbackList, so the watch wraps two of its methods while a
`fit` trains. At an error some callbacks have handled the batch or the epoch, and others have not. A
batch whose step has ended counts as trained. The rescue lists the callbacks that missed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from watchdog_app.agent.adapters.keras import callbacks as callback_state
from watchdog_app.agent.adapters.keras.model import is_keras_instance
from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.oom import watch
from watchdog_app.agent.wrapping import Wrapped

_MOMENTS = {
    "on_train_batch_end": "the end of a batch",
    "on_epoch_end": "the end of an epoch",
}


class Fit(Protocol):
    """The Rescue callback of the fit."""

    def on_epoch_end(self, epoch: int) -> None:
        """Handle the end of an epoch; Keras calls this."""


class CallbackWatch:
    """Catches out-of-memory errors in the callbacks of one `fit`, from `begin` to `end`."""

    def __init__(
        self,
        callbacks: Any,
        fit: Fit,
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
    place = error.__traceback__
    while place is not None:
        held = place.tb_frame.f_locals
        if "callback" in held and is_keras_instance(held.get("self"), "CallbackList"):
            return held["callback"]
        place = place.tb_next
    return None
