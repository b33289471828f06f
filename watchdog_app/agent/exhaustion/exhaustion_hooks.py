"""
Errors of memory that leave the program: at the top of a script and at the end of a cell.

A loop of somebody's own has no place where its errors come by. They do come by
`sys.excepthook`, and in a notebook where IPython tells that a cell has ended.
"""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import Any, Protocol

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.exhaustion import exhaustion


class Exhausted(Protocol):
    """A training that is to be told."""

    def exhausted(self, error: BaseException) -> None:
        """The program was left by this error of memory."""


SAID = "watchdog: memory ran out"  # the beginning of a note whose text was said

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_guard = Guard("the look at errors of memory")
_before: Any = None  # the hook that was there
_events: Any = None  # IPython's, while we listen
_stays = False  # our hook, as something was said


def watch(training: Exhausted) -> None:
    """Tell `training` of such an error, until `forget`; keeps nothing alive."""
    global _events
    _open.add(training)
    _hook_in()
    events = _cells()
    if events is not None and _events is None:
        _events = events
        events.register("post_run_cell", _cell_ended)


def forget(training: Exhausted) -> None:
    """The training is over. With the last one everything is as it was."""
    global _before, _events
    _open.discard(training)
    if _open:
        return
    if _before is not None and sys.excepthook is _hook and not _stays:
        sys.excepthook, _before = _before, None
    events, _events = _events, None
    if events is not None:
        events.unregister("post_run_cell", _cell_ended)


def say_and_note(error: BaseException, note: str) -> None:
    """
    At once, since an error may be caught, and in the error, for whoever keeps or logs it.

    In a cell only at once: IPython shows errors without asking the hook, right below what is said.
    """
    global _stays
    say(note)
    if _cells() is not None:
        return
    error.add_note(f"watchdog: {note}")
    _stays = True  # the training is over before the error leaves the program
    _hook_in()


def _cells() -> Any:
    """IPython's events where this is a prompt or a notebook, else None."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get() if get else None, "events", None)


def _hook_in() -> None:
    global _before
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _hook


def tell(error: BaseException | None) -> None:
    """The program was left by `error`: each training that is open hears of it, once."""
    if error is None or not exhaustion.is_of_memory(error):
        return
    for training in list(_open):
        with _guard:
            training.exhausted(error)


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    tell(error)
    # It was said at once: not a second time below the traceback.
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        notes[:] = [each for each in notes if not str(each).startswith(SAID)]
    (_before or sys.__excepthook__)(kind, error, traceback)


def _cell_ended(result: Any = None) -> None:
    # IPython has shown the error by now: what is noted in it is only said.
    tell(getattr(result, "error_in_exec", None))
