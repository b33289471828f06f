"""
Detect that a `fit` is over although Keras has not called `on_train_end`.

Keras calls no hook after an interrupt or an error. So the agent checks whether the call of `fit` is
still on the stack of its thread. In IPython it checks at the end of each cell, and ends the fit.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from types import FrameType
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.runtime import crash_report
from watchdog_app.agent.telemetry.stacks import callers, current_frames
from watchdog_app.rescue.identity.notebook import ipython_shell


class RunningFit:
    """One call of `fit`, from its frame in the calling thread; keeps no object alive."""

    def __init__(self, frame: FrameType, callbacks: Any) -> None:
        """
        Args:
            frame: the frame of the call.
            callbacks: Keras's CallbackList of the call.
        """
        self._thread = get_ident()
        self._code = frame.f_code
        self._frame_id = id(frame)  # unique as long as the call runs
        self._callbacks = weakref.ref(callbacks)

    def has_ended(self) -> bool:
        """Whether the call has ended; for any thread."""
        return not any(
            frame.f_code is self._code and id(frame) == self._frame_id
            for frame in callers(current_frames().get(self._thread))
        )

    def ended_before(self, current: RunningFit | None) -> bool:
        """
        Whether the call ran in the calling thread and has ended.

        Args:
            current: the innermost running call of this thread; None: unknown, or none runs.
        """
        if self._thread != get_ident():
            return False
        if current is not None and self._frame_id == current._frame_id:
            # Python often makes the frame of the next call in the same memory.
            return self._callbacks() is not current._callbacks()
        return self.has_ended()

    def continues_after(self) -> bool:
        """Whether the call has ended and the program continues; for any thread."""
        # An uncaught exception ends the program: the daemon must learn that it was training.
        return self.has_ended() and not crash_report.failed()


_guard = Guard("the end of a fit")
_open: weakref.WeakSet[Any] = weakref.WeakSet()  # the Rescue callbacks of fits
_events: Any = None  # IPython's events that call us


def opened(fit: Any) -> None:
    """Watch a fit that begins; in IPython it ends at the latest with its cell."""
    global _events
    _open.add(fit)
    events = getattr(ipython_shell(), "events", None)
    if events is not None and events is not _events:
        _events = events
        events.register("post_run_cell", _cell_ended)  # never unregistered, as it holds no fit


def closed(fit: Any) -> None:
    """Stop watching a fit."""
    _open.discard(fit)


def end_left_fits(current: RunningFit | None = None) -> None:
    """End the fits of this thread that an exception has left; `current` is one that begins."""
    for fit in list(_open):
        if fit.running is not None and fit.running.ended_before(current):
            with _guard:
                fit.fit_was_left()


def _cell_ended(_result: Any = None) -> None:
    with _guard:
        end_left_fits()
