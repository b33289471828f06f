"""
Save a Keras `fit` when a callback runs out of memory at the end of a batch or of an epoch.

Keras calls all callbacks through one CallbackList, so the watch wraps two of its methods while a
`fit` trains. The batch or epoch counts as trained; callbacks that come later in the list miss it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from watchdog_app.agent.adapters.keras.state import FitState
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.oom import watch
from watchdog_app.agent.wrapping import Wrapped

_MOMENTS = {"on_train_batch_end": "the end of a batch", "on_epoch_end": "the end of an epoch"}


class Fit(Protocol):
    """The Rescue callback of the fit."""

    @property
    def is_resuming(self) -> bool:
        """Whether a resume has not reached its position yet."""

    def on_epoch_end(self, epoch: int) -> None:
        """Handle the end of an epoch; Keras calls this."""


class CallbackWatch:
    """Catches out-of-memory errors in the callbacks of one `fit`, from `begin` to `end`."""

    def __init__(
        self, callbacks: Any, fit: Fit, state: FitState, failed: Callable[[Exception, str], None]
    ) -> None:
        """
        Args:
            callbacks: the CallbackList of the fit; None if the fit has none.
            fit: the Rescue callback of the fit.
            state: the state of the fit.
            failed: called with the error and the moment, when the state is at the position after
                the batch or epoch.
        """
        self._callbacks = callbacks
        self._fit = fit
        self._state = state
        self._failed = failed
        self._hooks = Wrapped()
        self._guard = Guard()

    def begin(self) -> None:
        """Wrap the methods of the CallbackList."""
        if self._callbacks is not None:
            for name in _MOMENTS:
                self._hooks.wrap(self._callbacks, name, partial(self._watched, name))

    def end(self) -> None:
        """Restore the methods of the CallbackList."""
        self._hooks.unwrap()

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(number: int, logs: Any = None) -> Any:
            try:
                return call(number, logs)
            except Exception as error:
                is_ours = self._hooks.is_on and not self._fit.is_resuming
                if is_ours and watch.is_out_of_memory(error):
                    with self._guard:
                        watch.release_memory()
                        self._move_behind(name, number, logs)
                        self._failed(error, _MOMENTS[name])
                raise

        return watched

    def _move_behind(self, hook: str, number: int, logs: Any) -> None:
        """Set the progress to the position after the batch or epoch that has ended."""
        state, progress = self._state, self._state.progress
        if hook == "on_train_batch_end":
            progress.batch_ends(number)
            if isinstance(logs, Mapping):
                state.logs = dict(logs)
            return
        if len(progress.ended) <= progress.epoch - progress.first_epoch:
            self._fit.on_epoch_end(progress.epoch)  # the callback that failed comes before it
        state.epoch_begins(progress.epoch + 1)
        progress.between_epochs = True
