"""
How a Rescue hears of the end of a step: when all other callbacks have, in the training's thread.

Keras can call the callbacks in threads of its own, so that no step waits for its numbers. It
does so on JAX and PyTorch where no callback has a batch hook, or each that has one says
`async_safe`. A Rescue says so as well, and is told where Keras hands the step on.

Source: `CallbackList._configure_async_dispatch` and `_async_dispatch`, Keras 3.6 to 3.15.
"""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections.abc import Callable
from typing import Any

from watchdog_app.agent.fit import callback_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.agent.fit.keras_fit import FitRescue

_HOOK = "on_train_batch_end"


class Behind:
    """Stands behind all others, so that a save after a batch holds what each made of it."""

    def __init__(self, rescue: FitRescue) -> None:
        super().__init__()
        self._rescue = rescue
        session, state = rescue._session, rescue._state
        self._link = None if session is None else session.link
        self._each_step = state is not None and state.backend.draws_before_the_hooks

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002, D102
        # At each step, so that little is touched: after a step the caches hold the model.
        link = self._link
        if self._each_step or (link is not None and link.wanted is not None):
            self._rescue._batch_ended()


class StepEnd:
    """Keras calls all callbacks in the training's thread, one after the other."""

    elsewhere = False  # whether the caller is in one of Keras's threads

    def wait(self) -> None:
        """Until every callback has seen every step so far."""

    def leave(self) -> None:
        """The fit is over: everything as Keras made it."""


class InTurn(StepEnd):
    """
    As `StepEnd`; a step is published before any callback hears of its end.

    A callback that is listed before us may take all memory, and then we hear no more.
    """

    def __init__(self, callbacks: Any, rescue: FitRescue) -> None:
        self._callbacks = callbacks
        self._rescue = rescue
        self._heard: bool | None = None  # whether any callback does something at a batch's end
        hand_on = getattr(callbacks, _HOOK)
        in_python = _conversion(callbacks)

        def on_train_batch_end(batch: int, logs: Any = None) -> None:
            session = rescue._session
            if session is not None and session.published is not None and session.published.due:
                with session.guard:
                    logs = in_python(logs)  # as is done with them next in any case
                    self._publish(batch, logs)
            hand_on(batch, logs)

        self._ours = on_train_batch_end
        vars(callbacks)[_HOOK] = on_train_batch_end

    def leave(self) -> None:
        """See `StepEnd`."""
        if vars(self._callbacks).get(_HOOK) is self._ours:
            del vars(self._callbacks)[_HOOK]

    def _publish(self, batch: int, logs: Any) -> None:
        rescue, state, session = self._rescue, self._rescue._state, self._rescue._session
        if state is None or session is None or session.published is None:
            return
        course, published = state.course, session.published
        course.next_batch = batch + 1
        if isinstance(logs, dict):
            state.logs = logs
            rescue._loss = logs.get("loss")
        at = {"epoch": course.epoch, "batch": course.next_batch, "loss": rescue._loss}
        if self._heard is None:
            self._heard = callback_state.any_does(state.callbacks, _HOOK)
        course.callbacks_to_hear = published.early = self._heard
        try:
            session.publish(rescue.step_number, **at)
        finally:
            course.callbacks_to_hear = published.early = False


def _conversion(callbacks: Any) -> Callable[[Any], Any]:
    """How the CallbackList itself makes numbers of a step's logs."""
    module = sys.modules.get(type(callbacks).__module__)
    tools = getattr(module, "python_utils", None)
    return getattr(tools, "pythonify_logs", None) or (lambda logs: logs)


class InBackground(StepEnd):
    """Keras calls the callbacks in threads of its own, and the Rescue in the training's."""

    def __init__(self, callbacks: Any, rescue: FitRescue) -> None:
        self._callbacks = callbacks
        self._thread = threading.get_ident()
        hand_on = getattr(callbacks, _HOOK)

        def on_train_batch_end(batch: int, logs: Any = None) -> None:
            hand_on(batch, logs)
            rescue.on_train_batch_end(batch, logs)
            rescue._batch_ended()

        self._ours = on_train_batch_end
        vars(callbacks)[_HOOK] = on_train_batch_end

    @property
    def elsewhere(self) -> bool:  # type: ignore[override]  # known only when it is asked
        """See `StepEnd`."""
        return threading.get_ident() != self._thread

    def wait(self) -> None:
        """See `StepEnd`. Errors of callbacks are left to Keras."""
        concurrent.futures.wait(list(self._callbacks._futures))

    def leave(self) -> None:
        """See `StepEnd`."""
        if vars(self._callbacks).get(_HOOK) is self._ours:
            del vars(self._callbacks)[_HOOK]


def of(callbacks: Any, rescue: FitRescue, behind: type[Behind]) -> StepEnd:
    """
    From now on `rescue` hears of it.

    Args:
        callbacks: the CallbackList of the fit that begins; None where nothing of the kind calls.
        rescue: one of them.
        behind: a callback that Keras takes.
    """
    if getattr(callbacks, "_async_train", False) and hasattr(callbacks, "_futures"):
        return InBackground(callbacks, rescue)
    if callbacks is not None:
        callbacks.callbacks.append(behind(rescue))
        return InTurn(callbacks, rescue)
    return StepEnd()
